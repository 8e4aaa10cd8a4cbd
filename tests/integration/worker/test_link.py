"""Link and LinkServer over real TCP: HELLO, order, refusal, loss."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from shared.challenge import GREETING_BYTES
from shared.errors import OtherPeerError, PeerLostError, ProtocolError
from shared.frames import framed
from shared.link import link as link_module
from shared.link import server as server_module
from shared.link.link import Link
from shared.link.server import HELLO_TIMEOUT_S, LinkServer, Peer
from shared.protocol import MAX_HELLO_BYTES, Hello, Message, Ping, encode
from shared.worker.sessions import Sessions
from tests.support.introduction import introduce

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


CELL = "cell"


def worker_hello() -> Hello:
    return Hello("prefill", "p.1", "pool")


def gateway_hello(pool: str = "pool", to: str = "p.1", incarnation: str = "g.1") -> Hello:
    return Hello("gateway", incarnation, pool, to=to)


class Inbox:
    """Records what both ends saw."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.closed = asyncio.Event()
        self.opened: list[Peer] = []

    def receive(self, _: object, message: Message) -> None:
        self.messages.append(message)

    def close(self, _: object) -> None:
        self.closed.set()


async def started(inbox: Inbox, cell_secret: str = "") -> tuple[LinkServer, int]:
    server = LinkServer(
        worker_hello, inbox.receive, inbox.close, inbox.opened.append, cell_secret=cell_secret
    )
    return server, await server.start("127.0.0.1", 0)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_messages_arrive_whole_and_in_order_both_ways() -> None:
    ours, theirs = Inbox(), Inbox()
    server, port = await started(theirs)
    link = await Link.dial("127.0.0.1", port, gateway_hello(), ours.receive, ours.close)
    assert link.peer.incarnation == "p.1"
    sent: list[Message] = [Ping(n) for n in range(2000)]
    for message in sent:
        link.send(message)
    await until(lambda: len(theirs.messages) == len(sent))
    assert theirs.messages == sent
    theirs.opened[0].send(Ping(7))
    await until(lambda: ours.messages)
    assert ours.messages == [Ping(7)]
    await link.close()
    assert ours.closed.is_set()
    await until(theirs.closed.is_set)
    await server.close()


async def test_server_hangs_up_on_a_gateway_of_another_pool() -> None:
    inbox = Inbox()
    server, port = await started(inbox)
    hello = gateway_hello(pool="other")
    link = await Link.dial("127.0.0.1", port, hello, inbox.receive, inbox.close)
    await until(inbox.closed.is_set)
    assert link.closed
    assert inbox.opened == []
    await server.close()


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">I", MAX_HELLO_BYTES + 1),
        struct.pack(">I", 3) + b"abc",
        struct.pack(">I", 2) + b"\x91\xc0",
    ],
    ids=["too long", "not msgpack", "no name"],
)
async def test_malformed_frame_closes_only_that_link(frame: bytes) -> None:
    inbox, good = Inbox(), Inbox()
    server, port = await started(inbox)
    link = await Link.dial("127.0.0.1", port, gateway_hello(), good.receive, good.close)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await introduce(reader, writer, "link")
    writer.write(frame)
    async with asyncio.timeout(5):
        try:
            while await reader.read(4096):
                pass
        except ConnectionResetError:
            pass
    writer.close()
    link.send(Ping(1))
    await until(lambda: inbox.messages == [Ping(1)])
    await link.close()
    await server.close()


@pytest.mark.parametrize("secret", ["", "other"], ids=["none", "another"])
async def test_without_the_cell_s_secret_no_frame_is_read_and_none_is_sent(secret: str) -> None:
    inbox, ours = Inbox(), Inbox()
    server, port = await started(inbox, cell_secret=CELL)
    with pytest.raises(ProtocolError, match="peer has another cell secret"):
        await Link.dial(
            "127.0.0.1", port, gateway_hello(), ours.receive, ours.close, cell_secret=secret
        )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = encode(gateway_hello())
    writer.write(struct.pack(">I", len(body)) + body)
    async with asyncio.timeout(5):
        assert len(await reader.read()) == GREETING_BYTES
    writer.close()
    assert (inbox.opened, inbox.messages) == ([], [])
    link = await Link.dial(
        "127.0.0.1", port, gateway_hello(), ours.receive, ours.close, cell_secret=CELL
    )
    await link.close()
    await server.close()


async def test_who_is_looked_for_elsewhere_hears_nothing_of_it() -> None:
    """A worker that was restarted at the same port keeps what a gateway has there."""
    inbox, ours = Inbox(), Inbox()
    server, port = await started(inbox)
    hello = gateway_hello(to="p.0")
    with pytest.raises(OtherPeerError, match=r"p\.1 answers where p\.0 was"):
        await Link.dial("127.0.0.1", port, hello, ours.receive, ours.close)
    await until(lambda: not server._strangers)
    assert (inbox.opened, inbox.messages) == ([], [])
    await server.close()


async def test_a_message_that_cannot_be_dealt_with_closes_only_its_link(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = Inbox(), Inbox()

    def receive(_: Peer, message: Message) -> None:
        raise LookupError(f"nobody expected {message}")

    server = LinkServer(worker_hello, receive, lambda _: None)
    port = await server.start("127.0.0.1", 0)
    links = [
        await Link.dial("127.0.0.1", port, gateway_hello(incarnation=inc), box.receive, box.close)
        for inc, box in (("g.1", first), ("g.2", second))
    ]
    links[0].send(Ping(1))
    await until(first.closed.is_set)
    assert not second.closed.is_set() and "nobody expected" in caplog.text
    await links[1].close()
    await server.close()


@contextlib.asynccontextmanager
async def serving(inbox: Inbox) -> AsyncIterator[tuple[LinkServer, int]]:
    """Closed whichever way the test ends: uvloop does not end under an open server."""
    server, port = await started(inbox)
    try:
        yield server, port
    finally:
        await server.close()


async def test_one_stranger_too_many_ends_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long before its time to say HELLO is up."""
    monkeypatch.setattr(server_module, "MAX_STRANGERS", 3)
    inbox = Inbox()
    async with serving(inbox) as (server, port):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        oldest = silent[0][0]
        async with asyncio.timeout(HELLO_TIMEOUT_S / 5):
            with contextlib.suppress(ConnectionResetError):
                assert len(await oldest.read()) == GREETING_BYTES
        assert len(server._strangers) == 3
        await Link.dial("127.0.0.1", port, gateway_hello(), inbox.receive, inbox.close)
        await until(lambda: inbox.opened)
        for _, writer in silent:
            writer.close()


async def test_links_have_a_limit_that_a_gateway_which_dials_again_does_not_meet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its former link may be dead and not known to be."""
    monkeypatch.setattr(server_module, "MAX_LINKS", 3)
    inbox = Inbox()
    async with serving(inbox) as (server, port):

        async def dial(incarnation: str) -> tuple[Link, Inbox]:
            ours = Inbox()
            hello = gateway_hello(incarnation=incarnation)
            return await Link.dial("127.0.0.1", port, hello, ours.receive, ours.close), ours

        first, *others = [await dial(f"g.{number}") for number in range(3)]
        await until(lambda: len(server.peers) == 3)
        again = await dial("g.0")
        await until(first[1].closed.is_set)
        one_too_many = await dial("g.3")
        await until(one_too_many[1].closed.is_set)
        assert sorted(peer.incarnation for peer in server.peers) == ["g.0", "g.1", "g.2"]
        again[0].send(Ping(5))
        await until(lambda: inbox.messages == [Ping(5)])
        assert not any(ours.closed.is_set() for _, ours in (again, *others))


async def test_a_namesake_that_is_refused_ends_nobody_s_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its incarnation is no secret; `on_open` looks at its session's."""
    inbox, ours, namesake = Inbox(), Inbox(), Inbox()
    async with serving(inbox) as (server, port):
        link = await Link.dial("127.0.0.1", port, gateway_hello(), ours.receive, ours.close)
        await until(lambda: inbox.opened)

        def refuse(peer: Peer) -> None:
            raise ProtocolError(f"{peer.incarnation} has another session secret")

        monkeypatch.setattr(server, "_on_open", refuse)
        await Link.dial("127.0.0.1", port, gateway_hello(), namesake.receive, namesake.close)
        await until(namesake.closed.is_set)
        link.send(Ping(1))
        await until(lambda: inbox.messages == [Ping(1)])


async def test_a_hello_that_comes_after_that_of_a_later_dial_ends_no_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The network held it back until the gateway had given that dial up and had dialled again."""
    inbox, ours, given_up = Inbox(), Inbox(), Inbox()
    sessions = Sessions()
    async with serving(inbox) as (server, port):
        monkeypatch.setattr(server, "_on_open", lambda peer: sessions.admit(peer.hello))
        later = replace(gateway_hello(), dial=2)
        link = await Link.dial("127.0.0.1", port, later, ours.receive, ours.close)
        await until(lambda: server.peers)
        former = replace(gateway_hello(), dial=1)
        await Link.dial("127.0.0.1", port, former, given_up.receive, given_up.close)
        await until(given_up.closed.is_set)
        link.send(Ping(1))
        await until(lambda: inbox.messages == [Ping(1)])
        assert not ours.closed.is_set()


async def test_dial_fails_cleanly_when_nobody_answers() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    inbox = Inbox()
    with pytest.raises(PeerLostError):
        await Link.dial("127.0.0.1", port, gateway_hello(), inbox.receive, inbox.close)


async def test_dial_refuses_a_peer_that_is_no_worker() -> None:
    inbox = Inbox()
    server = LinkServer(gateway_hello, inbox.receive, inbox.close)
    port = await server.start("127.0.0.1", 0)
    with pytest.raises(ProtocolError):
        await Link.dial("127.0.0.1", port, gateway_hello(), inbox.receive, inbox.close)
    await server.close()


async def test_server_death_is_noticed_at_once() -> None:
    ours, theirs = Inbox(), Inbox()
    server, port = await started(theirs)
    await Link.dial("127.0.0.1", port, gateway_hello(), ours.receive, ours.close)
    await server.close()
    async with asyncio.timeout(1):
        await ours.closed.wait()


async def test_a_dial_that_times_out_leaves_no_error_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A frozen worker accepts and says nothing."""
    monkeypatch.setattr(link_module, "DIAL_TIMEOUT_S", 0.05)
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    hung_up = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        hung_up.set()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    inbox = Inbox()
    with pytest.raises(PeerLostError):
        await Link.dial("127.0.0.1", port, gateway_hello(), inbox.receive, inbox.close)
    await asyncio.wait_for(hung_up.wait(), 5)
    server.close()
    assert errors == []
    assert not inbox.closed.is_set()


async def greeted(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A gateway of which this test writes and reads each byte, after HELLO."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await introduce(reader, writer, "link")
    writer.write(framed(encode(gateway_hello())))
    return reader, writer


async def test_what_a_worker_says_last_is_read_though_the_gateway_still_writes() -> None:
    inbox = Inbox()
    server, port = await started(inbox)
    reader, writer = await greeted(port)
    await until(lambda: inbox.opened)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    last_words = [framed(encode(Ping(number))) for number in range(50)]
    for number in range(50):
        inbox.opened[0].send(Ping(number))
    closing = asyncio.create_task(server.close())
    for _ in range(3):
        await asyncio.sleep(0.02)
        writer.write(framed(encode(Ping(0))))
    assert not closing.done(), "the gateway has not closed"
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    async with asyncio.timeout(5):
        assert (await reader.read()).endswith(b"".join(last_words))
        writer.close()
        await closing
    assert inbox.messages == [], "nobody hears what comes after the end"
    assert inbox.closed.is_set()


async def test_a_gateway_that_does_not_close_is_waited_for_as_long_as_the_caller_does() -> None:
    inbox = Inbox()
    server, port = await started(inbox)
    reader, writer = await greeted(port)
    await until(lambda: inbox.opened)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await server.close()
    await until(inbox.closed.is_set)
    writer.close()
    del reader
