"""The gateway on real sockets: what it adds to a token's time, and what a token costs.

Every token is followed from the moment its worker's frame is encoded to the read that brings it.
CPU is the gateway's own, taken from the kernel while all streams are open; latencies hold only on
a machine that is otherwise idle. Whether it was is measured too: how long the gateway was ready to
run and had no core, and how late the client itself was. A gateway that stands still of itself
waits for no core.
"""

import asyncio
import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from time import monotonic_ns

from services.cli.bench.gateway.cell import MeasuredCell
from services.cli.bench.gateway.stream_reader import ReadStream, open_streams, read_to_end
from services.cli.bench.measure.cpu_time import (
    MAX_WAIT_SHARE,
    CpuTime,
    apart,
    cpu_time,
    stolen_s,
)
from services.cli.bench.measure.loop_lag import LoopLag
from services.cli.bench.measure.quantiles import Distribution
from shared.errors import BatonError

EDGE_TOKENS = 8
"""first and last tokens of a stream are not looked at: others begin or end then"""
OPEN_LIMIT_S = 60.0
MAX_LATE_SHARE = 0.1
"""of the time, by the client, or of a core, to other machines of the host"""
MAX_LATE_S = 0.02
"""of the client, at p99"""
MERGED = 1.5
"""more tokens in a mean chunk: the gateway got to its streams only now and then"""
STALL_S = 0.1
"""of added latency at p99"""
FULL_CORE = 0.9
_POLL_S = 0.1


@dataclass(frozen=True)
class StreamLoad:
    """How many streams get tokens, and how fast."""

    num_streams: int
    num_tokens: int
    step_ms: float


@dataclass(frozen=True)
class StreamCost:
    """What a load did to the gateway, and to those that made it."""

    load: StreamLoad
    added_s: Distribution
    """frame encoded to chunk read, per token"""
    num_tokens: int
    num_events: int
    """within the window"""
    window_s: float
    gateway: CpuTime
    client_share: float
    workers_share: float
    """of a core"""
    client_late: Distribution
    """of a timer in the client, per tick"""
    stolen_s: float
    own_core: bool
    failed: tuple[str, ...]

    @property
    def tokens_per_event(self) -> float:
        return self.num_tokens / max(self.num_events, 1)

    @property
    def events_per_core(self) -> float:
        """Per second of the gateway's CPU."""
        return self.num_events / self.gateway.total_s

    @property
    def us_per_event(self) -> float:
        return self.gateway.total_s * 1e6 / max(self.num_events, 1)

    @property
    def system_us_per_event(self) -> float:
        """In the kernel: nearly all of it writes to sockets."""
        return self.gateway.system_s * 1e6 / max(self.num_events, 1)

    @property
    def fault(self) -> str:
        """Why the machine or the client, not the gateway, was measured; empty if it was not."""
        if not self.num_tokens:
            return "the first streams were over before the last had opened: make them longer"
        late, waited = self.client_late, self.gateway.waited_s / self.window_s
        if waited > MAX_WAIT_SHARE:
            return f"the gateway was ready to run but had no core {waited:.0%} of the time"
        if (stolen := self.stolen_s / self.window_s) > MAX_LATE_SHARE:
            return f"the host gave {stolen:.0%} of a core's time to others"
        if late.tail > MAX_LATE_S:
            return f"the client read late: p99 {late.tail * 1e3:.0f} ms"
        if (share := sum(late.ordered) / self.window_s) > MAX_LATE_SHARE:
            return f"the client was late {share:.0%} of the time"
        return ""

    @property
    def stall(self) -> str:
        """How the gateway, having a core, fell behind its streams; empty if it did not."""
        behind = self.tokens_per_event > MERGED or self.added_s.tail > STALL_S
        if self.fault or not behind:
            return ""
        busy = self.gateway.total_s / self.window_s
        why = "was overloaded" if busy > FULL_CORE else "stood still now and then"
        return (
            f"; the gateway {why}: it had a core, used {busy:.0%} of it and the client was in time"
        )

    @property
    def circumstances(self) -> str:
        core = "a core of its own" if self.own_core else "one core shared with the load"
        waited = self.gateway.waited_s / self.window_s
        return (
            f"{self.load.num_streams} streams, a token each {self.load.step_ms:g} ms; gateway on "
            f"{core}, busy {self.gateway.total_s / self.window_s:.0%} of the time and without it "
            f"{waited:.0%}; of the other core the "
            f"client used {self.client_share:.0%}, the workers {self.workers_share:.0%}; "
            f"client late by {self.client_late.tail * 1e3:.1f} ms (p99); "
            f"{self.tokens_per_event:.2f} tokens per chunk{self.stall}"
        )


async def measure_streams(cell: MeasuredCell, load: StreamLoad, *, pin: bool = True) -> StreamCost:
    """Opens all streams, reads them to their ends."""
    cell.sent_times()
    cell.tell_workers(step_ms=load.step_ms)
    redis_pid = cell.redis.pid
    own, others = os.getpid(), (os.getpid(), cell.workers_pid, redis_pid)
    gc.disable()
    try:
        with apart(cell.gateway_pid, others) if pin else nullcontext(False) as own_core:
            streams = await open_streams(cell, load.num_streams, load.num_tokens)
            await _all_open(streams)
            pids = (cell.gateway_pid, own, cell.workers_pid)
            lag = LoopLag()
            lag.start()
            stolen_before_s = stolen_s()
            start_ns, before = monotonic_ns(), [cpu_time(pid) for pid in pids]
            await _until_one_nears_its_end(streams, load.num_tokens)
            end_ns, after = monotonic_ns(), [cpu_time(pid) for pid in pids]
            stolen_after_s = stolen_s()
            lag.stop()
            await read_to_end(streams)
    finally:
        gc.enable()
    used = [late - early for late, early in zip(after, before, strict=True)]
    window_s = (end_ns - start_ns) / 1e9
    reads = [read for stream in streams for read in _reads(stream, start_ns, end_ns)]
    return StreamCost(
        load=load,
        added_s=Distribution.of(_added(streams, cell.sent_times(), start_ns, end_ns)),
        num_tokens=sum(tokens for tokens, _ in reads),
        num_events=sum(events for _, events in reads),
        window_s=window_s,
        gateway=used[0],
        client_share=used[1].total_s / window_s,
        workers_share=used[2].total_s / window_s,
        client_late=Distribution.of(lag.late_s),
        stolen_s=stolen_after_s - stolen_before_s,
        own_core=own_core,
        failed=tuple(stream.failed for stream in streams if stream.failed),
    )


def _added(
    streams: Sequence[ReadStream], sent: dict[str, list[int]], start_ns: int, end_ns: int
) -> Iterator[float]:
    """Of each token within the window. The first has two senders and is left out."""
    for stream in streams:
        times_ns = sent.get(stream.rid, [])
        if stream.num_tokens != len(times_ns):
            continue  # failed, or a read cut a token's text in two
        at = 0
        for now_ns, num in zip(stream.times_ns, stream.tokens, strict=True):
            for index in range(at, at + num):
                if index and start_ns <= now_ns <= end_ns:
                    yield (now_ns - times_ns[index]) / 1e9
            at += num


def _reads(stream: ReadStream, start_ns: int, end_ns: int) -> Iterator[tuple[int, int]]:
    for now_ns, tokens, events in zip(stream.times_ns, stream.tokens, stream.events, strict=True):
        if start_ns <= now_ns <= end_ns:
            yield tokens, events


async def _all_open(streams: Sequence[ReadStream]) -> None:
    try:
        async with asyncio.timeout(OPEN_LIMIT_S):
            while any(  # noqa: ASYNC110 -- looking now and then costs the readers least
                s.num_tokens < EDGE_TOKENS and not s.failed for s in streams
            ):
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        failed = [stream.failed for stream in streams if stream.failed]
        raise BatonError(f"the streams did not begin; {len(failed)} failed {failed[:1]}") from None


async def _until_one_nears_its_end(streams: Sequence[ReadStream], num_tokens: int) -> None:
    def healthy() -> list[ReadStream]:
        return [stream for stream in streams if not stream.failed]

    while (left := healthy()) and all(  # noqa: ASYNC110 -- see above
        s.num_tokens < num_tokens - EDGE_TOKENS for s in left
    ):
        await asyncio.sleep(_POLL_S)
