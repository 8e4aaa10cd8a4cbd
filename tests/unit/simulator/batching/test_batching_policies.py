"""Batching policies on the simulated device, against lines computed by hand and against what must
hold of any of them.

Guarded against: a request that is lost or answered twice, a token before its request arrived, more
sequences than places, a group that does not wait for its longest or waits for too long, a scheduler
that is not the engine's, and runs that a seed does not repeat.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.simulator.batching.continuous_batching import ContinuousBatching, scheduler_of
from services.simulator.batching.device import POLICIES, Batching, Device, Maker, serve
from services.simulator.batching.group_batching import GroupBatching
from services.simulator.batching.load import Load
from services.simulator.batching.outcome import outcome_of
from services.simulator.batching.request import Request
from services.simulator.batching.slots import Stay
from services.simulator.batching.step_cost import H200_8B, step_s
from services.simulator.timeline import Timeline
from shared.engine.scheduling.scheduler import Scheduler
from shared.message_parts.step_costs import StepCosts
from shared.settings.groups import KVPressure

MIXED = Load(num_requests=160, rate=60.0, prompt=(32, 512), output=(8, 512), seed=3)
DEVICE = Device(H200_8B, num_slots=16, step_tokens=512, longest=MIXED.longest, wait_s=0.02)
SECOND = replace(DEVICE, costs=StepCosts(step_s=1.0), num_slots=2, wait_s=5.0)
"""each step is a second"""


def speed_up(policies: Mapping[str, Maker], load: Load = MIXED) -> float:
    """How many times as many requests a second continuous batching answers."""
    rates = {}
    for policy in ("static", "continuous"):
        requests = load.requests()
        batching = serve(policies[policy], DEVICE, requests)
        rates[policy] = outcome_of(policy, batching, requests).requests_a_second
    return rates["continuous"] / rates["static"]


def violations(requests: list[Request], batching: Batching) -> list[str]:
    """Of what must hold after any run."""
    stays, num_slots = batching.slots.stays, batching.slots.num_slots
    found = [f"{one.number}: not answered" for one in requests if not one.is_answered]
    for one in requests:
        if one.tokens_s != sorted(one.tokens_s) or len(set(one.tokens_s)) != len(one.tokens_s):
            found.append(f"{one.number}: two tokens of one moment")
        if one.tokens_s and one.tokens_s[0] <= one.at_s:
            found.append(f"{one.number}: a token before it arrived")
    placed = Counter(stay.request for stay in stays)
    found += [f"{one.number}: had no place" for one in requests if one not in placed]
    for slot in {stay.slot for stay in stays}:
        kept = sorted((stay.begin_s, stay.end_s) for stay in stays if stay.slot == slot)
        if slot >= num_slots or any(end > begin for (_, end), (begin, _) in pairwise(kept)):
            found.append(f"place {slot}: taken twice, or does not exist")
    for stay in stays:
        if stay.begin_s < stay.request.at_s:
            found.append(f"{stay.request.number}: a place before it arrived")
    return found


def test_continuous_batching_answers_twice_as_much_of_mixed_lengths() -> None:
    assert speed_up(POLICIES) >= 2
    planted = {**POLICIES, "continuous": POLICIES["static"]}
    assert speed_up(planted) < 2


def test_of_equal_lengths_there_is_little_to_gain() -> None:
    """What it gains comes from the mixture, not from the simulator."""
    equal = replace(MIXED, prompt=(64, 64), output=(64, 64), rate=1e6)
    assert 0.9 <= speed_up(POLICIES, equal) <= 1.4


def test_at_low_load_a_deadline_keeps_the_slowest_from_waiting_for_a_full_group() -> None:
    """Of 4 requests a second 16 come in 4 s, which the first of a static group waits for; 20 ms
    after it came, a dynamic one goes. Nobody waits for others in continuous batching."""
    quiet = replace(MIXED, rate=4.0, output=(4, 8))
    p99_s = {}
    for policy, make in POLICIES.items():
        requests = quiet.requests()
        p99_s[policy] = outcome_of(policy, serve(make, DEVICE, requests), requests).wait_s[-1]
    assert p99_s["static"] > 2
    assert p99_s["dynamic"] < 0.02 + 0.15
    assert p99_s["continuous"] < p99_s["dynamic"]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_seed_repeats_a_run(policy: str) -> None:
    found = []
    for seed in (1, 1, 2):
        requests = replace(MIXED, seed=seed, num_requests=40).requests()
        batching = serve(POLICIES[policy], DEVICE, requests)
        found.append(outcome_of(policy, batching, requests).record())
    assert found[0] == found[1] != found[2]


SOME_REQUESTS = st.lists(
    st.tuples(st.floats(0, 0.5), st.integers(1, 90), st.integers(1, 40)), min_size=1, max_size=14
)


def arriving(drawn: list[tuple[float, int, int]]) -> list[Request]:
    return [Request(number, *one) for number, one in enumerate(sorted(drawn))]


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=60, deadline=None)
@given(drawn=SOME_REQUESTS, num_slots=st.integers(1, 5))
def test_each_request_is_served_once_in_a_place_of_its_own(
    policy: str, drawn: list[tuple[float, int, int]], num_slots: int
) -> None:
    requests = arriving(drawn)
    device = replace(DEVICE, num_slots=num_slots, step_tokens=40, longest=130)
    batching = serve(POLICIES[policy], device, requests)
    assert violations(requests, batching) == []
    assert batching.num_rows >= sum(one.num_rows for one in requests)
    assert len(batching.slots.stays) == len(requests)


@settings(max_examples=60, deadline=None)
@given(
    drawn=SOME_REQUESTS,
    num_blocks=st.integers(9, 20),
    on_kv_pressure=st.sampled_from(["preempt", "queue", "reject"]),
)
def test_each_is_served_once_also_where_blocks_are_few_and_some_are_preempted(
    drawn: list[tuple[float, int, int]], num_blocks: int, on_kv_pressure: KVPressure
) -> None:
    requests = arriving(drawn)
    scheduler = scheduler_of(4, 40, 130, num_blocks, on_kv_pressure)

    def make(device: Device, timeline: Timeline) -> ContinuousBatching:
        return ContinuousBatching(scheduler, device.costs, timeline)

    batching = serve(make, DEVICE, requests)
    assert violations(requests, batching) == []
    assert scheduler.pool.num_free == num_blocks
    if on_kv_pressure != "preempt":
        assert batching.num_rows == sum(one.num_rows for one in requests)


class TwiceAnswered(GroupBatching):
    """Has one group too many."""

    def take(self, request: Request) -> None:
        super().take(request)
        super().take(request)


class TooEarly(GroupBatching):
    """Computes what has not arrived."""

    def take(self, request: Request) -> None:
        super().take(request)
        request.at_s += 100


class Crowded(GroupBatching):
    """Puts all of a group into one place."""

    def close(self) -> None:
        super().close()
        self._timeline.after(50, self._crowd)

    def _crowd(self) -> None:
        self.slots.stays[:] = [
            Stay(one.request, 0, one.begin_s, one.end_s) for one in self.slots.stays
        ]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (TwiceAnswered, "two tokens of one moment|taken twice"),
        (TooEarly, "before it arrived"),
        (Crowded, "place 0: taken twice"),
    ],
)
def test_what_must_hold_is_seen_to_be_broken(kind: type[GroupBatching], said: str) -> None:
    requests = arriving([(0.0, 4, 2), (0.1, 4, 3), (0.2, 4, 4)])
    sound = POLICIES["static"](SECOND, Timeline())
    assert isinstance(sound, GroupBatching)

    def make(device: Device, timeline: Timeline) -> GroupBatching:
        return kind(sound._sending, device.costs, device.num_slots, timeline)

    batching = serve(make, SECOND, requests)
    assert any(part in one for one in violations(requests, batching) for part in said.split("|"))


def answered(policy: str, *drawn: tuple[float, int, int]) -> list[list[float]]:
    """The moments of each request's tokens, where each step is a second."""
    requests = arriving(list(drawn))
    serve(POLICIES[policy], SECOND, requests)
    return [request.tokens_s for request in requests]


def test_a_static_group_waits_until_it_is_full_and_then_for_its_longest() -> None:
    first, second, third = answered("static", (0, 4, 1), (8, 4, 3), (8.5, 4, 1))
    assert first == [9]
    assert second == [9, 10, 11]
    assert third == [12]


def test_a_dynamic_group_goes_when_its_oldest_has_waited_or_it_is_full() -> None:
    first, second, third = answered("dynamic", (0, 4, 1), (8, 4, 3), (8.5, 4, 1))
    assert first == [6]
    assert second == [9.5, 10.5, 11.5]
    assert third == [9.5]


def test_a_timed_group_goes_when_its_oldest_has_waited_only() -> None:
    first, second, third = answered("timed", (0, 4, 1), (8, 4, 3), (8.5, 4, 1))
    assert first == [6]
    assert second == [14, 15, 16]
    assert third == [14]


def test_continuous_batching_begins_at_once_and_a_place_is_free_as_its_sequence_ends() -> None:
    """The third comes while both places are taken; the short one's is free before the long ends."""
    long, short, third = answered("continuous", (0, 4, 9), (0.5, 4, 2), (1.5, 4, 1))
    assert long == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert short == [2, 3]
    assert third == [4]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_alone_takes_the_same_by_any_policy_once_it_begins(policy: str) -> None:
    """A prompt of 4 tokens is a chunk of 4 and 10 pairs; then its tokens attend to 5 and 6."""
    costs = StepCosts(1.0, row_s=0.2, context_token_s=0.03, chunk_token_s=0.5, chunk_pair_s=0.07)
    (request,) = requests = arriving([(0.0, 4, 3)])
    serve(POLICIES[policy], replace(SECOND, costs=costs), requests)
    first, second, third = request.tokens_s
    begun_s = 5.0 if policy in ("dynamic", "timed") else 0.0
    assert first - begun_s == pytest.approx(1 + 4 * 0.5 + 10 * 0.07)
    assert second - first == pytest.approx(1 + 0.2 + 5 * 0.03)
    assert third - second == pytest.approx(1 + 0.2 + 6 * 0.03)


def test_padding_is_counted_by_the_token() -> None:
    """Prompts of 2, 500, 10 and 480 tokens, padded to 500: 1 - 992 / 2000."""
    device = replace(DEVICE, num_slots=4)
    ratios = {}
    for policy, make in POLICIES.items():
        requests = arriving([(0.0, num_prompt, 1) for num_prompt in (2, 500, 10, 480)])
        ratios[policy] = outcome_of(policy, serve(make, device, requests), requests).padding_ratio
    assert ratios["static"] == pytest.approx(0.504)
    assert ratios["continuous"] == 0


def test_the_scheduler_is_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own code decides each step: one that admits nothing answers nothing."""
    monkeypatch.setattr(Scheduler, "_admit", lambda self, batch: None)
    requests = MIXED.requests()
    timeline = Timeline()
    batching = POLICIES["continuous"](DEVICE, timeline)
    for request in requests:
        timeline.at(request.at_s, partial(batching.take, request))
    timeline.run(inf)
    assert not any(request.tokens_s for request in requests)


def test_gaps_are_those_of_the_rate_and_lengths_are_mixed() -> None:
    requests = replace(MIXED, num_requests=4000).requests()
    assert requests[-1].at_s == pytest.approx(4000 / MIXED.rate, rel=0.05)
    outputs = [request.num_output for request in requests]
    assert (min(outputs), max(outputs)) == (8, 512)
    shorter = sum(num < 64 for num in outputs) / len(outputs)
    assert shorter == pytest.approx(0.5, abs=0.03)


DECODES_MS = (
    (1, 1152, 4.02),
    (32, 1152, 5.52),
    (128, 1152, 10.17),
    (256, 1152, 16.7),
    (64, 4154, 13.2),
)
"""(sequences, positions on average, measured), and below (tokens, measured): the middle of the
figures of Llama 3.1 8B in the table "A whole engine" of kernels/README.md"""
PROMPTS_MS = ((1024, 23.0), (8192, 208.8))


@pytest.mark.parametrize(("num", "context", "measured_ms"), DECODES_MS)
def test_decode_steps_last_as_measured(num: int, context: int, measured_ms: float) -> None:
    assert 1e3 * step_s(H200_8B, [context] * num) == pytest.approx(measured_ms, rel=0.1)


@pytest.mark.parametrize(("num_tokens", "measured_ms"), PROMPTS_MS)
def test_prompts_last_as_measured(num_tokens: int, measured_ms: float) -> None:
    assert 1e3 * step_s(H200_8B, (), [(0, num_tokens)]) == pytest.approx(measured_ms, rel=0.1)
