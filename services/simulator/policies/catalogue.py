"""The policies by the names that the command knows.

static-N        N prefill workers (static-NxM: and M decode workers), or N that do both
replay[-T]      the product's, with target T (0.99)
hpa-U           HorizontalPodAutoscaler, utilisation U
keda, keda-hpa  tokens that wait, at llm-d's pace and at that of Kubernetes
planner, planner-throughput
                in the way of Dynamo's planner: both modes, and the slow one alone; not for workers
                that do both
foresight[-T]   the product's rule on what is about to come
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from services.autoscaler.view import Arrival, Role
from services.simulator.cell import Setup
from services.simulator.policies.backlog_rule import GUIDE, BacklogPolicy
from services.simulator.policies.foresight import ForesightPolicy
from services.simulator.policies.pace import Behaviour
from services.simulator.policies.planner import PlannerPolicy
from services.simulator.policies.policy import Policy
from services.simulator.policies.replay import ReplayPolicy
from services.simulator.policies.static import StaticPolicy
from services.simulator.policies.utilisation import FRESH_S, RATE_S, UtilisationPolicy
from shared.errors import SettingsError

SOME = ("replay", "foresight", "hpa-0.7", "hpa-0.5", "keda", "keda-hpa", "planner")
"""compared unless others are named"""
PLANNERS = ("planner", "planner-throughput")
"""that know no workers that do both"""
MOST_STATIC = 1000
WINDOWS_S = {"hpa": FRESH_S, "hpa2m": RATE_S}


@dataclass(frozen=True)
class Candidate:
    """A policy that can be run in a cell."""

    name: str
    setup: Setup
    make: Callable[[], Policy]


def candidate(name: str, setup: Setup, arrivals: Sequence[Arrival]) -> Candidate:
    """SettingsError where the name is none of the above."""
    kind, _, number = name.partition("-")
    if kind in ("replay", "foresight"):
        promise = replace(setup.promise, target=_share(name, number or "0.99"))
        make: Callable[[], Policy] = ReplayPolicy
        if kind == "foresight":
            make = lambda: ForesightPolicy(arrivals)  # noqa: E731
        return Candidate(name, replace(setup, promise=promise), make)
    if kind == "static":
        numbers = _numbers(name, number, setup)
        return Candidate(name, replace(setup, first=numbers), lambda: StaticPolicy(numbers))
    if kind in WINDOWS_S:
        target = _share(name, number)
        return Candidate(name, setup, lambda: UtilisationPolicy(target, WINDOWS_S[kind]))
    return Candidate(name, setup, _fixed(name, setup))


def _fixed(name: str, setup: Setup) -> Callable[[], Policy]:
    prefill, decode = setup.kinds["prefill"], setup.kinds["decode"]
    token_s = setup.kinds[setup.computes].token_s
    found: dict[str, Callable[[], Policy]] = {
        "keda": lambda: BacklogPolicy(token_s, GUIDE),
        "keda-hpa": lambda: BacklogPolicy(token_s, Behaviour()),
        "planner": lambda: PlannerPolicy(prefill, decode, by_load=True),
        "planner-throughput": lambda: PlannerPolicy(prefill, decode, by_load=False),
    }
    if name not in found:
        raise SettingsError(
            f"--policy {name}: there are static-N, replay, foresight, hpa-U and {', '.join(found)}"
        )
    if name in PLANNERS and setup.computes != "prefill":
        raise SettingsError(
            f"--policy {name}: it knows no workers that do both; leave it out with --topology agg"
        )
    return found[name]


def _share(name: str, text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not text:
        raise SettingsError(f"--policy {name}: give it a share, as {name}-0.7")
    if not 0 < share <= 1:
        raise SettingsError(f"--policy {name}: {text!r} is no share above 0 and up to 1")
    return share


def _numbers(name: str, text: str, setup: Setup) -> Mapping[Role, int]:
    parts = text.split("x")
    if len(parts) != len(setup.first) or not all(map(_is_number, parts)):
        form, given = ("NxM", "4x2") if len(setup.first) > 1 else ("N", "4")
        raise SettingsError(f"--policy {name}: this cell takes static-{form}, as static-{given}")
    return dict(zip(setup.first, map(int, parts), strict=True))


def _is_number(text: str) -> bool:
    return text.isdecimal() and 1 <= int(text) <= MOST_STATIC
