"""The one sentence of a verdict, by rule."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.cli.bench.measure.quantiles import Distribution
from services.cli.bench.verdict.judgement import LESS, MORE, Judgement
from services.cli.bench.verdict.topology_run import TopologyRun, gap_of

WORTH_A_WORD = 1.1
"""a gap that is this many times longer"""
OPENINGS = {
    "disaggregate": "Disaggregate",
    "do not disaggregate": "Do not disaggregate for this load",
    "no difference": "No difference worth the second pool",
}


@dataclass(frozen=True)
class Price:
    """The longest gaps of both sides, under about the load that both can take."""

    pd: Distribution
    agg: Distribution

    @property
    def text(self) -> str:
        """What is given up by not disaggregating; empty where that is little."""
        pd, agg = self.pd.tail, self.agg.tail
        if not pd or agg < WORTH_A_WORD * pd:
            return ""
        return f"; its longest gaps are {agg / pd:.1f}x shorter ({pd:.1f} ms against {agg:.1f})"


def sentence(judgement: Judgement, limits: str, price: Price | None = None) -> str:
    """`limits` in words."""
    if judgement.decision == "no verdict":
        return f"No verdict: {judgement.why}."
    assert judgement.ratio is not None
    value, low, high = judgement.ratio
    bound = f"{judgement.bound} " if judgement.bound else ""
    rest = ""
    if judgement.decision == "do not disaggregate":
        rest = price.text if price else ""
    elif judgement.decision == "no difference" and not LESS <= value <= MORE:
        rest = "; with more --seeds there may be one"
    return (
        f"{OPENINGS[judgement.decision]}: {judgement.pd} serves {bound}{value:.2f}x "
        f"({low:.2f}-{high:.2f}) the requests of {judgement.agg} within {limits}{rest}."
    )


def price_of(judgement: Judgement, runs: Sequence[TopologyRun]) -> Price | None:
    """Of the runs at the rates nearest to the lower goodput; None where a side has none."""
    goodputs, sides = judgement.goodputs, (judgement.pd, judgement.agg)
    if any(one not in goodputs for one in sides):
        return None
    lower = min(goodputs[one].value for one in sides)
    return Price(*(gap_of(_nearest(one, lower, runs)) for one in sides))


def _nearest(topology: str, rate: float, runs: Sequence[TopologyRun]) -> list[TopologyRun]:
    own = [run for run in runs if run.topology == topology and not run.invalid]
    nearest = min(own, key=lambda run: abs(run.rate - rate)).rate
    return [run for run in own if run.rate == nearest]
