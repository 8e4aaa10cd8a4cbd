"""Clients that hang up, in whatever state their requests are, and connections that are cut."""

import asyncio
import os
import shutil
import subprocess
from typing import Any, NamedTuple

import psutil

from services.cli.chaos.attempt import Connection
from services.cli.chaos.fault import Kind, Scene, until

MOST = 6
TIMEOUT_S = 5.0


async def leave(scene: Scene) -> str | None:
    chosen = _some(scene)
    if not chosen:
        return None
    for connection in chosen:
        connection.leave()
    await until("attempts over", lambda: all(one.attempt.end_s for one in chosen))
    return f"{len(chosen)} clients hung up"


async def cut_link(scene: Scene) -> str | None:
    """A TCP connection between two of the cell's processes ends under both."""
    links = _links(scene)
    if not links:
        return None
    link = scene.numbers.choice(links)
    await asyncio.to_thread(_destroy, link)
    await until("the connection gone", lambda: link not in _links(scene))
    return f"{link.owner}: the connection {link.near} - {link.far} cut"


def _missing_ss() -> str:
    if shutil.which("ss") is None:
        return "no `ss` (package iproute2)"
    return "" if os.geteuid() == 0 else "only root destroys other processes' sockets"


KINDS = (
    Kind("clients hang up", leave),
    Kind("a connection is cut", cut_link, missing=_missing_ss),
)


Address = tuple[str, int]


class _Link(NamedTuple):
    owner: str
    near: Address
    far: Address


def _some(scene: Scene) -> list[Connection]:
    running = [one for one in scene.load.running.values() if one.is_open]
    return scene.numbers.sample(running, min(len(running), scene.numbers.randint(1, MOST)))


def _links(scene: Scene) -> list[_Link]:
    """Of each worker's io process, to others of the cell, or to the wires between them."""
    names = {worker.child.pid: worker.name for worker in scene.cell.workers}
    ours = {child.pid for child in scene.cell.children}
    if scene.cell.wires:
        ours.add(os.getpid())
    found = psutil.net_connections("tcp")
    ends = {item.laddr: item.pid for item in found if item.pid in ours}
    return [
        _Link(names[item.pid], _address(item.laddr), _address(item.raddr))
        for item in found
        if item.status == psutil.CONN_ESTABLISHED
        and item.pid in names
        and item.raddr in ends
        and ends[item.raddr] != item.pid
    ]


def _address(end: Any) -> Address:
    return end.ip, end.port


def _destroy(link: _Link) -> None:
    (near, near_port), (far, far_port) = link.near, link.far
    ends = ["src", near, "sport", "=", f":{near_port}", "dst", far, "dport", "=", f":{far_port}"]
    subprocess.run(  # noqa: S603
        ["ss", "-K", *ends],  # noqa: S607
        check=False,
        capture_output=True,
        timeout=TIMEOUT_S,
    )
