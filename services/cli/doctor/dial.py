"""Calls on a worker's ports, as far as the cell secret: no frame of a request is ever sent."""

import asyncio

from shared.challenge import TIMEOUT_S, Challenge, ChallengeError, Channel
from shared.errors import PeerLostError, ProtocolError
from shared.frames import LENGTH, next_body
from shared.protocol import CODEC, MAX_HELLO_BYTES, SPOKEN, Hello


async def hear_hello(host: str, port: int, cell_secret: str) -> Hello:
    """What a worker says of itself on its link port. PeerLostError when nobody answers,
    ChallengeError when it is a stranger or of another cell."""
    reader, writer = await _opened("link", cell_secret, asyncio.open_connection(host, port))
    try:
        async with asyncio.timeout(TIMEOUT_S):
            head = bytearray(await reader.readexactly(LENGTH.size))
            next_body(head, 0, MAX_HELLO_BYTES)
            body = await reader.readexactly(LENGTH.unpack(head)[0])
    except (OSError, EOFError, TimeoutError):
        raise PeerLostError("it hangs up before its HELLO") from None
    finally:
        writer.close()
    hello = CODEC.decode(body)
    if not isinstance(hello, Hello):
        raise ProtocolError("it is not a worker")
    return hello


async def try_kv_port(address: str, cell_secret: str) -> None:
    """Errors as `hear_hello`."""
    host, _, port = address.rpartition(":")
    opening = asyncio.open_connection(host.strip("[]"), int(port))
    _, writer = await _opened("pull", cell_secret, opening)
    writer.close()


async def try_kv_socket(path: str, cell_secret: str) -> None:
    """Errors as `hear_hello`."""
    _, writer = await _opened("pull", cell_secret, asyncio.open_unix_connection(path))
    writer.close()


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _opened(channel: Channel, cell_secret: str, opening: object) -> Streams:
    """A connection on which both ends have proved that they know the secret."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await opening  # type: ignore[misc]
            await _introduce(reader, writer, Challenge(cell_secret, channel, SPOKEN, dials=True))
    except ChallengeError:
        _close(writer)
        raise
    except TimeoutError:
        _close(writer)
        raise PeerLostError(f"no answer within {TIMEOUT_S:g} s") from None
    except EOFError:
        _close(writer)
        raise PeerLostError("it hangs up before it proves itself") from None
    except OSError as error:
        _close(writer)
        raise PeerLostError(error.strerror or str(error)) from None
    return reader, writer


async def _introduce(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, challenge: Challenge
) -> None:
    writer.write(challenge.greeting)
    while not challenge.done:
        step = await reader.readexactly(challenge.num_expected)
        writer.write(challenge.receive(step))


def _close(writer: asyncio.StreamWriter | None) -> None:
    if writer is not None:
        writer.close()
