"""Both ends of the challenge against each other and against a liar: pure bytes, no sockets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.challenge import (
    GREETING_BYTES,
    NONCE_BYTES,
    PROOF_BYTES,
    REFUSED,
    Challenge,
    ChallengeError,
    OtherSecretError,
    OtherVersionError,
    Versions,
    purpose_key,
    warn_if_short,
)

CELL = "cell"
TWO = Versions(2, 2)


def meet(
    secrets: tuple[str, str] = (CELL, CELL), spoken: tuple[Versions, Versions] = (TWO, TWO)
) -> tuple[Challenge, Challenge]:
    dialler = Challenge(secrets[0], "link", spoken[0], dials=True)
    return dialler, Challenge(secrets[1], "link", spoken[1], dials=False)


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


@pytest.mark.parametrize(
    ("spoken", "version"),
    [
        (((6, 6), (6, 7)), 6),
        (((6, 7), (6, 7)), 7),
        (((7, 8), (6, 7)), 7),
        (((1, 255), (6, 7)), 7),
        (((0, 255), (6, 7)), 7),
    ],
)
@pytest.mark.parametrize("dials", [True, False])
def test_the_newest_version_that_both_speak_is_spoken(
    spoken: tuple[tuple[int, int], tuple[int, int]], version: int, dials: bool
) -> None:
    first, second = (Versions(*each) for each in (spoken if dials else spoken[::-1]))
    dialler, listener = meet(spoken=(first, second))
    listener.receive(dialler.greeting)
    dialler.receive(listener.receive(dialler.receive(listener.greeting)))
    assert dialler.done and listener.done
    assert dialler.version == listener.version == version


def test_no_common_version_is_said_on_both_sides() -> None:
    dialler, listener = meet(spoken=(Versions(3, 3), Versions(6, 7)))
    with pytest.raises(
        OtherVersionError, match=r"peer speaks version 3, this is versions 6\.\.7: "
    ):
        listener.receive(dialler.greeting)
    with pytest.raises(
        OtherVersionError, match=r"peer speaks versions 6\.\.7, this is version 3: "
    ):
        dialler.receive(listener.greeting)
    assert not dialler.done and not listener.done


def test_a_greeting_is_laid_out_as_the_one_that_named_a_single_version() -> None:
    """What speaks 5 and nothing else reads a big-endian 16-bit version here, and says which."""
    only, also = (meet(spoken=(each, TWO))[0].greeting for each in (Versions(6, 6), Versions(6, 7)))
    assert (only[6:8], also[6:8]) == (b"\0\x06", b"\x01\x07")
    old = b"BATONL" + b"\0\x05" + bytes(NONCE_BYTES)
    with pytest.raises(OtherVersionError, match="peer speaks version 5, this is version 2"):
        meet()[1].receive(old)


@pytest.mark.parametrize("heard_by_dialler", [True, False])
def test_who_does_not_know_the_secret_cannot_choose_an_older_version(
    heard_by_dialler: bool,
) -> None:
    """Somebody in between cuts 7 out of what one end hears, or of both."""
    for both in (False, True):
        dialler, listener = meet(spoken=(Versions(6, 7), Versions(6, 7)))
        older = [end.greeting[:6] + b"\0\x06" + end.greeting[8:] for end in (dialler, listener)]
        to_listener = older[0] if both or not heard_by_dialler else dialler.greeting
        to_dialler = older[1] if both or heard_by_dialler else listener.greeting
        listener.receive(to_listener)
        proof = dialler.receive(to_dialler)
        with pytest.raises(OtherSecretError):
            listener.receive(proof)
        with pytest.raises(OtherSecretError):
            dialler.receive(REFUSED)


def test_a_proof_is_for_one_channel_one_direction_and_one_connection() -> None:
    pull = Challenge(CELL, "pull", TWO, dials=True)
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
