"""Blocks on GPUs that are reused while they are pulled, leases that end meanwhile: no wrong block
is ever accepted, and nothing is left mapped."""

import asyncio
import os

import pytest
import torch

from shared.mover.agent import is_installed
from shared.transfer.blocks.mapping import Mapping
from shared.transfer.offers import OfferTable
from tests.support.pairs.device_pair import DevicePair
from tests.support.pairs.reuse import ReusingPlan, Tally, check_all_met, run_under_reuse
from tests.support.pairs.transfer_pair import Kind

NUM_PULLS = int(os.environ.get("TRANSFER_PULLS", "500"))


def run_kind(kind: Kind, num_pulls: int) -> tuple[Tally, ReusingPlan]:
    async def run() -> tuple[Tally, ReusingPlan]:
        async with DevicePair(kind) as pair:
            return await run_under_reuse(pair, num_pulls, seed=17)

    return asyncio.run(run())


KINDS = ["mapped", "tcp"]
if is_installed():
    KINDS.append("nixl")
if torch.cuda.device_count() > 1:  # NCCL links no GPU to itself
    KINDS.append("nccl")


@pytest.fixture(autouse=True)
def within_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """UCX reads no GPU's memory of its own process but by emulation."""
    monkeypatch.setattr("shared.mover.agent.NO_EMULATION", "PROTO_EMULATION_ENABLE=y")


@pytest.mark.parametrize("kind", KINDS)
def test_no_wrong_block_is_accepted_under_forced_reuse(kind: Kind) -> None:
    tally, plan = run_kind(kind, NUM_PULLS)
    check_all_met(tally, plan)
    assert tally.wrong == 0


@pytest.mark.parametrize("kind", KINDS)
def test_without_verify_the_same_test_finds_wrong_blocks(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OfferTable, "is_fresh", lambda *_: True)
    monkeypatch.setattr(Mapping, "is_fresh", lambda *_: True)
    tally, _ = run_kind(kind, 300)
    assert tally.wrong > 0
