"""The short form of `make fuzz`, which sends a million."""

from pathlib import Path

import pytest

from tests.campaigns.body_fuzz import figures, run
from tests.support.measured import Measured

pytestmark = [pytest.mark.alone, pytest.mark.clock, pytest.mark.timeout(300)]
NUM_BODIES = 20_000


def test_odd_bodies_are_refused_at_once_and_leave_nothing(
    tmp_path: Path, measured: Measured
) -> None:
    seen = run(tmp_path, NUM_BODIES, seed=7)
    assert not seen.odd
    found = figures(seen, NUM_BODIES)
    for figure in found:
        measured.note(str(figure))
    assert [str(figure) for figure in found if not figure.met] == []
