"""What the engine is told: the blocks' names follow from the tokens, whoever sent them."""

import logging

import pytest

from shared.block_hash import chain_hashes
from shared.protocol import Assign, Receive
from shared.settings import Settings
from shared.worker.run import warn_if_open
from shared.worker.specs import assigned_sequence, received_sequence
from tests.unit.worker.fake_parts import make_assign, make_receive

ROOT, PROMPT = bytes(range(32)), tuple(range(40))


def test_a_block_is_named_by_its_tokens_alone() -> None:
    """B1: a gateway cannot put one prompt's KV under the name of another's."""
    named = tuple(chain_hashes(ROOT, PROMPT, 16))
    assign = make_assign(token_ids=PROMPT, num_prompt_tokens=40, hash_root=ROOT)
    receive = make_receive(token_ids=PROMPT, num_prompt_tokens=40, hash_root=ROOT)
    assert assigned_sequence(assign, 16).block_hashes == named
    assert received_sequence(receive, 16).block_hashes == named
    for kind in (Assign, Receive):
        assert not {"block_hashes", "hashes"} & set(kind.__dataclass_fields__)


@pytest.mark.parametrize(
    ("host", "secret", "warned"),
    [
        ("0.0.0.0", "", True),  # noqa: S104
        ("10.0.0.7", "", True),
        ("worker.example", "", True),
        ("10.0.0.7", "s", False),
        ("127.0.0.1", "", False),
        ("::1", "", False),
        ("localhost", "", False),
    ],
)
def test_a_worker_that_others_reach_without_a_secret_says_so(
    caplog: pytest.LogCaptureFixture, host: str, secret: str, warned: bool
) -> None:
    with caplog.at_level(logging.WARNING):
        warn_if_open(Settings(host=host, cell_secret=secret))
    assert ("BATON_CELL_SECRET" in caplog.text) == warned
