"""The pull port and readers that do not belong to the cell."""

import asyncio

import pytest

from shared.challenge import GREETING_BYTES
from shared.errors import PeerLostError
from shared.kv.memory import KVMemory
from shared.protocol import Attempt
from shared.transfer import frame_stream
from shared.transfer.frames import Open, encode
from shared.transfer.tcp import TcpTransport
from shared.transfer.transport import PullRequest
from tests.support.pairs.transfer_pair import ATTEMPT, LAYOUT, TICKET

pytestmark = pytest.mark.anyio

CELL = "cell"
OPEN = Open(Attempt("rid", 1), TICKET, "p.1", LAYOUT.fingerprint())


@pytest.mark.parametrize("secret", ["", "other"], ids=["none", "another"])
async def test_without_the_cell_s_secret_no_frame_of_a_pull_is_read(
    monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    """Closed at the proof: the session that would parse its first frame never begins."""

    def parse(*_: object) -> None:
        raise AssertionError("a stranger's frame was read")

    memory = KVMemory.create(LAYOUT, 4)
    source = TcpTransport(memory, "p.1", cell_secret=CELL)
    reader_of = TcpTransport(KVMemory.create(LAYOUT, 4), "d.1", cell_secret=secret)
    await source.start()
    source.offer(ATTEMPT, TICKET)
    monkeypatch.setattr(frame_stream, "decode_prefix", parse)
    request = PullRequest(ATTEMPT, source.address, "p.1", TICKET, (0,))
    with pytest.raises(PeerLostError, match="another cell secret"):
        await reader_of.pull(request)
    host, _, port = source.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(encode(OPEN, 0))
    async with asyncio.timeout(5):
        greeting = await reader.read()
    assert len(greeting) == GREETING_BYTES
    writer.close()
    await reader_of.close()
    await source.close()
