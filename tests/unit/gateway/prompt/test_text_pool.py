"""The text pool: same answers at once, in the thread and the process; one that hangs is killed."""

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from services.gateway.prompt.prepared import PreparedRequest, TokenList
from services.gateway.prompt.prompt_reader import PromptReader
from services.gateway.prompt.text_work import text_pool
from services.gateway.prompt.text_work.text_pool import (
    AT_ONCE_BODY_BYTES,
    THREAD_BODY_BYTES,
    TextPool,
)
from services.gateway.prompt.text_work.text_worker import Job, Reading, read_body
from shared.errors import AttemptError, RequestError
from shared.kv.block_hash import BlockHashing
from tests.support.cases.http_bodies import chat_body
from tests.support.models.text_models import (
    MODEL_NAME,
    byte_level_tokenizer,
    served_text_model,
    write_text_model,
)

pytestmark = pytest.mark.anyio
FORBIDDEN = ("fastapi", "starlette", "uvicorn", "pydantic", "torch", "redis", "transformers")


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[TextPool]:
    tokenizer = byte_level_tokenizer()
    directory = write_text_model(tmp_path, tokenizer)
    made = TextPool(directory, served_text_model(tokenizer, 100_000), BlockHashing(b"r" * 32, 16))
    yield made
    await made.close()


def padded(body: bytes) -> bytes:
    """The same JSON, long enough for the process."""
    return body + b" " * THREAD_BODY_BYTES


async def test_thread_and_process_agree(pool: TextPool) -> None:
    body = json.dumps(chat_body("hello " * 50, seed=7, stop=["x"], logprobs=True)).encode()
    small = await pool.read("chat", body, "default")
    assert small == await pool.read("chat", padded(body), "default")
    assert isinstance(small, PreparedRequest)
    (prompt,) = small.prompts
    assert len(prompt.block_hashes) == len(prompt.token_ids) // 16


async def test_the_loop_reads_small_bodies_for_half_of_its_time_at_most(
    pool: TextPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A burst goes to the threads, and so does all that is not small."""
    on_loop: list[bool] = []
    now_s, takes_s = [100.0], 0.01

    def read(reader: PromptReader, job: Job) -> Reading:
        on_loop.append(threading.current_thread() is threading.main_thread())
        now_s[0] += takes_s
        return read_body(reader, job)

    monkeypatch.setattr(text_pool, "read_body", read)
    monkeypatch.setattr(text_pool, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    small = json.dumps({"model": MODEL_NAME, "prompt": [5] * 4}).encode()
    for _ in range(4):
        await pool.read("text", small, "default")
    assert on_loop == [True, False, True, False]
    now_s[0] += 1.0
    large = small.ljust(AT_ONCE_BODY_BYTES + 1)
    for body in (large, small):
        await pool.read("text", body, "default")
    assert on_loop[4:] == [False, True]


async def test_a_small_body_that_is_wrong_counts_too(pool: TextPool) -> None:
    for _ in range(3):
        with pytest.raises(RequestError):
            await pool.read("text", b"{", "default")


async def test_workers_with_small_pools_shorten_the_context(tmp_path: Path) -> None:
    """What is left there bounds max_tokens, and the answer says so; a prompt that does not fit is
    refused and told why. In the thread and in the process."""
    tokenizer = byte_level_tokenizer()
    limits: list[int | None] = [None, 48, 10**6]
    pool = TextPool(
        write_text_model(tmp_path, tokenizer),
        served_text_model(tokenizer, 1000),
        BlockHashing(b"r" * 32, 16),
        workers_limit=lambda: limits[0],
    )
    open_end = json.dumps({"model": MODEL_NAME, "prompt": [5] * 40}).encode()
    too_much = json.dumps({"model": MODEL_NAME, "prompt": [5] * 40, "max_tokens": 9}).encode()
    too_long = json.dumps({"model": MODEL_NAME, "prompt": [5] * 49}).encode()
    for max_model_len in (1000, 48, 1000):
        assert pool.max_model_len == max_model_len
        for body in (open_end, padded(open_end)):
            prepared = await pool.read("text", body, "default")
            assert isinstance(prepared, PreparedRequest)
            assert prepared.sampling.max_tokens == max_model_len - 40
        if max_model_len == 48:
            for body in (too_much, padded(too_much)):
                prepared = await pool.read("text", body, "default")
                assert isinstance(prepared, PreparedRequest)
                assert prepared.sampling.max_tokens == 8
                assert prepared.clamped == "max_tokens=8"
            for body in (too_long, padded(too_long)):
                with pytest.raises(RequestError) as error:
                    await pool.read("text", body, "default")
                assert error.value.code == "context_length_exceeded"
                assert error.value.param == "prompt"
                assert "maximum context length is 48 tokens" in error.value.message
                assert "The workers' KV pools hold no more" in error.value.message
                assert "the model's own context is 1000" in error.value.message
        limits.pop(0)
        limits.append(None)
    await pool.close()


async def test_refusals_cross_the_process_unchanged(pool: TextPool) -> None:
    caught = []
    for body in (b'{"a": NaN}', padded(b'{"a": NaN}')):
        with pytest.raises(RequestError) as error:
            await pool.read("text", body, "default")
        caught.append(vars(error.value))
    assert caught[0] == caught[1]
    answer = await pool.read("tokenize", padded(b'{"prompt": "hello"}'), "default")
    assert isinstance(answer, TokenList)


async def test_a_body_that_takes_too_long_is_refused_and_the_next_one_is_read(
    pool: TextPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = padded(b'{"prompt": "hello"}')
    monkeypatch.setattr(pool._line, "_time_limit_s", 0.0)
    with pytest.raises(RequestError) as caught:
        await pool.read("tokenize", ready, "default")
    assert caught.value.code == "too_complex"
    monkeypatch.setattr(pool._line, "_time_limit_s", 30.0)
    assert isinstance(await pool.read("tokenize", ready, "default"), TokenList)


async def test_a_cancelled_read_does_not_leave_its_answer_to_the_next(pool: TextPool) -> None:
    first = asyncio.ensure_future(pool.read("tokenize", padded(b'{"prompt": "one"}'), "default"))
    await asyncio.sleep(0)
    first.cancel()
    answer = await pool.read("tokenize", padded(b'{"prompt": "two"}'), "default")
    assert isinstance(answer, TokenList)
    assert list(answer.token_ids) == pool.tokenizer.encode("two")


async def test_a_process_that_dies_is_an_error_and_is_replaced(
    pool: TextPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = padded(b'{"prompt": "hello"}')
    for process in pool._line._processes:
        monkeypatch.setattr(process, "module", "this.module.is.not.there")
    with pytest.raises(AttemptError):
        await pool.read("tokenize", body, "default")
    monkeypatch.undo()
    assert isinstance(await pool.read("tokenize", body, "default"), TokenList)


async def test_closing_leaves_no_process_that_was_being_replaced(pool: TextPool) -> None:
    body = padded(b'{"prompt": "hello"}')
    await pool.read("tokenize", body, "default")
    (process,) = text_processes()
    process.suspend()
    await pool.read("tokenize", body, "default")
    stuck = asyncio.ensure_future(pool.read("tokenize", body, "default"))
    await asyncio.sleep(0)
    stuck.cancel()
    await asyncio.sleep(0)
    await pool.close()
    await asyncio.wait({stuck})
    assert text_processes() == []


def text_processes() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [child for child in children if any("text_worker" in word for word in child.cmdline())]


async def test_the_process_imports_no_server_and_no_torch() -> None:
    """It would cost the memory of a second gateway."""
    probe = (
        "import sys; import services.gateway.prompt.text_work.text_worker; "
        f"sys.exit(', '.join(n for n in {FORBIDDEN!r} if n in sys.modules) or 0)"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", probe)
    assert await process.wait() == 0


async def test_tenants_have_names_of_their_own_for_the_same_blocks(pool: TextPool) -> None:
    body = json.dumps({"model": MODEL_NAME, "prompt": [5] * 40}).encode()
    hashes = []
    for each in (body, padded(body)):
        for tenant in ("a", "b"):
            prepared = await pool.read("text", each, tenant)
            assert isinstance(prepared, PreparedRequest)
            hashes.append(prepared.prompts[0].block_hashes)
    assert hashes[:2] == hashes[2:]
    assert not set(hashes[0]) & set(hashes[1])
