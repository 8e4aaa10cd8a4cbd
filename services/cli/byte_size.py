"""Numbers of bytes as people read and write them."""

import re

KIB, MIB, GIB = 2**10, 2**20, 2**30
TWO_DIGITS = 10
UNITS = {
    **{"": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": 2**40},
    **{"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12},
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]i?B)?")


def shown(num_bytes: float) -> str:
    """In the largest unit of which there is one."""
    if num_bytes >= GIB:
        return f"{num_bytes / GIB:.1f} GiB"
    for unit, size in (("MiB", MIB), ("KiB", KIB)):
        if num_bytes >= size:
            number = num_bytes / size
            return f"{number:.2g} {unit}" if number < TWO_DIGITS else f"{number:.0f} {unit}"
    return f"{num_bytes:.0f} B"


def parse(text: str) -> int:
    """Bytes of `80GiB`, `40 GB` or a plain number; ValueError for anything else."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or (found[2] or "") not in UNITS:
        raise ValueError(f"{text!r} is no number of bytes such as 80GiB")
    return int(float(found[1]) * UNITS[found[2] or ""])
