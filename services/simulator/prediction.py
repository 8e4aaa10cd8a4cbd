"""A measured run, predicted: the same arrivals at as many simulated workers, with the step times
that the real ones had learned. How far off the prediction is tells what the simulator is worth.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, inf

from services.autoscaler.view import Promise
from services.simulator.cell import Setup, SimulatedCell
from services.simulator.measured_run import Felt, MeasuredLoad, MeasuredRun
from services.simulator.policies.static import StaticPolicy
from services.simulator.request import Request

WITHIN = 0.1
"""a simulator that is further off says nothing of policies"""
QUANTILES = (0.5, 0.9, 0.99)
LEAST_BEYOND = 5
"""requests beyond a quantile: fewer are chance, and it is left out"""
SLACK = 1e-9
"""0.1 * 10 is a little more than 1 in floating point"""
SETTLE_S = 1e5
"""for what came last to end; what does not by then never would"""
MEASURES: dict[str, Callable[[Felt], float | None]] = {
    "time to first token": lambda felt: felt.ttft_s,
    "from token to token": lambda felt: felt.token_s,
    "end to end": lambda felt: felt.e2e_s,
}


@dataclass(frozen=True)
class Row:
    """One figure of one load point, in seconds."""

    load: str
    name: str
    quantile: float
    measured: float
    predicted: float

    @property
    def off(self) -> float:
        """Of the measured one; 0.1: the prediction is 10 % higher."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class InTime:
    """The share of one load point's requests that had what is promised."""

    load: str
    num_requests: int
    num_refused: int
    """or failed; neither measured nor predicted counts them, though they are sent to both"""
    measured: float
    predicted: float


@dataclass(frozen=True)
class Prediction:
    """Of a whole run."""

    rows: Sequence[Row]
    shares: Sequence[InTime]

    @property
    def worst(self) -> Row | None:
        """Of all figures; None where there are too few requests for any."""
        return max(self.rows, key=lambda row: abs(row.off), default=None)


@dataclass(frozen=True)
class _Pair:
    """One request, as its client measured it and as it was predicted."""

    measured: Felt
    predicted: Felt
    alone_s: float
    """what its prompt takes on a worker that does nothing else"""


def predict(run: MeasuredRun, promise: Promise) -> Prediction:
    """`promise`: by which requests are in time, their own computing apart."""
    rows: list[Row] = []
    shares: list[InTime] = []
    for load in run.loads:
        pairs = _pairs(run, load)
        rows += _rows(load.name, pairs)
        shares.append(_in_time(load, pairs, promise))
    return Prediction(rows, shares)


def _pairs(run: MeasuredRun, load: MeasuredLoad) -> list[_Pair]:
    """Of all whole answers."""
    setup = Setup(first=run.num_workers, kinds=run.kinds, warm_s=0.0)
    cell = SimulatedCell(setup, load.arrivals, StaticPolicy(run.num_workers))
    cell.run(load.arrivals[-1].at_s, SETTLE_S)
    return [
        _Pair(felt, _foretold(request), request.alone_s)
        for felt, request in zip(load.felt, cell.requests, strict=True)
        if felt is not None
    ]


def _foretold(request: Request) -> Felt:
    """What its client would have measured. Prefill computes the first token, decode all others."""
    at_s, num_later = request.arrival.at_s, request.arrival.num_output_tokens - 1
    if request.computed_s is None or request.ended_s is None:
        return Felt(inf, inf, inf)
    decoding_s = request.ended_s - request.computed_s
    token_s = decoding_s / num_later if num_later > 0 else None
    return Felt(request.computed_s - at_s, token_s, request.ended_s - at_s)


def _rows(load: str, pairs: Sequence[_Pair]) -> Iterator[Row]:
    for name, measure in MEASURES.items():
        measured = _sorted(measure(pair.measured) for pair in pairs)
        predicted = _sorted(measure(pair.predicted) for pair in pairs)
        for quantile in QUANTILES:
            if len(measured) * (1 - quantile) > LEAST_BEYOND - 0.5 and predicted:
                yield Row(load, name, quantile, _at(measured, quantile), _at(predicted, quantile))


def _sorted(seconds: Iterable[float | None]) -> list[float]:
    return sorted(each for each in seconds if each is not None)


def _at(ordered: Sequence[float], quantile: float) -> float:
    """By nearest rank, as `baton bench serve` has it."""
    return ordered[max(0, ceil(quantile * len(ordered) - SLACK) - 1)]


def _in_time(load: MeasuredLoad, pairs: Sequence[_Pair], promise: Promise) -> InTime:
    def share(measure: Callable[[_Pair], Felt]) -> float:
        kept = sum(_keeps(measure(pair), pair.alone_s, promise) for pair in pairs)
        return kept / len(pairs) if pairs else 1.0

    return InTime(
        load.name,
        len(pairs),
        len(load.felt) - len(pairs),
        share(lambda pair: pair.measured),
        share(lambda pair: pair.predicted),
    )


def _keeps(felt: Felt, alone_s: float, promise: Promise) -> bool:
    waited_s, token_s = felt.ttft_s - alone_s, felt.token_s or 0.0
    return waited_s <= promise.wait_s and token_s <= promise.gap_s
