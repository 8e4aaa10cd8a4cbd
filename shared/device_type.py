"""Which kind of device a worker on a machine like this one would choose; needs no torch."""

from pathlib import Path


def device_type(device: str) -> str:
    """`cpu` or `cuda`, of a --device."""
    if device != "auto":
        return device.partition(":")[0]
    return "cuda" if any(Path("/dev").glob("nvidia[0-9]*")) else "cpu"
