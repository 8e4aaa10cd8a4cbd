"""What kube-proxy and the cluster's DNS do: `python -m tests.kube.service_proxy CONFIG HOSTS`.

Each port of a Service listens while the Service has an endpoint, and hands a new connection to one
of them, drawn at random; a connection that is open stays where it is. Names are lines of the file
HOSTS, which every container reads. CONFIG is a JSON file: port, token and certificate of the API
server. The endpoints are those that the cluster's own controller writes.
"""

import asyncio
import json
import random
import socket
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.kube.api_server import ApiServer, Object
from tests.kube.watch import Watch

CHUNK = 2**16
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of a connection that ends with a reset"""
LOCAL = "127.0.0.1 localhost\n"
Address = tuple[str, int]


@dataclass
class Forwarded:
    """One port of a Service."""

    endpoints: list[Address]
    server: asyncio.Server | None = None
    open: set["asyncio.Task[None]"] = field(default_factory=set)

    async def serve(self, at: Address) -> None:
        """Refuses connections where there is no endpoint."""
        if self.endpoints and self.server is None:
            self.server = await asyncio.start_server(self._accept, *at)
        if not self.endpoints and self.server is not None:
            self.server.close()
            self.server = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(*random.choice(self.endpoints))  # noqa: S311
        except (OSError, IndexError):
            reset(writer)
            return
        await asyncio.gather(forward(reader, there[1]), forward(there[0], writer))
        writer.close()
        there[1].close()


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One way, until its end or a reset, which goes on to the other side."""
    try:
        while chunk := await reader.read(CHUNK):
            writer.write(chunk)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        reset(writer)


def reset(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()


class ServiceProxy:
    """Follows Services and Endpoints of all namespaces."""

    def __init__(self, server: ApiServer, hosts: Path) -> None:
        self._hosts = hosts
        self._forwarded: dict[Address, Forwarded] = {}
        self._changed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def tell() -> None:
            loop.call_soon_threadsafe(self._changed.set)

        self._services = Watch(server.client(), "/api/v1/services", tell)
        self._endpoints = Watch(server.client(), "/api/v1/endpoints", tell)
        self._services.start()
        self._endpoints.start()

    async def run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._follow()

    async def _follow(self) -> None:
        ends = {key_of(item): item for item in self._endpoints.items.values()}
        wanted: dict[Address, list[Address]] = {}
        names = LOCAL
        for service in self._services.items.values():
            found = ends.get(key_of(service), {})
            address = service["spec"].get("clusterIP", "None")
            addresses = [address] if address != "None" else ready_addresses(found)
            names += "".join(f"{each} {' '.join(names_of(service))}\n" for each in addresses)
            for port in service["spec"].get("ports", []) if address != "None" else []:
                wanted[address, port["port"]] = ready_endpoints(found, port.get("name", ""))
        self._write(names)
        for at in self._forwarded.keys() | wanted.keys():
            forwarded = self._forwarded.setdefault(at, Forwarded([]))
            forwarded.endpoints = wanted.get(at, [])
            await forwarded.serve(at)

    def _write(self, names: str) -> None:
        """In place: containers have the file itself mounted. The longer text is there before the
        shorter one is cut."""
        with self._hosts.open("r+", encoding="utf-8") as file:
            file.write(names)
            file.truncate()


def key_of(item: Object) -> tuple[str, str]:
    return item["metadata"]["namespace"], item["metadata"]["name"]


def names_of(service: Object) -> list[str]:
    namespace, name = key_of(service)
    full = f"{name}.{namespace}"
    return [name, full, f"{full}.svc", f"{full}.svc.cluster.local"]


def ready_addresses(endpoints: Object) -> list[str]:
    subsets = endpoints.get("subsets", [])
    return [each["ip"] for subset in subsets for each in subset.get("addresses", [])]


def ready_endpoints(endpoints: Object, port_name: str) -> list[Address]:
    return [
        (address["ip"], port["port"])
        for subset in endpoints.get("subsets", [])
        for port in subset.get("ports", [])
        for address in subset.get("addresses", [])
        if port.get("name", "") == port_name
    ]


async def main(server: ApiServer, hosts: Path) -> None:
    await ServiceProxy(server, hosts).run()


def server_of(config: Path) -> ApiServer:
    given = json.loads(config.read_text(encoding="utf-8"))
    return ApiServer(given["port"], given["token"], Path(given["certificate"]), Path())


if __name__ == "__main__":
    asyncio.run(main(server_of(Path(sys.argv[1])), Path(sys.argv[2])))
