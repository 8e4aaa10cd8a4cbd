"""Nothing is done while cell and cluster tell two stories, or somebody else orders."""

from dataclasses import replace

import pytest

from services.autoscaler.disagreement import PATIENCE_S, STRANGERS_HOLD_S, Disagreement
from services.autoscaler.view import PodView, Role, RoleView, WorkerView

ROLE: Role = "prefill"


def pod(name: str, *, is_ready: bool = True) -> PodView:
    return PodView(name, is_ready, 100.0)


def worker(name: str, *, is_draining: bool = False) -> WorkerView:
    return WorkerView(name, f"{name}.1", 100.0, is_draining)


def view(
    pods: tuple[PodView, ...] = (), workers: tuple[WorkerView, ...] = (), replicas: int = 2
) -> dict[Role, RoleView]:
    return {ROLE: RoleView(replicas, 1, 4, workers, pods)}


FITS = view((pod("a"), pod("b")), (worker("a"), worker("b")))
UNREGISTERED = view((pod("a"), pod("b")), (worker("a"),))
PODLESS = view((pod("a"),), (worker("a"), worker("b")))


@pytest.mark.parametrize(
    ("roles", "text"),
    [
        (UNREGISTERED, "prefill pod b is ready, and no such worker is registered"),
        (PODLESS, "prefill worker b is registered, and has no pod"),
    ],
)
def test_what_does_not_fit_is_told_once_it_lasts(roles: dict[Role, RoleView], text: str) -> None:
    seen = Disagreement()
    assert seen.see(roles, 0.0, leads=True) == ""
    assert seen.see(roles, PATIENCE_S, leads=True) == ""
    assert seen.see(roles, PATIENCE_S + 1, leads=True) == text
    assert seen.see(FITS, PATIENCE_S + 2, leads=True) == ""
    assert seen.see(roles, PATIENCE_S + 3, leads=True) == "", "it begins again"


def test_what_starts_or_goes_fits() -> None:
    seen = Disagreement()
    starting = view((pod("a"), pod("b", is_ready=False)), (worker("a"),))
    going = view((pod("a"),), (worker("a"), worker("b", is_draining=True)))
    for roles in (starting, going):
        for now_s in (0.0, 100.0, 200.0):
            assert seen.see(roles, now_s, leads=True) == ""


def test_a_cell_without_a_cluster_has_nothing_to_disagree_with() -> None:
    seen = Disagreement()
    for now_s in (0.0, 100.0):
        assert seen.see(view((), (worker("a"),)), now_s, leads=True) == ""


def test_a_stranger_s_order_is_left_alone_for_a_while_and_ours_is_not_a_stranger_s() -> None:
    seen = Disagreement()

    def ordered(replicas: int) -> dict[Role, RoleView]:
        return {ROLE: replace(FITS[ROLE], replicas=replicas)}

    assert seen.see(ordered(2), 0.0, leads=True) == ""
    seen.ordered(ROLE, 3)
    assert seen.see(ordered(3), 15.0, leads=True) == ""
    assert seen.see(ordered(5), 30.0, leads=True) == "somebody else ordered 5 prefill workers"
    assert seen.see(ordered(5), 30.0 + STRANGERS_HOLD_S - 1, leads=True) != ""
    assert seen.see(ordered(5), 30.0 + STRANGERS_HOLD_S, leads=True) == "", "it is ours now"


def test_while_another_leads_its_orders_are_no_stranger_s() -> None:
    seen = Disagreement()
    more = {ROLE: replace(FITS[ROLE], replicas=3)}
    assert seen.see(FITS, 0.0, leads=False) == ""
    assert seen.see(more, 15.0, leads=False) == ""
    assert seen.see(more, 30.0, leads=True) == "", "it takes over what the other ordered"
    assert seen.see(FITS, 45.0, leads=True) != ""
    assert seen.see(FITS, 60.0, leads=False) == ""
