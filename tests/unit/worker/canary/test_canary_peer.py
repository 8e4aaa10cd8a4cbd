"""Whom a canary is moved with, what it is, and what is said while none has come."""

from dataclasses import replace

from shared.engine.scheduling.admission import check_fits
from shared.engine.scheduling.block_pool import BlockPool
from shared.engine.scheduling.sequence import SequenceSpec
from shared.protocol import Load
from shared.state.registry import WorkerEntry
from shared.worker.acceptance import Acceptance
from shared.worker.canary.peer import peers_of, reason_of
from shared.worker.canary.prompt import canary_prompt
from shared.worker.identity import WorkerRole
from tests.unit.worker.fake_parts import make_assign

OWN = WorkerEntry("d-0", "d-0.1", "decode", "h", 1, "pool", 2, "v", "m", 64, 16)
LOAD = Load(100, 0, 0, 0, 8, 8, 0, 0)


def entry(name: str, role: WorkerRole = "prefill", load: Load | None = LOAD) -> WorkerEntry:
    return replace(OWN, worker_id=name, incarnation=f"{name}.1", role=role, load=load)


def test_peers_are_the_other_role_that_takes_prompts() -> None:
    listed = [
        OWN,
        entry("d-1", "decode"),
        entry("p-0"),
        entry("p-1", load=None),
        entry("p-2", load=replace(LOAD, state="draining")),
    ]
    assert {peer.name for peer in peers_of(OWN, listed)} == {"p-0", "p-1"}
    assert {peer.name for peer in peers_of(entry("p-0"), listed)} == {"d-0", "d-1"}


def test_newcomers_do_not_all_ask_the_same_peer_first() -> None:
    listed = [entry(f"p-{number}") for number in range(8)]
    assert len({peers_of(OWN, listed)[0] for _ in range(200)}) > 1


def test_the_reason_names_peers_and_ways_and_stays_short() -> None:
    assert reason_of({"p-0": "it hung up"}, ["mapped", "tcp"]) == (
        "no KV canary comes by mapped or tcp with p-0: it hung up"
    )
    many = {f"p-{number}": "x" for number in range(5)}
    assert reason_of(many, ["tcp"]).endswith("with p-2: x; nor with 2 more")


def test_the_prompt_is_one_block_that_every_worker_takes_and_no_cache_has() -> None:
    for block_size, max_model_len, vocab_size in ((16, 8192, 50_000), (16, 16, 50_000), (16, 4, 3)):
        work = canary_prompt(block_size, max_model_len, vocab_size)
        message = make_assign()
        assert Acceptance(vocab_size, max_model_len).rejection(replace(message, work=work)) is None
        spec = SequenceSpec.of(work, block_size, "prefill")
        check_fits(
            spec, BlockPool(2, block_size, memoryview(bytearray(16)).cast("Q")), max_model_len
        )
        assert len(work.token_ids) <= block_size
    one, other = (SequenceSpec.of(canary_prompt(16, 64, 9), 16, "prefill") for _ in range(2))
    assert one.work.token_ids == other.work.token_ids
    assert one.work.attempt != other.work.attempt
    assert set(one.block_hashes).isdisjoint(other.block_hashes)
