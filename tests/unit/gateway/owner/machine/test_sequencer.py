"""The reorder buffer: any order of overlapping frames gives the same stream, within its bound."""

from hypothesis import given
from hypothesis import strategies as st

from services.gateway.owner.machine.sequencer import MAX_AHEAD, Sequencer
from shared.protocol import TokenLogprobs, TokenRun

STREAM = tuple(range(100, 120))


def frame(start: int, stop: int) -> TokenRun:
    tokens = STREAM[start:stop]
    return TokenRun("r", 0, start, tokens, tuple(TokenLogprobs(-float(t)) for t in tokens))


@given(st.lists(st.tuples(st.integers(0, 19), st.integers(1, 4)), max_size=30), st.randoms())
def test_any_order_gives_the_stream(extra: list[tuple[int, int]], rng: object) -> None:
    frames = [frame(at, at + 1) for at in range(len(STREAM))]
    frames += [frame(at, min(at + size, len(STREAM))) for at, size in extra]
    rng.shuffle(frames)  # type: ignore[attr-defined]
    sequencer = Sequencer()
    ready = [run for item in frames for run in sequencer.push(item)]
    assert tuple(sequencer.token_ids) == STREAM
    assert tuple(token for run in ready for token in run.token_ids) == STREAM
    assert [entry.logprob for run in ready for entry in run.logprobs] == [-float(t) for t in STREAM]
    assert not sequencer.contradicts(frame(3, 9))


def test_what_is_too_far_ahead_is_not_kept() -> None:
    sequencer = Sequencer()
    sequencer.push(TokenRun("r", 0, 1, tuple(range(MAX_AHEAD + 1))))
    assert sequencer.push(TokenRun("r", 0, 0, (7,))) == [TokenRun("r", 0, 0, (7,))]


def test_a_new_attempt_forgets_what_waited() -> None:
    sequencer = Sequencer()
    sequencer.push(frame(1, 2))
    sequencer.forget_ahead()
    sequencer.push(frame(0, 1))
    assert sequencer.next_index == 1


def test_another_token_at_a_taken_place_is_seen() -> None:
    sequencer = Sequencer()
    sequencer.push(frame(0, 3))
    assert sequencer.contradicts(TokenRun("r", 0, 2, (5,)))
