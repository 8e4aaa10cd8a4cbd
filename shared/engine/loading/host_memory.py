"""How much memory a process on this machine can still take: the machine's or its container's."""

from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
KIB = 1024


def free_memory(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> tuple[int, int]:
    """Bytes in all, and free: the smaller of what the machine has and the container may take."""
    fields = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
    total, free = (int(fields[name].split()[0]) * KIB for name in ("MemTotal", "MemAvailable"))
    limit, used = _number(cgroup / "memory.max"), _number(cgroup / "memory.current")
    if limit is None or limit >= total:
        return total, free
    return limit, min(free, max(0, limit - (used or 0) + _reclaimable(cgroup)))


def _number(path: Path) -> int | None:
    """None where there is no limit, or no such file."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _reclaimable(cgroup: Path) -> int:
    """Cached files count as used and give way."""
    try:
        lines = (cgroup / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
