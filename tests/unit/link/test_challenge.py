"""Both ends of the challenge against each other and against a liar: pure bytes, no sockets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.challenge import (
    GREETING_BYTES,
    PROOF_BYTES,
    REFUSED,
    Challenge,
    ChallengeError,
    purpose_key,
    warn_if_short,
)

CELL = "cell"


def meet(
    secrets: tuple[str, str] = (CELL, CELL), versions: tuple[int, int] = (2, 2)
) -> tuple[Challenge, Challenge]:
    dialler = Challenge(secrets[0], "link", versions[0], dials=True)
    return dialler, Challenge(secrets[1], "link", versions[1], dials=False)


@pytest.mark.parametrize("secret", ["", CELL])
def test_two_ends_of_a_cell_pass(secret: str) -> None:
    dialler, listener = meet((secret, secret))
    assert listener.receive(dialler.greeting) == b""
    answer = listener.receive(dialler.receive(listener.greeting))
    assert not dialler.done and listener.done
    assert dialler.receive(answer) == b"" and dialler.done


@pytest.mark.parametrize("secrets", [(CELL, "other"), (CELL, ""), ("", CELL)])
def test_another_secret_is_said_on_both_sides_and_nothing_is_signed_for_it(
    secrets: tuple[str, str],
) -> None:
    dialler, listener = meet(secrets)
    listener.receive(dialler.greeting)
    proof = dialler.receive(listener.greeting)
    with pytest.raises(ChallengeError, match="peer has another cell secret") as refusal:
        listener.receive(proof)
    assert refusal.value.answer == REFUSED
    with pytest.raises(ChallengeError, match="peer has another cell secret"):
        dialler.receive(refusal.value.answer)
    assert not listener.done and not dialler.done


def test_another_version_is_said_on_both_sides() -> None:
    dialler, listener = meet(versions=(1, 2))
    with pytest.raises(ChallengeError, match="peer speaks version 1, this is 2"):
        listener.receive(dialler.greeting)
    with pytest.raises(ChallengeError, match="peer speaks version 2, this is 1"):
        dialler.receive(listener.greeting)


def test_a_proof_is_for_one_channel_one_direction_and_one_connection() -> None:
    pull = Challenge(CELL, "pull", 2, dials=True)
    dialler, listener = meet()
    with pytest.raises(ChallengeError, match="another port"):
        pull.receive(listener.greeting)
    listener.receive(dialler.greeting)
    proof = dialler.receive(listener.greeting)
    with pytest.raises(ChallengeError, match="secret"):
        dialler.receive(proof)  # its own words, sent back
    _, second = meet()
    second.receive(dialler.greeting)
    with pytest.raises(ChallengeError, match="secret"):
        second.receive(proof)  # heard on another connection


@given(st.binary(min_size=GREETING_BYTES, max_size=GREETING_BYTES))
def test_a_stranger_s_first_bytes_are_refused(greeting: bytes) -> None:
    _, listener = meet()
    with pytest.raises(ChallengeError):
        listener.receive(greeting)


def test_sizes_are_fixed_and_keys_are_apart() -> None:
    dialler, listener = meet()
    assert (len(dialler.greeting), dialler.num_expected) == (GREETING_BYTES, GREETING_BYTES)
    assert len(dialler.receive(listener.greeting)) == dialler.num_expected == PROOF_BYTES
    assert len({purpose_key(secret, use) for secret in "ab" for use in "xy"}) == 4


@pytest.mark.parametrize(("secret", "warned"), [("", False), ("x" * 15, True), ("x" * 16, False)])
def test_a_short_secret_is_warned_of_and_not_shown(
    caplog: pytest.LogCaptureFixture, secret: str, warned: bool
) -> None:
    warn_if_short(secret)
    assert ("fewer than 16 characters" in caplog.text) == warned
    assert not secret or secret not in caplog.text
