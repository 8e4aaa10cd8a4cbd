"""Closing a transport at any moment leaves no socket open: not a dialed one, not an accepted
one whose session has not had its first turn."""

import asyncio
import contextlib
import gc
import socket
import warnings
from collections.abc import Iterator

import pytest

from shared.transfer_address import TransferAddress
from tests.support.pairs.transfer_pair import ATTEMPT, RUN, TICKET, Kind, Pair, num_pools, until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


@contextlib.contextmanager
def nothing_left_unclosed() -> Iterator[None]:
    gc.collect()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", ResourceWarning)
        yield
        gc.collect()
    assert [str(warning.message) for warning in warned] == []


def dial(address: TransferAddress) -> socket.socket:
    if address.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(address.socket)
        return sock
    host, _, port = address.port.rpartition(":")
    return socket.create_connection((host, int(port)))


SOCKET_KINDS: tuple[Kind, ...] = ("tcp", "mapped")


@pytest.mark.parametrize("kind", SOCKET_KINDS)
@pytest.mark.parametrize("num_turns", range(8))
async def test_closing_in_any_turn_after_a_reader_came_closes_its_socket(
    kind: Kind, num_turns: int
) -> None:
    """Not accepted yet, accepted in this turn, session not begun, session begun."""
    with nothing_left_unclosed():
        async with Pair(kind) as pair:
            with dial(pair.p.transport.address):
                for _ in range(num_turns):
                    await asyncio.sleep(0)
                await pair.p.transport.close()


@pytest.mark.parametrize("kind", SOCKET_KINDS)
async def test_closing_in_any_turn_of_a_pull_closes_its_sockets(kind: Kind) -> None:
    """And its mappings, however far they have come."""
    pools = num_pools()
    with nothing_left_unclosed():
        for num_turns in range(60):
            async with Pair(kind) as pair:
                offer = pair.p.transport.offer(ATTEMPT, TICKET)
                offer.publish(pair.p.piece(0, 5, 6, 2, 9))
                offer.seal(RUN)
                pull = pair.pull(4)
                for _ in range(num_turns):
                    await asyncio.sleep(0)
            await asyncio.gather(pull, return_exceptions=True)
    del pair, offer, pull
    await until(lambda: num_pools() <= pools)
