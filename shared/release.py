"""Which Baton this is."""

from importlib.metadata import PackageNotFoundError, version

DISTRIBUTION = "baton-pd"


def release() -> str:
    """The installed version; a fixed word when run from a checkout that is not installed."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "0+uninstalled"
