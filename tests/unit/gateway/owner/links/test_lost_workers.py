"""Which workers are wanted back, and until when.

The failure guarded: a page that says ok while a worker is away, and one that never does again.
"""

import pytest

from services.gateway.owner.links.lost_workers import GONE_S, WITHDRAWN_S, LostWorkers

TOLD = "1 worker was lost and not replaced (d0)"


def expired(*names: str, role: str = "decode") -> LostWorkers:
    """Lost at 0 and no longer listed since their entries expired."""
    lost = LostWorkers()
    for name in names:
        lost.note(f"{name}.1", name, role, 0.0)
    lost.see([f"{name}.1" for name in names], 0.5)
    lost.see([], 4.0)
    return lost


def test_one_that_is_listed_still_is_named_as_not_linked_elsewhere() -> None:
    lost = LostWorkers()
    lost.note("d0.1", "d0", "decode", 0.0)
    lost.see(["d0.1"], 0.5)
    assert lost.text() == ""
    lost.see([], 4.0)
    assert lost.text() == TOLD


def test_one_that_leaves_the_registry_at_once_has_left_by_itself() -> None:
    lost = LostWorkers()
    lost.note("d0.1", "d0", "decode", 0.0)
    lost.see([], WITHDRAWN_S - 0.1)
    assert lost.text() == ""


@pytest.mark.parametrize(
    ("worker", "told"),
    [
        (("d0", "decode"), "1 worker was lost and not replaced (d1)"),
        (("d1", "decode"), TOLD),
        (("d7", "decode"), "1 worker was lost and not replaced (d1)"),
        (("p0", "prefill"), "2 workers were lost and not replaced (d0, d1)"),
    ],
)
def test_the_same_or_another_one_of_its_role_takes_its_place(
    worker: tuple[str, str], told: str
) -> None:
    lost = expired("d0", "d1")
    lost.linked(*worker)
    assert lost.text() == told


def test_after_a_while_it_is_gone_for_good() -> None:
    lost = expired("d0")
    lost.see([], GONE_S - 1)
    assert lost.text() == TOLD
    lost.see([], GONE_S)
    assert lost.text() == ""
