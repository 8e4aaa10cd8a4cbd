"""What the io process of a decode worker does with tokens, and pulls next to them over tcp:
`stream_relay PORT TURN_BYTES`. Each byte from the second connection to PORT goes to the first one.
TURN_BYTES: that a payload takes of the event loop at a time; 0: as it does.

Lines on stdin: `pull PORT` pulls all blocks of an owner there again and again, two at a time, until
`rest`, which is answered with the bytes that were pulled.
"""

import asyncio
import sys
from itertools import count

from shared.event_loop import run_main
from shared.kv.memory import KVMemory
from shared.protocol import Attempt
from shared.transfer import frame_stream
from shared.transfer.transport import PullRequest
from shared.transfer.ways.tcp import tcp_transport
from shared.transfer_address import TransferAddress
from tests.support.pairs.owner_processes import INCARNATION, TICKET, layout_of

BLOCK_BYTES = 2**20
NUM_BLOCKS = 32
NUM_PULLS = 2
"""at a time, as a worker does"""


class Relay(asyncio.Protocol):
    def __init__(self, gateway: asyncio.Transport) -> None:
        self._gateway = gateway

    def data_received(self, data: bytes) -> None:
        self._gateway.write(data)


async def _main(port: int) -> int:
    loop = asyncio.get_running_loop()
    gateway, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", port)
    await loop.create_connection(lambda: Relay(gateway), "127.0.0.1", port)
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    epochs = count()
    while line := (await commands.readline()).decode().split():
        address = TransferAddress(port=line[1])
        resting = asyncio.create_task(commands.readline())
        pulled = await asyncio.gather(
            *(_pull(address, epochs, number, resting) for number in range(NUM_PULLS))
        )
        sys.stdout.write(f"{sum(pulled)}\n")
        sys.stdout.flush()
    return 0


async def _pull(
    address: TransferAddress, epochs: "count[int]", number: int, resting: "asyncio.Task[bytes]"
) -> int:
    """Bytes that came until `resting` is over."""
    memory = KVMemory.create(layout_of(BLOCK_BYTES), NUM_BLOCKS)
    transport = tcp_transport(memory, f"d.{number}")
    num_bytes = 0
    while not resting.done():
        request = PullRequest(
            Attempt("rid", next(epochs)), address, INCARNATION, TICKET, tuple(range(NUM_BLOCKS))
        )
        num_bytes += (await transport.pull(request)).num_bytes
    await transport.close()
    return num_bytes


if __name__ == "__main__":
    frame_stream._TURN_BYTES = int(sys.argv[2]) or frame_stream._TURN_BYTES
    raise SystemExit(run_main(_main(int(sys.argv[1]))))
