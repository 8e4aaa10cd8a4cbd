"""Log lines of a process: to standard error, never with a prompt, a token or a key in them."""

import logging

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure_logs(level: str) -> None:
    """Once, at the start of a process; `level` as in the settings."""
    logging.basicConfig(level=level.upper(), format=FORMAT)
