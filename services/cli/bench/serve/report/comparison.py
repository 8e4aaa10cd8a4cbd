"""One load point of two endpoints, figure by figure: ours, theirs, and which is better."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from services.cli.bench.measure.quantiles import Distribution, quantile_name
from services.cli.bench.serve.report.summary import RunSummary

EQUAL_WITHIN = 0.005
"""of theirs: such a ratio is shown as 1.00"""
MS = 1e3
TIME_QUANTILES = (0.5, 0.99)
GAP_QUANTILES = (0.5, 0.99, 0.999)

Verdict = Literal["ours", "theirs", "equal"]


@dataclass(frozen=True)
class ComparedFigure:
    """One figure of both endpoints."""

    name: str
    """with its unit"""
    ours: float | None
    theirs: float | None
    """None: there is no such value, or too few for the quantile"""
    more_is_better: bool = False
    comparable: bool = True
    """False: the two values do not mean the same, or one is not the server's"""

    @property
    def ratio(self) -> float | None:
        """Ours over theirs; None where it would say nothing, or divide by zero."""
        if not self.comparable or self.ours is None or not self.theirs:
            return None
        return self.ours / self.theirs

    @property
    def better(self) -> Verdict | None:
        if not self.comparable or self.ours is None or self.theirs is None:
            return None
        if abs(self.ours - self.theirs) <= EQUAL_WITHIN * self.theirs:
            return "equal"
        return "ours" if (self.ours > self.theirs) == self.more_is_better else "theirs"

    def record(self) -> dict[str, Any]:
        ratio = self.ratio
        return {
            "name": self.name,
            "ours": _rounded(self.ours),
            "theirs": _rounded(self.theirs),
            "ratio": _rounded(ratio),
            "better": self.better,
        }


@dataclass(frozen=True)
class Comparison:
    """Two summaries of the same load point."""

    ours: RunSummary
    theirs: RunSummary

    @property
    def label(self) -> str:
        return self.ours.label

    @property
    def notes(self) -> list[str]:
        """What a reader of the ratios has to know."""
        notes = []
        both = (self.ours, self.theirs)
        if any(one.client_fault for one in both):
            names = " and ".join(one.endpoint for one in both if one.client_fault)
            notes.append(f"no ratios: {names} INVALID, the client was the bottleneck")
        for one in both:
            if len(one.good) < one.run.num_sent:
                num = f"{len(one.good)} of {one.run.num_sent}"
                notes.append(f"{one.endpoint} answered {num}; its times are of those only")
        if not self._gaps_are_of_tokens:
            notes.append("no ratio of gaps: a chunk has several tokens at one of them")
        cached = [sum(sample.cached_tokens for sample in one.good) for one in both]
        if cached[0] != cached[1]:
            counts = f"{cached[0]} at ours, {cached[1]} at theirs"
            notes.append(f"prompt tokens that a cache had: {counts}")
        return notes

    @property
    def figures(self) -> list[ComparedFigure]:
        """In the order of the table."""
        return [
            *self._times("TTFT", lambda one: one.ttft),
            *self._times("TTFT from real send", lambda one: one.ttft_sent),
            *self._gaps(),
            *self._times("TPOT", lambda one: one.tpot),
            *self._times("end to end", lambda one: one.e2e),
            self._rate("requests/s", lambda one: one.per_second(len(one.good))),
            self._rate("tokens/s out", lambda one: one.per_second(_num_out(one))),
            *self._goodput(),
        ]

    def record(self) -> dict[str, Any]:
        """Its JSON line."""
        return {
            "kind": "comparison",
            "load": self.label,
            "figures": [figure.record() for figure in self.figures],
            "notes": self.notes,
        }

    @property
    def _valid(self) -> bool:
        return not self.ours.client_fault and not self.theirs.client_fault

    @property
    def _gaps_are_of_tokens(self) -> bool:
        return not self.ours.several_per_chunk and not self.theirs.several_per_chunk

    def _times(
        self, name: str, read: Callable[[RunSummary], Distribution]
    ) -> Iterator[ComparedFigure]:
        return self._quantiles(name, read, TIME_QUANTILES, self._valid)

    def _gaps(self) -> Iterator[ComparedFigure]:
        """Between chunks; where those have several tokens, also spread over them if both tell
        how many."""
        alone = self._gaps_are_of_tokens
        name = "token gap" if alone else "chunk gap"
        comparable = self._valid and alone
        yield from self._quantiles(name, lambda one: one.gap, GAP_QUANTILES, comparable)
        if not alone and self.ours.chunk_tokens_known and self.theirs.chunk_tokens_known:
            name = "gap spread over tokens"
            yield from self._quantiles(name, lambda one: one.spread_gap, GAP_QUANTILES, self._valid)

    def _quantiles(
        self,
        name: str,
        read: Callable[[RunSummary], Distribution],
        quantiles: tuple[float, ...],
        comparable: bool,
    ) -> Iterator[ComparedFigure]:
        for q in quantiles:
            ours, theirs = (_scaled(read(one).at(q)) for one in (self.ours, self.theirs))
            text = f"{name} {quantile_name(q)}, ms"
            yield ComparedFigure(text, ours, theirs, comparable=comparable)

    def _rate(self, name: str, read: Callable[[RunSummary], float]) -> ComparedFigure:
        return ComparedFigure(
            name, read(self.ours), read(self.theirs), more_is_better=True, comparable=self._valid
        )

    def _goodput(self) -> Iterator[ComparedFigure]:
        if self.ours.limits.stated:
            name = "goodput, requests/s"
            yield self._rate(name, lambda one: one.per_second(one.num_good_enough))


def _num_out(one: RunSummary) -> int:
    return sum(sample.num_tokens for sample in one.good)


def _scaled(seconds_s: float | None) -> float | None:
    return None if seconds_s is None else seconds_s * MS


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
