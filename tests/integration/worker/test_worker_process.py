"""A real worker: it registers, says what its engine died of, drains and leaves."""

import asyncio
import gzip
import json
import logging
import re
import signal
import socket
from contextlib import closing
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import psutil
import pytest

from shared.challenge import Challenge
from shared.engine.running.step_trace import NUM_STEPS
from shared.errors import PeerLostError
from shared.protocol import (
    SPOKEN,
    Attempt,
    Fail,
    Handback,
    Ping,
    Pong,
    Refuse,
    Start,
    Tokens,
)
from shared.state.keys import Keys
from shared.state.redis_client import RedisClient
from shared.state.redis_registry import RedisWorkerRegistry
from shared.state.registry import WorkerEntry
from shared.transfer.failure import raise_refusal
from shared.transfer.frame_stream import FrameStream
from shared.transfer.frames import Open, Seal
from tests.integration.worker.conftest import Serve
from tests.support.measured import Measured
from tests.support.pairs.worker_process import (
    WorkerLink,
    WorkerProcess,
    all_entries,
    is_gone,
    local_prompt,
    maps_of,
    prompt_with,
    rss_mib,
    wait_for,
)

logger = logging.getLogger(__name__)
pytestmark = pytest.mark.anyio
TOGETHER_S = 2.0
"""an engine outlives its io process at most this long"""


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_worker_registers_and_answers(
    serve: Serve, redis_url: str, role: str, measured: Measured
) -> None:
    worker = serve(role)
    entry = await worker.entry(redis_url)
    assert (entry.role, entry.host, entry.block_size) == (role, "127.0.0.1", 16)
    assert entry.incarnation.startswith(f"{worker.worker_id}.")
    link = await WorkerLink.dial(entry)
    assert link.link is not None
    address = link.link.peer.transfer_address
    assert address, "a decode worker hands over when it drains"
    wait_for(lambda: "ready: registered" in worker.errors() or None)
    said = f"gateways dial 127.0.0.1:{entry.port}, decode workers pull KV from {address}\n"
    assert said in worker.errors()
    link.send(Ping(7))
    pong = await link.take(Pong)
    assert (pong.seq, pong.load.total, pong.load.state) == (7, 64, "ready")
    assert all(cost > 0 for cost in pong.load.step_costs), "its trial seeded them"
    engine = worker.engine()
    assert "libtorch" not in maps_of(worker.io.pid)
    assert "libtorch" in maps_of(engine.pid)
    sizes = {"io": rss_mib(worker.io.pid), "engine": rss_mib(engine.pid)}
    logger.info("%s worker: %.0f MiB io, %.0f MiB engine", role, sizes["io"], sizes["engine"])
    measured.at_most("memory of io", sizes["io"], 150, "MiB")
    measured.at_most("memory of io and engine", sum(sizes.values()), 700, "MiB")
    await link.close()


async def test_a_worker_that_is_asked_for_a_trace_serves_on(serve: Serve, redis_url: str) -> None:
    worker = serve("decode")
    link, entry = await dialled(worker, redis_url)
    worker.io.send_signal(signal.SIGUSR2)
    link.send(local_prompt(entry.incarnation, "r", max_tokens=NUM_STEPS + 9))
    tokens: list[int] = []
    while len(tokens) < NUM_STEPS + 9:
        tokens += [token for run in (await link.take(Tokens)).runs for token in run.token_ids]
    said = wait_for(lambda: re.search(r"a trace of \d+ steps: (\S+)", worker.errors()))
    assert taken_trace(Path(said[1]))["traceEvents"]
    await link.close()


def taken_trace(path: Path) -> dict[str, Any]:
    """What was in the file, which then is gone."""
    with gzip.open(path) as file:
        trace: dict[str, Any] = json.load(file)
    path.unlink()
    return trace


async def test_a_kill_from_outside_is_nobodys_fault(serve: Serve, redis_url: str) -> None:
    """The gateway gets its requests back without a strike, and a decode worker that pulls from
    here sees a source that is lost, not an offer that was withdrawn: the death is told once, and
    nobody else is blamed for it."""
    worker = serve("prefill")
    entry = await worker.entry(redis_url)
    link = await WorkerLink.dial(entry)
    assert link.link is not None
    prompt = replace(
        local_prompt(entry.incarnation, "r", max_tokens=9), mode="prefill", ticket="secret"
    )
    link.send(prompt)
    await link.take(Tokens)
    host, _, port = link.link.peer.transfer_address.port.rpartition(":")
    fingerprint = entry.pool.rpartition(":")[2]
    with closing(FrameStream(socket.create_connection((host, int(port))), 20.0)) as reader:
        await reader.introduce(Challenge("", "pull", SPOKEN, dials=True))
        await reader.send(Open(Attempt("r", 0), "secret", entry.incarnation, fingerprint))
        while not isinstance((await reader.receive())[0], Seal):
            pass
        worker.engine().kill()
        assert (await link.take(Handback)).reason == "killed"
        with pytest.raises(PeerLostError):
            refused, _ = await reader.receive()
            raise_refusal(refused.reason)  # type: ignore[union-attr]


async def test_an_engine_that_dies_by_itself_leaves_word_of_what_it_computed(
    serve: Serve, redis_url: str
) -> None:
    """What ran with the deadly token is told apart from what waited."""
    worker = serve(planted_faults="crash=100", max_num_seqs=2)
    link, entry = await dialled(worker, redis_url)
    for rid in ("runs", "deadly", "waits"):
        link.send(prompt_with(entry.incarnation, rid, 100 if rid == "deadly" else 99))
        if rid == "runs":
            await link.take(Tokens)
    ended = [await link.take_any(Fail, Handback) for _ in range(3)]
    fails = {end.attempt.rid: end for end in ended if isinstance(end, Fail)}
    assert fails.keys() == {"runs", "deadly"}
    assert all(end.own_fault and not end.alone for end in fails.values())
    assert "status -11" in fails["runs"].message
    (back,) = [end for end in ended if isinstance(end, Handback)]
    assert (back.attempt.rid, back.reason) == ("waits", "engine_died")
    await link.closed.wait()


async def test_an_engine_that_dies_in_a_step_of_one_blames_that_one(
    serve: Serve, redis_url: str
) -> None:
    worker = serve(planted_faults="crash=100")
    link, entry = await dialled(worker, redis_url)
    link.send(prompt_with(entry.incarnation, "runs", 99))
    await link.take(Tokens)
    link.send(prompt_with(entry.incarnation, "deadly", 100, alone=True))
    ended = [await link.take_any(Fail, Handback) for _ in range(2)]
    (fail,) = [end for end in ended if isinstance(end, Fail)]
    assert fail.attempt.rid == "deadly" and fail.own_fault and fail.alone
    (back,) = [end for end in ended if isinstance(end, Handback)]
    assert (back.attempt.rid, back.reason) == ("runs", "engine_died")
    await link.close()


async def dialled(worker: WorkerProcess, redis_url: str) -> tuple[WorkerLink, WorkerEntry]:
    entry = await worker.entry(redis_url)
    return await WorkerLink.dial(entry), entry


async def test_the_engine_ends_with_its_io_process(serve: Serve, redis_url: str) -> None:
    worker = serve("prefill")
    await worker.entry(redis_url)
    engine = worker.engine()
    worker.io.kill()
    wait_for(lambda: is_gone(engine), TOGETHER_S)


async def test_sigterm_finishes_what_runs_and_refuses_what_is_new(
    serve: Serve, redis_url: str
) -> None:
    worker = serve()
    entry = await worker.entry(redis_url)
    engine = worker.engine()
    link = await WorkerLink.dial(entry)
    link.send(local_prompt(entry.incarnation, "runs", max_tokens=400))
    await link.take(Start)
    worker.io.send_signal(signal.SIGTERM)
    tokens: list[int] = []
    reason, asked = None, False
    while reason is None:
        frame = await link.take(Tokens)
        tokens += [token for run in frame.runs for token in run.token_ids]
        reason = frame.runs[-1].finish_reason
        if frame.load.state == "draining" and not asked:
            asked = True
            link.send(local_prompt(entry.incarnation, "late", max_tokens=1))
            refusal = await link.take_aside(Refuse)
            assert (refusal.attempt.rid, refusal.reason) == ("late", "draining")
    assert asked and (reason, len(tokens)) == ("length", 400)
    assert worker.wait(10) == 0 and is_gone(engine)
    assert "error" not in worker.errors().lower()


async def test_a_worker_drains_as_long_as_it_is_asked_to(serve: Serve, redis_url: str) -> None:
    """What runs goes on; what is new is refused, and taken again 2 s after the asking ended."""
    worker = serve()
    entry = await worker.entry(redis_url)
    link = await WorkerLink.dial(entry)
    async with RedisClient(redis_url) as client:
        registry = RedisWorkerRegistry(client, Keys())
        link.send(local_prompt(entry.incarnation, "runs", max_tokens=900))
        await link.take(Start)
        await registry.drain(entry.pool, entry.incarnation, 30)
        await says(link, "draining")
        link.send(local_prompt(entry.incarnation, "late", max_tokens=1))
        assert (await link.take_aside(Refuse)).reason == "draining"
        (listed,) = await registry.list(entry.pool)
        assert listed.step_tokens > 0 and listed.load is not None
        assert await link.take_aside(Tokens), "what ran went on"
        await registry.drain(entry.pool, entry.incarnation, 0)
        await says(link, "ready")
        link.send(local_prompt(entry.incarnation, "later", max_tokens=1))
        assert (await link.take_aside(Start)).attempt.rid == "later"
    await link.close()


async def says(link: WorkerLink, state: str) -> None:
    """Within 2 s: a worker registers every second."""
    async with asyncio.timeout(2):
        while True:
            link.send(Ping(1))
            if (await link.take_aside(Pong)).load.state == state:
                return
            await asyncio.sleep(0.05)


async def test_what_outlasts_the_drain_is_handed_back(serve: Serve, redis_url: str) -> None:
    """Not a strike (R10): the gateway goes on with it elsewhere."""
    worker = serve(drain_s=0.1)
    entry = await worker.entry(redis_url)
    link = await WorkerLink.dial(entry)
    link.send(local_prompt(entry.incarnation, "long", max_tokens=900))
    await link.take(Tokens)
    worker.io.send_signal(signal.SIGTERM)
    returned = await link.take(Handback)
    assert (returned.attempt.rid, returned.reason) == ("long", "draining")
    assert worker.wait(10) == 0


async def test_a_worker_leaves_the_registry_when_it_stops(serve: Serve, redis_url: str) -> None:
    worker = serve()
    entry = await worker.entry(redis_url)
    worker.io.terminate()
    assert worker.wait(10) == 0
    async with RedisClient(redis_url) as client:
        entries = await all_entries(RedisWorkerRegistry(client, Keys()))
    assert entry.incarnation not in {item.incarnation for item in entries}


async def test_a_restarted_worker_is_somebody_else(serve: Serve, redis_url: str) -> None:
    first = serve()
    old = await first.entry(redis_url)
    first.io.kill()
    second = serve(worker_id=first.worker_id)
    new = await second.entry(redis_url)
    assert (old.worker_id, old.pool) == (new.worker_id, new.pool)
    assert old.incarnation != new.incarnation
    link = await WorkerLink.dial(new)
    link.send(local_prompt(old.incarnation, "r", max_tokens=2))
    refusal = await link.take(Refuse)
    assert (refusal.attempt.rid, refusal.incarnation, refusal.reason) == (
        "r",
        new.incarnation,
        "incarnation",
    )
    await link.close()


@pytest.mark.parametrize("still_owned", [False, True])
async def test_a_gateway_that_dials_again_keeps_only_what_it_names(
    serve: Serve, redis_url: str, still_owned: bool
) -> None:
    entry = await serve().entry(redis_url)
    first = await WorkerLink.dial(entry, "gateway.1")
    first.send(local_prompt(entry.incarnation, "r", max_tokens=900))
    await first.take(Start)
    live = (Attempt("r", 0),) if still_owned else ()
    second = await WorkerLink.dial(entry, "gateway.1", live)
    second.send(Ping(1))  # answered once the worker knows the new link: `first` must not end before
    await second.take_aside(Pong)
    if still_owned:
        await first.close()
        tokens = await second.take(Tokens)
        assert tokens.runs[0].rid == "r"
    held = None
    while held is None or bool(held) != still_owned:
        second.send(Ping(1))
        held = (await second.take(Pong)).load.held
    await second.close()
    await first.close()


async def test_who_only_knows_a_gateway_s_incarnation_gets_none_of_its_tokens(
    serve: Serve, redis_url: str
) -> None:
    entry = await serve().entry(redis_url)
    owner = await WorkerLink.dial(entry, "gateway.1", session="its secret")
    owner.send(local_prompt(entry.incarnation, "r", max_tokens=400))
    await owner.take(Start)
    thief = await WorkerLink.dial(entry, "gateway.1", session="a guess")
    async with asyncio.timeout(10):
        await thief.closed.wait()
    assert thief.messages.empty()
    while (await owner.take(Tokens)).runs[0].index < 50:
        pass
    await owner.close()


async def test_what_an_engine_cannot_compute_is_refused_and_the_worker_lives(
    serve: Serve, redis_url: str
) -> None:
    entry = await serve().entry(redis_url)
    link = await WorkerLink.dial(entry)
    good = local_prompt(entry.incarnation, "good", max_tokens=2)
    for change in (
        {"token_ids": (2**31, *good.work.token_ids[1:])},
        {"num_prompt_tokens": 10**6},
        {"sampling": replace(good.work.sampling, temperature=nan)},
        {"sampling": replace(good.work.sampling, logit_bias=((10**6, 1.0),))},
        {"hash_root": b""},
    ):
        bad = replace(good.work, attempt=Attempt("bad", 0), **change)
        link.send(replace(good, work=bad))
        refuse = await link.take(Refuse)
        assert (refuse.attempt.rid, refuse.reason) == ("bad", "invalid")
        assert next(iter(change)) in refuse.text
    link.send(good)
    assert (await link.take(Tokens)).runs[0].rid == "good"
    link.send(Ping(1))
    assert (await link.take(Pong)).counters["refusals:invalid"] == 5
    await link.close()


async def test_sigterm_while_the_model_loads_is_a_clean_stop(serve: Serve) -> None:
    worker = serve()
    engine = worker.engine()
    worker.io.terminate()
    assert worker.wait(10) == 0
    assert is_gone(engine) and worker.errors() == ""


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ({"model": "/nowhere/model"}, "nowhere"),
        ({"max_num_batched_tokens": 8}, "max_num_batched_tokens"),
        ({"redis": "embedded"}, "redis"),
        (
            {"transport": "mapped", "transfer_dir": "/dev/null/kv"},
            "--transfer-dir: cannot make /dev/null/kv: Not a directory",
        ),
        ({"transport": "mapped", "transfer_port": 9001}, "--transfer-port has no meaning with"),
    ],
    ids=["bad-model", "bad-engine-setting", "embedded-redis", "bad-folder", "mapped-port"],
)
async def test_what_cannot_start_says_so_in_one_line(
    serve: Serve, flags: dict[str, object], word: str
) -> None:
    worker = serve(**flags)
    assert worker.wait(30) == 2
    [line] = worker.error_lines()
    assert word in line and "Traceback" not in worker.errors()
    assert not psutil.pid_exists(worker.io.pid) or is_gone(psutil.Process(worker.io.pid))
