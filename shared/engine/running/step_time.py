"""How long a step takes, learned from the steps before it.

    t = pace (c0 + c1 rows + c2 context tokens + c3 chunk tokens + c4 chunk pairs)

Steps with a chunk have a pace of their own: they heat the device, and no graph holds them. See
StepSize for the terms. The five costs are fitted by recursive least squares with directional
forgetting (Kulhavy, "Restricted exponential forgetting in real-time identification", Automatica 23,
1987): a step makes older ones count less only for what it tells itself, so an hour without prompts
takes nothing away from what is known of them.

The fit is of relative errors. A cost is fitted as a multiple of its seed, so all five unknowns are
near 1 and all features are shares of a step's time: the arithmetic is well conditioned whatever
the model and the device.
"""

import math

import numpy as np
from numpy.typing import NDArray

from shared.engine.running.held_out_error import HeldOutError
from shared.engine.running.pace import Pace
from shared.engine.running.step_size import StepSize
from shared.message_parts.step_costs import StepCosts

FORGETTING = 0.98
"""what a step leaves of the weight of those before it: some 50 of a kind are remembered"""
SEED_SPREAD, NOISE = 3.0, 0.05
"""relative standard deviations: of a seed from the true cost, of a step from the true time"""
LEAST_SURPRISE = 0.05
"""relative error that a step may always teach in full"""
NUM_TRUSTED = 32
"""first steps that teach in full; from then on the 90th percentile of the errors is the bound"""
FLOOR_S, CEILING_S = 1e-6, 3600.0
"""no step takes less or more; none is predicted to take less"""


class StepTime:
    """Predicts the device time of a worker's steps, and learns it."""

    def __init__(self, seed: StepCosts) -> None:
        """`seed`: what a trial says. ValueError unless each cost is positive and finite."""
        if not all(math.isfinite(cost) and cost > 0 for cost in seed):
            raise ValueError(f"the costs of a step must be positive: {seed}")
        self._seed = np.array(seed)
        self._fit = np.ones(len(seed))
        """multiples of the seed's costs"""
        self._covariance = (SEED_SPREAD / NOISE) ** 2 * np.eye(len(seed))
        """of the fit, in units of a step's noise"""
        self._multiples = self._fit
        """the fit, or the likeliest one without negative costs"""
        self._row_pace, self._chunk_pace = Pace(), Pace()
        self.error = HeldOutError()

    @property
    def costs(self) -> StepCosts:
        """At today's pace. None is negative: more work is never predicted to take less."""
        rows, chunks = self._row_pace.factor, self._chunk_pace.factor
        paces = np.array([rows, rows, rows, chunks, chunks])
        return StepCosts(*(self._seed * self._multiples * paces).tolist())

    def predict(self, size: StepSize) -> float:
        """Seconds. A step with a chunk takes as long as its rows alone at least, however much their
        paces differ."""
        step_s = self._pace(size).factor * self._fitted_s(self._seed * (1, *size))
        if not _has_chunk(size):
            return step_s
        return max(step_s, self.predict(size._replace(num_chunk_tokens=0, num_chunk_pairs=0)))

    def note(self, size: StepSize, seconds_s: float) -> float:
        """A step of this size took so long; what was predicted of it. What no step can take teaches
        nothing."""
        predicted_s = self.predict(size)
        if not FLOOR_S <= seconds_s <= CEILING_S:
            return predicted_s
        terms_s = self._seed * (1, *size)
        fitted_s, pace = self._fitted_s(terms_s), self._pace(size)
        self.error.note(predicted_s, seconds_s)
        pace.note(fitted_s, seconds_s)
        # Divided by the larger time, no feature is more than a share of a step and no surprise is
        # far beyond 1, however wrong the clock or the model.
        shares = terms_s / max(seconds_s, fitted_s)
        self._learn(shares, seconds_s / max(seconds_s, fitted_s) - float(shares @ self._fit))
        return predicted_s

    def _pace(self, size: StepSize) -> Pace:
        return self._chunk_pace if _has_chunk(size) else self._row_pace

    def _fitted_s(self, terms_s: NDArray[np.float64]) -> float:
        """`terms_s`: of a step, as the seed has them."""
        return max(FLOOR_S, float(terms_s @ self._multiples))

    def _learn(self, shares: NDArray[np.float64], surprise: float) -> None:
        """One turn of the recursion. `shares`: the terms as parts of the step's time."""
        trust = self._trust(surprise)
        reach = self._covariance @ shares
        doubt = float(shares @ reach)
        self._fit = self._fit + trust * surprise / (1 + trust * doubt) * reach
        weight = trust * (FORGETTING - (1 - FORGETTING) / doubt)
        self._covariance -= weight / (1 + weight * doubt) * (reach[:, None] * reach)
        self._multiples = _without_negatives(self._fit, self._covariance)

    def _trust(self, surprise: float) -> float:
        """The weight of a step, at most 1 (Huber): one that something else interrupted must not
        bend the fit."""
        if self.error.count < NUM_TRUSTED:
            return 1.0
        limit = max(LEAST_SURPRISE, self.error.p90)
        return limit / max(limit, abs(surprise))


def _has_chunk(size: StepSize) -> bool:
    return bool(size.num_chunk_tokens or size.num_chunk_pairs)


def _without_negatives(
    fit: NDArray[np.float64], covariance: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The likeliest values if those that are negative were known to be 0."""
    values = fit
    while values[least := int(values.argmin())] < 0:
        towards = covariance[least] / covariance[least, least]
        values = values - values[least] * towards
        covariance = covariance - covariance[least][:, None] * towards
        covariance[least] = covariance[:, least] = 0.0
    return values
