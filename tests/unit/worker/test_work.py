"""The work of a request is one type from the gateway to the engine."""

from dataclasses import fields

from shared.engine.scheduling.sequence import SequenceSpec
from shared.kv.block_hash import chain_hashes
from shared.protocol import WORKER_CODEC, Assign, Attempt, Receive, Sampling, Work
from shared.transfer_address import TransferAddress
from shared.worker.channel import CHANNEL_CODEC, Add, Reserve

ROOT, PROMPT = bytes(range(32)), tuple(range(40))
SAMPLING = Sampling(8, temperature=0.5, stop_token_ids=(3,), logit_bias=((1, 0.5),), grammar="{}")
WORK = Work(Attempt("r", 2), PROMPT, 38, ROOT, SAMPLING, "trace", True, 5, 2, False)
SOURCE = TransferAddress("host:1", "/kv.sock")
MESSAGES = (Assign(WORK, "p.1", "prefill"), Receive(WORK, "d.1", "p.1", SOURCE, "ticket"))


def test_a_field_of_a_request_is_declared_in_work_alone() -> None:
    """A new one touches one type: what carries the work has no field of its own for it."""
    of_work = {item.name for kind in (Work, Sampling) for item in fields(kind)}
    of_work |= {*Attempt._fields, "block_hashes"}
    for message in MESSAGES:
        assert not of_work & {item.name for item in fields(message)}
    told = [item.name for item in fields(SequenceSpec)]
    assert told == ["work", "block_hashes", "mode", "reason"]


def test_work_reaches_the_engine_whole() -> None:
    for item in fields(Work):
        assert getattr(WORK, item.name) != item.default, f"set {item.name} in WORK"
    for message in MESSAGES:
        work = WORKER_CODEC.decode(WORKER_CODEC.encode(message)).work
        for command in (Add, Reserve):
            told = CHANNEL_CODEC.encode(command(SequenceSpec.of(work, 16, "full")))
            assert CHANNEL_CODEC.decode(told).spec.work == WORK


def test_a_block_is_named_by_its_tokens_alone() -> None:
    """B1: a gateway cannot put one prompt's KV under the name of another's."""
    named = tuple(chain_hashes(ROOT, PROMPT, 16))
    for message in MESSAGES:
        assert SequenceSpec.of(message.work, 16, "prefill").block_hashes == named
