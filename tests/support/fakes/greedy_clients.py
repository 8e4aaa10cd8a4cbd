"""Clients that take what they can get, for tests of what a gateway holds out.

    python -m tests.support.fakes.greedy_clients WHAT PORT NUMBER

    idle    connections that never ask
    bodies  4 MiB announced, all but the end sent
    texts   whole 4 MiB texts, then the client leaves

Says "there" once everything was sent or refused, and holds what it has until stdin closes.
"""

import asyncio
import contextlib
import json
import resource
import sys

BODY_BYTES = 4 * 2**20
AT_ONCE = 64
HOLD_S = 0.3
"""a client that asked for a text leaves after this"""

Held = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def idle(port: int) -> Held | None:
    return await asyncio.open_connection("127.0.0.1", port)


async def body(port: int) -> Held | None:
    """Everything but the last kilobyte."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await _send(writer, _head("/v1/chat/completions", BODY_BYTES) + b" " * (BODY_BYTES - 1024))
    return reader, writer


async def text(port: int) -> Held | None:
    """A body that costs most to read, and nobody who waits for the answer."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    empty = json.dumps({"prompt": ""}).encode()
    words = "the quick brown fox "
    prompt = words * ((BODY_BYTES - len(empty)) // len(words))
    content = json.dumps({"prompt": prompt}).encode()
    await _send(writer, _head("/tokenize", len(content)) + content)
    await asyncio.sleep(HOLD_S)
    writer.transport.abort()
    return None


def _head(path: str, num_bytes: int) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: x", "content-type: application/json"]
    return "\r\n".join([*lines, f"content-length: {num_bytes}", "", ""]).encode()


async def _send(writer: asyncio.StreamWriter, content: bytes) -> None:
    """As far as the gateway takes it."""
    with contextlib.suppress(ConnectionError):
        writer.write(content)
        await writer.drain()


async def main(kind: str, port: int, number: int) -> None:
    open_one = {"idle": idle, "bodies": body, "texts": text}[kind]
    turns = asyncio.Semaphore(AT_ONCE if kind == "idle" else number)

    async def one() -> Held | None:
        async with turns:
            with contextlib.suppress(OSError):
                return await open_one(port)
        return None

    held = await asyncio.gather(*(one() for _ in range(number)))
    sys.stdout.write(f"there {sum(one is not None for one in held)}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
