"""Which rows of a step are scored. Imports no torch: the scheduler's side makes it."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class ScorePlan(NamedTuple):
    """N rows of a step to score."""

    rows: NDArray[np.int32]
    """[N], of the step's T rows"""
    token_ids: NDArray[np.int32]
    """[N], the token of the prompt that follows each"""
    num_top: int
    """the most alternatives that one of them asks for"""
