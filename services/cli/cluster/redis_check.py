"""Whether anybody listens where `--redis` points, before anything is started that needs it."""

import asyncio
import contextlib
import os
from urllib.parse import SplitResult, urlsplit

from shared.errors import MissingError, SettingsError

DEFAULT_PORT = 6379
SCHEMES = ("redis", "rediss", "unix")
PAUSE_S = 0.2


async def check_redis(url: str, patience_s: float = 5.0) -> None:
    """Returns once something listens there; MissingError if nothing does for `patience_s`,
    SettingsError on a URL that names no Redis. Says nothing of credentials in the URL."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise SettingsError(f"--redis: a URL starts with one of {', '.join(SCHEMES)}")
    place = _place(parts)
    reason = "no answer"
    try:
        async with asyncio.timeout(patience_s):
            while True:
                try:
                    await _connect(place)
                except OSError as error:
                    number = error.errno or 0
                    reason = os.strerror(number) if number > 0 else str(error)
                else:
                    return
                await asyncio.sleep(PAUSE_S)
    except TimeoutError:
        shown = place if isinstance(place, str) else f"{place[0]}:{place[1]}"
        raise MissingError(
            f"--redis: no Redis at {shown} ({reason}); start it, or leave --redis out for an "
            "embedded one"
        ) from None


def _place(parts: SplitResult) -> str | tuple[str, int]:
    """Path of a socket, or host and port."""
    if parts.scheme == "unix":
        return parts.path
    try:
        return parts.hostname or "localhost", parts.port or DEFAULT_PORT
    except ValueError:
        raise SettingsError("--redis: the URL's port is not a number up to 65535") from None


async def _connect(place: str | tuple[str, int]) -> None:
    if isinstance(place, str):
        _, writer = await asyncio.open_unix_connection(place)
    else:
        _, writer = await asyncio.open_connection(*place)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
