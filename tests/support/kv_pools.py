"""Which processes hold a worker's KV pool, as the kernel says."""

import os
import re
import time
from collections.abc import Collection, Iterable
from pathlib import Path

POOL_MAP = re.compile(r" (\d+) +/memfd:baton-kv ")
POOL_LINK = "/memfd:baton-kv "


def own_pool(pid: int) -> int:
    """The inode of an engine process's pool: opened before those of others, and kept open."""
    opened = _open_pools(pid)
    return opened[min(opened)]


def holders(pool: int, pids: Iterable[int]) -> set[int]:
    """Those of the processes that map this pool or have it open."""
    return {pid for pid in pids if pool in _mapped_pools(pid) | set(_open_pools(pid).values())}


def pools_gone_s(pools: Collection[int], pids: Collection[int], limit_s: float = 5.0) -> float:
    """Seconds until none of these processes holds one of the pools. AssertionError after the
    limit."""
    start_s = time.monotonic()
    while any(holders(pool, pids) for pool in pools):
        assert time.monotonic() < start_s + limit_s, [holders(pool, pids) for pool in pools]
        time.sleep(0.005)
    return time.monotonic() - start_s


def _mapped_pools(pid: int) -> set[int]:
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except OSError:  # it has ended
        return set()
    return {int(inode) for inode in POOL_MAP.findall(maps)}


def _open_pools(pid: int) -> dict[int, int]:
    """descriptor -> inode"""
    found: dict[int, int] = {}
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            if str(link.readlink()).startswith(POOL_LINK):
                found[int(link.name)] = os.stat(link).st_ino  # noqa: PTH116 -- of what it leads to
    except OSError:
        pass
    return found
