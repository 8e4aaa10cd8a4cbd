"""From a request's body to its first chunk's schedule on an idle worker, and what of it Redis
sees."""

import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from services.cli.bench.gateway.cell import MeasuredCell
from services.cli.bench.measure.quantiles import Distribution
from shared.errors import BatonError
from shared.state.embedded import EmbeddedRedis
from shared.state.redis_records import FINISH, MARK

PROMPT = tuple(range(300, 500))
NUM_WARM = 20
_LUA = "lua]"
_SEEN_LIMIT_S = 5.0
_POLL_S = 0.01


def dispatch_times(cell: MeasuredCell, num_requests: int) -> Distribution:
    """Seconds, by the gateway's own receipts; one request after the other."""
    _warm_up(cell)
    rids = [cell.complete(PROMPT, 1) for _ in range(num_requests)]
    receipts = [cell.ask(f"/v1/baton/requests/{rid}")[1] for rid in rids]
    return Distribution.of((one["started_ns"] - one["received_ns"]) / 1e9 for one in receipts)


@dataclass(frozen=True)
class RedisTrips:
    """Commands that Redis got from outside while requests ran."""

    num_requests: int
    about_requests: int
    """that name one of them"""
    others: int
    """beats (which name whoever is alive), polls, registrations: they come with time"""

    @property
    def per_request(self) -> float:
        return self.about_requests / self.num_requests


def redis_trips(cell: MeasuredCell, num_requests: int, num_tokens: int) -> RedisTrips:
    """Counts with MONITOR; each command is a round trip of its own at most."""
    _warm_up(cell)
    lines: list[str] = []
    with _monitored(cell.redis, lines):
        rids = {cell.complete(PROMPT, num_tokens) for _ in range(num_requests)}
        _wait_until_finished(rids, lines)
    commands = [line for line in lines if _LUA not in line and MARK.sha not in line]
    num_beats = sum(MARK.sha in line for line in lines)
    named = Counter(any(rid in line for rid in rids) for line in commands)
    return RedisTrips(num_requests, named[True], named[False] + num_beats)


def _warm_up(cell: MeasuredCell) -> None:
    """Redis has not seen the scripts before the first request."""
    for _ in range(NUM_WARM):
        cell.complete(PROMPT, 1)


def _wait_until_finished(rids: set[str], lines: list[str]) -> None:
    """Redis shows a command to its monitor no sooner than it answers, and an answer does not wait
    for a late FINISH."""
    deadline_s = time.monotonic() + _SEEN_LIMIT_S
    while unseen := {rid for rid in rids if not _seen(FINISH.sha, rid, lines)}:
        if time.monotonic() > deadline_s:
            raise BatonError(f"Redis saw no FINISH of {len(unseen)} requests; is it overloaded?")
        time.sleep(_POLL_S)


def _seen(sha: str, rid: str, lines: list[str]) -> bool:
    return any(sha in line and rid in line for line in tuple(lines))


@contextlib.contextmanager
def _monitored(redis: EmbeddedRedis, lines: list[str]) -> Iterator[None]:
    with redis.connect() as monitor:
        monitor.sendall(b"MONITOR\r\n")
        if monitor.recv(5) != b"+OK\r\n":
            raise BatonError("Redis does not let itself be monitored")
        stream = monitor.makefile(errors="replace")
        reading = threading.Thread(target=lambda: lines.extend(stream))
        reading.start()
        try:
            yield
        finally:
            monitor.shutdown(socket.SHUT_RDWR)
            reading.join()
            stream.close()
