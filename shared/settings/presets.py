"""Presets: values for settings that are left open, by what a cell is for.

A flag or a variable beats a preset, and a preset beats the default. None names a piece of hardware
or a size of it: what the hardware can is asked where it is.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from shared.settings.setting import as_text, flag_name

NO_PRESET = "none"


class Preset(NamedTuple):
    """By names of settings."""

    values: Mapping[str, tuple[Any, str]]
    """(what an open setting is, why)"""
    advice: Mapping[str, tuple[Any, str]]
    """(what a setting is as long as nobody chose, why somebody should)"""


PRESETS: Mapping[str, Preset] = {
    "dev": Preset(
        {
            "eager": (True, "no CUDA graphs are captured, so a worker on a GPU is ready sooner"),
            "profile": ("low_latency", "small steps have the fewest kernels and take least memory"),
            "engine_silence_s": (0.0, "a debugger may stop an engine, and its worker waits"),
            "unknown_fields": ("refuse", "a field that is spelt wrong is named, not passed over"),
            "log_level": ("debug", "logs tell everything"),
            "debug": (True, "errors come with their traceback"),
        },
        {},
    ),
    "prod": Preset(
        {
            "operator_paths": ("admin", "metrics and status are not for whoever may ask"),
            "request_timeout_s": (600.0, "no request runs forever; OpenAI's clients wait so long"),
        },
        {
            "api_keys_file": ("", "until it names one, whoever reaches the port may ask"),
            "otlp_endpoint": ("", "without one a slow request leaves no trace"),
            "redis": ("embedded", "what it records ends with `baton up`; a server's outlives it"),
        },
    ),
    "quality": Preset(
        {
            "dtype": (
                "float32",
                "rounding hardly ever decides between two tokens, whatever shares a step; twice "
                "the memory of 16 bits: where that does not fit, --dtype auto",
            ),
            "threads": (1, "sums on a CPU in one order: the same bits whatever shares a step"),
            "unknown_fields": ("refuse", "a field that nobody knows may have meant another answer"),
        },
        {},
    ),
}


def preset_values(preset: str) -> dict[str, Any]:
    """Setting -> what it is where it is left open; nothing for NO_PRESET."""
    if preset not in PRESETS:
        return {}
    return {name: value for name, (value, _) in PRESETS[preset].values.items()}


def preset_lines(preset: str, values: Mapping[str, Any]) -> Iterator[str]:
    """What a preset set and why, what stays as it was given instead, and what it leaves to choose.
    `values`: of all settings."""
    if preset not in PRESETS:
        return
    for name, (value, why) in PRESETS[preset].values.items():
        line = f"preset {preset}: {flag_name(name)} {as_text(value)}"
        if values[name] == value:
            yield f"{line}: {why}"
        else:
            yield f"{line} gives way to {as_text(values[name])}, as given; it was meant for: {why}"
    for name, (unchosen, why) in PRESETS[preset].advice.items():
        if values[name] == unchosen:
            yield f"preset {preset}: {flag_name(name)} is yours to choose: {why}"
