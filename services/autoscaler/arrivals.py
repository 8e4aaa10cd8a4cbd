"""The arrivals of one pool, with what their answers took, as far as that is known.

A request that still runs has come too. Its answer is taken to be like those that ended: else load
that rises would show no sooner than answers end.
"""

from dataclasses import replace

from services.autoscaler.view import KNOWN_S, Arrival, moment
from shared.clock import Clock
from shared.state.traffic import BEGINNING, MAX_READ, Traffic


class Arrivals:
    """`read` again and again; then `seen`."""

    def __init__(self, traffic: Traffic, clock: Clock) -> None:
        self._traffic = traffic
        self._clock = clock
        self._last_end = self._last_arrival = BEGINNING
        """places of the last that were read"""
        self._ended: list[Arrival] = []
        self._running: dict[str, Arrival] = {}
        """by rid"""
        self._over: set[str] = set()
        """rids whose end was read, and maybe not their arrival"""

    async def read(self, pool: str) -> None:
        """What is new. StateUnavailableError.

        What Redis's clock places in the future, because it was set back, came by now.

        Ends are read first: whoever ended is then among those that came, and not taken to run.
        """
        while await self._read_ends(pool) == MAX_READ:
            pass
        while await self._read_arrivals(pool) == MAX_READ:
            pass
        for rid in self._over:
            self._running.pop(rid, None)
        self._over.clear()

    def seen(self) -> tuple[Arrival, ...]:
        """Of the last KNOWN_S, oldest first."""
        since_s = self._clock.monotonic_s() - KNOWN_S
        self._ended = [one for one in self._ended if one.at_s >= since_s]
        self._running = {rid: one for rid, one in self._running.items() if one.at_s >= since_s}
        return tuple(sorted((*self._ended, *self._expected()), key=moment))

    async def _read_ends(self, pool: str) -> int:
        found = await self._traffic.ended(pool, self._last_end)
        now_s = self._clock.monotonic_s()
        for place, ago_s, end in found:
            self._last_end = place
            if end is None:
                continue
            self._over.add(end.rid)
            self._ended.append(
                Arrival(
                    at_s=now_s - max(0.0, ago_s) - end.age_s,
                    num_prompt_tokens=end.num_prompt_tokens,
                    num_cached_tokens=end.num_cached_tokens,
                    num_output_tokens=end.num_output_tokens,
                    ttft_s=end.ttft_s if end.ttft_s >= 0 else None,
                    age_s=end.age_s,
                )
            )
        return len(found)

    async def _read_arrivals(self, pool: str) -> int:
        found = await self._traffic.arrived(pool, self._last_arrival)
        now_s = self._clock.monotonic_s()
        for place, ago_s, one in found:
            self._last_arrival = place
            if one is not None:
                self._running[one.rid] = Arrival(now_s - max(0.0, ago_s), one.num_prompt_tokens)
        return len(found)

    def _expected(self) -> list[Arrival]:
        """Those that run, with as long an answer, and as much of the prompt cached, as the mean."""
        num_prompt = sum(one.num_prompt_tokens for one in self._ended)
        num_cached = sum(one.num_cached_tokens for one in self._ended)
        num_output = sum(one.num_output_tokens for one in self._ended)
        mean_output = round(num_output / max(1, len(self._ended)))
        cached_share = num_cached / max(1, num_prompt)
        return [
            replace(
                one,
                num_cached_tokens=int(cached_share * one.num_prompt_tokens),
                num_output_tokens=mean_output,
            )
            for one in self._running.values()
        ]
