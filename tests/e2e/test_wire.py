"""One prefill and one decode worker with a proxy on the KV wire: bytes, damage, death, leaving."""

import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from shared.kv.layer_groups import layer_groups
from shared.kv.layout import KVLayout, num_blocks_for
from shared.transfer.blocks.manifest import Part
from shared.transfer.frames import (
    PREFIX_BYTES,
    Blocks,
    Open,
    Opened,
    ShortSeal,
    Verified,
    Verify,
    Watermark,
    unpack_publication,
)
from tests.e2e.cluster import Cluster, Stream, process_family, running
from tests.e2e.wire import KVProxy, ProxyThread, free_port
from tests.support.cpu_share import CpuShare
from tests.support.fakes.proxy import (
    BitFlip,
    Direction,
    PullPlan,
    SeenFrame,
    WireBytes,
    predicted_wire_bytes,
)
from tests.support.measured import Measured

CHUNK = 96
BLOCK_SIZE = 16
BLOCK_BYTES = 49_152
"""of the demo model: 2 (K, V) * 6 layers * 2 heads * 16 tokens * 32 numbers * 4 bytes"""
GROUPS = layer_groups(KVLayout("demo", "float32", 6, 2, 2, 32, BLOCK_SIZE))
LEASE_S = 3.0
RETURN_S = 0.5
PREFIX_FIELDS = (0, 4, 8, 12, 20, 24)
"""where magic, sequence, header length, payload length and the two CRCs begin"""


@dataclass
class Bed:
    cluster: Cluster
    proxy: KVProxy
    thread: ProxyThread
    num_prompts: int = 0

    def body(self, num_tokens: int, max_tokens: int = 8, **fields: Any) -> dict[str, Any]:
        """A request whose prompt shares no block with any before it."""
        self.num_prompts += 1
        rng = random.Random(self.num_prompts)  # noqa: S311
        prompt = [rng.randrange(1000, 4000) for _ in range(num_tokens)]
        body = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}
        return {**body, **fields}

    def moved(self, stream: Stream) -> dict[str, Any]:
        """The receipt of a request, once the hand-over's report is in it."""
        self.cluster.wait(lambda: self.cluster.receipt(stream.rid)["bytes"])
        return self.cluster.receipt(stream.rid)

    def worker(self, role: str) -> dict[str, Any]:
        (worker,) = self.cluster.workers(role)
        return worker


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    thread = ProxyThread()
    with free_port() as port:
        proxy = KVProxy(f"127.0.0.1:{port}")
        environment = {
            "BATON_TRANSPORT": "tcp",
            "BATON_TRANSFER_PORT": str(port),
            "BATON_TRANSFER_ADVERTISE": thread.run(proxy.start()),
            "BATON_MAX_NUM_BATCHED_TOKENS": str(CHUNK),
            "BATON_LEASE_S": str(LEASE_S),
        }
        folder: Path = tmp_path_factory.mktemp("wire")
        with running(folder, "--kv-blocks", "512", **environment) as cluster:
            yield Bed(cluster, proxy, thread)
        thread.run(proxy.close())
        thread.close()


@pytest.fixture(autouse=True)
def quiet(bed: Bed) -> None:
    """Both workers ready, nothing held, an empty record."""

    def ready() -> bool:
        return [worker["state"] for worker in bed.cluster.workers()] == ["ready"] * 2

    bed.cluster.wait(ready, 60)
    bed.cluster.wait_blocks_back()
    bed.proxy.forget()


@pytest.mark.parametrize("num_tokens", [5, 200, 333])
def test_bytes_on_the_wire_are_the_predicted_ones(bed: Bed, num_tokens: int) -> None:
    before = bed.cluster.metric("baton_kv_transfer_bytes_total")
    receipt = bed.moved(bed.cluster.answer(bed.body(num_tokens, logprobs=None)))
    num_blocks = num_blocks_for(num_tokens, BLOCK_SIZE)
    assert receipt["blocks"] == num_blocks
    assert receipt["bytes"] == num_blocks * BLOCK_BYTES
    wire = bed.proxy.num_bytes
    assert WireBytes(wire["to_server"], wire["to_client"]) == predicted(bed, num_tokens)
    moved = before + num_blocks * BLOCK_BYTES
    bed.cluster.wait(lambda: bed.cluster.metric("baton_kv_transfer_bytes_total") == moved)


def predicted(bed: Bed, num_tokens: int) -> WireBytes:
    """From the prompt's length. Ids and token 1 are read from the wire for their width only, and
    which layer groups were published together: all that were written by then are."""
    (opened,) = only(bed, "to_server", Open)
    (sealed,) = only(bed, "to_client", ShortSeal)
    assert isinstance(opened.frame, Open)
    assert isinstance(sealed.frame, ShortSeal)
    ends = [*range(CHUNK, num_tokens, CHUNK), num_tokens]
    blocks = [num_blocks_for(end, BLOCK_SIZE) for end in ends]
    published = [published_part(seen) for seen in only(bed, "to_client", Watermark)]
    assert [
        (first, num, group)
        for first, num, groups in published
        for group in range(groups.first, groups.end)
    ] == [
        (start, end - start, group)
        for start, end in pairwise([0, *blocks])
        for group in range(len(GROUPS))
    ]
    return predicted_wire_bytes(
        PullPlan(
            opened.frame,
            tuple(published),
            GROUPS,
            sealed.frame.run,
            renew_every_ms=round(LEASE_S / 3 * 1000),
        )
    )


def published_part(seen: SeenFrame) -> Part:
    assert isinstance(seen.frame, Watermark)
    return unpack_publication(seen.frame).part


def only(bed: Bed, direction: Direction, kind: type) -> list[SeenFrame]:
    return [seen for seen in bed.proxy.frames(direction) if isinstance(seen.frame, kind)]


def test_a_flipped_bit_in_any_field_is_detected_and_the_stream_is_right(bed: Bed) -> None:
    """Every field of the prefix, the header and the payload of a KV frame, and the header of
    each other kind. Offsets come from an undisturbed pull of the same shape."""
    assert not is_detected(bed, bed.cluster.answer(bed.body(50)))
    flips = [
        BitFlip("to_client", blocks.start + field, 3)
        for blocks in only(bed, "to_client", Blocks)
        for field in (*PREFIX_FIELDS, PREFIX_BYTES + 9, PREFIX_BYTES + blocks.header_bytes + 7)
    ]
    others: list[tuple[Direction, type]] = [
        ("to_server", Open),
        ("to_server", Verify),
        ("to_client", Opened),
        ("to_client", Watermark),
        ("to_client", ShortSeal),
        ("to_client", Verified),
    ]
    flips += [
        BitFlip(direction, seen.start + PREFIX_BYTES + seen.header_bytes // 2, 6)
        for direction, kind in others
        for seen in only(bed, direction, kind)
    ]
    num_published = len(only(bed, "to_client", Watermark))
    assert 1 <= num_published <= len(GROUPS)
    assert len(flips) == num_published * (8 + 1) + 5
    bodies = [bed.body(50) for _ in flips]
    damaged = [answer_with(bed, body, flip) for body, flip in zip(bodies, flips, strict=True)]
    assert [stream for stream in damaged if not stream.complete] == []
    for stream, flip in zip(damaged, flips, strict=True):
        assert is_detected(bed, stream), flip
    again = bed.cluster.answers(bodies)
    assert [stream.answer for stream in damaged] == [stream.answer for stream in again]


def answer_with(bed: Bed, body: dict[str, Any], flip: BitFlip) -> Stream:
    bed.proxy.forget()
    bed.proxy.flip = flip
    stream = bed.cluster.answer(body)
    assert bed.proxy.num_flipped == 1, flip
    return stream


def is_detected(bed: Bed, stream: Stream) -> bool:
    """Another attempt, or a block that was read again."""
    receipt = bed.moved(stream)
    reread = [
        stage["attributes"].get("baton.kv_transfer.blocks_read_again", 0)
        for stage in receipt["stages"]
    ]
    return len(receipt["attempts"]) == 2 or sum(reread) == 1


def test_prefill_killed_between_the_first_piece_and_seal(bed: Bed) -> None:
    body = bed.body(2000)
    victim = bed.worker("prefill")

    def kill_once(direction: Direction) -> None:
        """In the proxy: the first KV block has left prefill and has not reached decode, which
        hears of the death from the gateway only."""
        if only(bed, "to_client", Blocks):
            bed.proxy.gate.clear()
            bed.proxy.passed = lambda _: None
            os.kill(victim["pid"], signal.SIGKILL)

    bed.proxy.passed = kill_once
    stream = bed.cluster.answer(body)
    bed.thread.call(bed.proxy.gate.set)
    assert stream.complete, stream
    assert only(bed, "to_client", Watermark) != []
    assert only(bed, "to_client", ShortSeal) == []
    attempts = bed.cluster.receipt(stream.rid)["attempts"]
    assert [attempt["mode"] for attempt in attempts] == ["prefill", "local"]
    assert attempts[1]["reason"] == "no_prefill_worker"
    bed.cluster.wait(lambda: replaced(bed, victim), 60)
    bed.cluster.wait_blocks_back()
    again = bed.cluster.answer(body)
    assert again.answer == stream.answer
    assert len(bed.cluster.receipt(again.rid)["attempts"]) == 1


def replaced(bed: Bed, victim: dict[str, Any]) -> bool:
    """The worker is back as another incarnation, and nothing is left of the old one."""
    workers = bed.cluster.workers(victim["role"])
    states = [worker["state"] for worker in workers]
    return states == ["ready"] and workers[0]["incarnation"] != victim["incarnation"]


@pytest.mark.parametrize("role", ["decode", "prefill"])
def test_the_only_worker_of_a_role_killed_under_a_stream(bed: Bed, role: str) -> None:
    """Without decode the stream waits for the restarted one; without prefill it goes on."""
    body = bed.body(100, max_tokens=40, temperature=0.8, seed=7)
    victim = bed.worker(role)
    with bed.cluster.streams([body]) as streams:
        streams.wait_tokens(5, num_streams=1)
        os.kill(victim["pid"], signal.SIGKILL)
        (stream,) = streams.wait(90)
    assert stream.complete, stream
    attempts = bed.cluster.receipt(stream.rid)["attempts"]
    assert (len(attempts) == 1) == (role == "prefill"), attempts
    bed.cluster.wait(lambda: replaced(bed, victim), 60)
    assert bed.cluster.answer(body).answer == stream.answer


@pytest.mark.clock
@pytest.mark.parametrize("stage", ["queue", "prefill", "transfer", "decode"])
def test_a_client_that_leaves_frees_its_blocks(bed: Bed, stage: str, measured: Measured) -> None:
    """Soon, on an idle machine: time in which others had the CPU does not count."""
    bodies = [bed.body(3000 if stage in ("queue", "prefill") else 100, max_tokens=200)]
    if stage == "queue":
        bodies += [bed.body(500)]
    if stage == "transfer":
        bed.thread.call(bed.proxy.gate.clear)
    with bed.cluster.streams(bodies) as streams:
        bed.cluster.wait(lambda: reached(bed, stage, streams.seen[0]))
        num_live = len(bodies) - 1
        processes = process_family(bed.cluster.supervisor.pid)
        streams.close(num_live)
        left_s, cpu = time.monotonic(), CpuShare(processes)
        if stage == "queue":
            bed.cluster.wait(lambda: num_requests(bed) == num_live)
            streams.close(0)
            left_s, cpu = time.monotonic(), CpuShare(processes)
        bed.cluster.wait_blocks_back()
        bed.cluster.wait(lambda: num_requests(bed) == 0)
        took_s, share = time.monotonic() - left_s, cpu.left()
        what = f"everything back after {took_s:.3f} s, times the share {share:.2f} of the CPU"
        measured.at_most(what, took_s * share, RETURN_S, "s")
    bed.thread.call(bed.proxy.gate.set)
    assert bed.cluster.answer(bed.body(20)).complete


def reached(bed: Bed, stage: str, stream: Stream) -> bool:
    prefill, decode = bed.worker("prefill"), bed.worker("decode")
    match stage:
        case "queue":
            return bool(prefill["running"] == 1 and num_requests(bed) == 2)
        case "prefill":
            return bool(prefill["running"] == 1 and prefill["kv"]["held"] > 0)
        case "transfer":
            asked = bed.proxy.num_bytes["to_client"] > 0
            return bool(asked and prefill["running"] == 0 and decode["kv"]["held"] > 0)
        case _:
            return len(stream.tokens) > 5


def num_requests(bed: Bed) -> int:
    return int(bed.cluster.status()["requests"]["live"])
