"""Settings for a test, named as on a command line."""

from typing import Any

from shared.settings.groups import Settings
from shared.settings.load import load_settings


def settings_with(**values: Any) -> Settings:
    """The defaults but for these, as `kv_blocks=9`, whatever the environment says."""
    return load_settings(values, {})
