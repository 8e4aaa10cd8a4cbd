"""The files that a benchmark writes."""

from pathlib import Path

from shared.errors import SettingsError


def check_files(json: Path | None, plot: Path | None) -> None:
    """Fails before the run rather than after it: SettingsError names the flag."""
    check_file("--json", json)
    check_file("--plot", plot, ".svg", "the plot is an SVG file")


def check_file(flag: str, path: Path | None, suffix: str = "", why: str = "") -> None:
    """SettingsError where it could not be written, or is called as what it is not."""
    if path is None:
        return
    if suffix and path.suffix != suffix:
        raise SettingsError(f"{flag} {path}: {why}, name it {suffix}")
    if not path.parent.is_dir():
        raise SettingsError(f"{flag} {path}: there is no folder {path.parent}")
