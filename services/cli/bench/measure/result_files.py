"""The files that a benchmark writes."""

from pathlib import Path

from shared.errors import SettingsError


def check_files(json: Path | None, plot: Path | None) -> None:
    """Fails before the run rather than after it: SettingsError names the flag."""
    if plot is not None and plot.suffix != ".svg":
        raise SettingsError(f"--plot {plot}: the plot is an SVG file, name it .svg")
    for flag, path in (("--json", json), ("--plot", plot)):
        if path is not None and not path.parent.is_dir():
            raise SettingsError(f"{flag} {path}: there is no folder {path.parent}")
