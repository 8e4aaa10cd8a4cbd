"""How long starts take is learned from pods that were seen without their worker."""

from services.autoscaler.start_times import DEFAULT_S, NUM_KEPT, StartTimes


def after_a_look() -> StartTimes:
    starts = StartTimes()
    starts.see({}, set())
    return starts


def test_nothing_is_known_before_a_start_was_seen() -> None:
    starts = StartTimes()
    starts.see({"old": 900.0}, {"old"})
    starts.see({"old": 915.0}, {"old"})
    assert starts.seconds == DEFAULT_S


def test_a_start_is_the_age_at_which_a_pod_first_has_its_worker() -> None:
    starts = after_a_look()
    for age_s in (5.0, 20.0):
        starts.see({"new": age_s}, set())
    starts.see({"new": 35.0}, {"new"})
    starts.see({"new": 50.0}, {"new"})
    assert starts.seconds == 35.0


def test_a_pod_that_never_had_a_worker_tells_nothing() -> None:
    starts = after_a_look()
    starts.see({"new": 5.0}, set())
    starts.see({}, set())
    starts.see({"new": 700.0}, {"new"})
    assert starts.seconds == DEFAULT_S


def test_nine_in_ten_of_the_latest_starts_take_no_longer() -> None:
    starts = after_a_look()
    for number in range(2 * NUM_KEPT):
        name, age_s = f"pod-{number}", 10.0 if number < NUM_KEPT else float(number)
        starts.see({name: 1.0}, set())
        starts.see({name: age_s}, {name})
    assert starts.seconds == NUM_KEPT + 0.9 * NUM_KEPT


def test_a_worker_that_comes_back_has_not_taken_its_pods_age_to_start() -> None:
    """Its registration was away for a look, or it was restarted; the first look may be that one."""
    for first in (set[str](), {"old"}):
        starts = StartTimes()
        starts.see({"old": 260_000.0}, first)
        for workers in ({"old"}, set[str](), {"old"}):
            starts.see({"old": 260_030.0}, workers)
        assert starts.seconds == DEFAULT_S
