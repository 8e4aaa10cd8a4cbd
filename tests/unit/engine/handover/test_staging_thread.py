"""Copies of KV while steps run: what waits for them and what does not."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from shared.engine.engine import Engine
from shared.engine.handover.staging import HostStaging
from shared.engine.scheduling.sequence import Mode
from shared.protocol import TokenRun
from tests.unit.engine.fake_runner import make_prompt, make_spec, run_to_end, steps
from tests.unit.engine.handover.staged_worker import SAMPLING, Worker


class Gated(HostStaging):
    """Copies when the gate is open."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.gate = threading.Event()
        self.began = threading.Event()

    def _to_host(self, block_ids: Sequence[int], after: torch.cuda.Event | None) -> None:
        self._pass()
        super()._to_host(block_ids, after)

    def _to_device(self, block_ids: Sequence[int], after: torch.cuda.Event | None) -> None:
        self._pass()
        super()._to_device(block_ids, after)

    def _pass(self) -> None:
        self.began.set()
        assert self.gate.wait(10)


def gated(role: str, staging_class: type[Gated] = Gated) -> tuple[Engine, Gated]:
    worker = Worker(role, staging_class, prefix_cache=False)
    assert isinstance(worker.staging, Gated)
    return worker.engine, worker.staging


def test_token_1_does_not_wait_for_the_copy_and_the_seal_does() -> None:
    engine, staging = gated("prefill")
    spec = make_spec("a", make_prompt(7), SAMPLING, "prefill")
    engine.add(spec)
    output = engine.step()
    assert (len(output.tokens), output.staged, output.sealed) == (1, [], [])
    told = threading.Event()
    engine.hand_overs.on_ready = told.set
    staging.gate.set()
    assert told.wait(10) and engine.has_work
    last = list(steps(engine))[-1]
    assert [piece.block_ids for _, piece in last.staged] == [(0, 1)]
    assert [run for _, run in last.sealed] == output.tokens


def test_others_decode_while_kv_is_adopted() -> None:
    engine, staging = gated("decode")
    engine.add(make_spec("b", make_prompt(5), SAMPLING, "full"))
    engine.reserve(make_spec("a", make_prompt(7), SAMPLING, "decode"))
    [(attempt, _, _)] = engine.step().reserved
    assert engine.adopt(attempt, TokenRun(*attempt, 0, (1,)))
    assert staging.began.wait(10)
    others = [run.rid for _ in range(3) for run in engine.step().tokens]
    assert others == ["b"] * 3
    staging.gate.set()
    assert "a" in {run.rid for output in run_to_end(engine) for run in output.tokens}


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_a_block_is_not_free_while_a_copy_touches_it(mode: Mode) -> None:
    engine, staging = gated(mode)
    spec = make_spec("a", make_prompt(17), SAMPLING, mode)
    (engine.reserve if mode == "decode" else engine.add)(spec)
    for _ in range(3):
        engine.step()
    if mode == "decode":
        assert engine.adopt(spec.work.attempt, TokenRun(*spec.work.attempt, 0, (1,)))
    assert staging.began.wait(10) and engine.load().held
    opening = threading.Timer(0.05, staging.gate.set)
    opening.start()
    engine.abort(spec.work.attempt)
    assert staging.gate.is_set() and not engine.load().held
    assert not engine.hand_overs.in_flight
    opening.join()


def test_copies_into_blocks_that_were_given_up_are_left_out() -> None:
    engine, staging = gated("decode")
    spec = make_spec("a", make_prompt(17), SAMPLING, "decode")
    engine.reserve(spec)
    [(_, table, _)] = engine.step().reserved
    assert engine.adopt(spec.work.attempt, TokenRun(*spec.work.attempt, 0, (1,)))
    assert staging.began.wait(10)
    threading.Timer(0.05, staging.gate.set).start()
    engine.abort(spec.work.attempt)
    bytes_of = staging._device
    copied = [not bytes_of[block].view(torch.float32).isnan().all() for block in table]
    assert copied == [True, True, False, False, False]  # the bounce buffer holds two


class Broken(Gated):
    """Copies fail once the gate is open."""

    def _to_host(self, block_ids: Sequence[int], after: torch.cuda.Event | None) -> None:
        self._pass()
        raise RuntimeError("no thread left")


def test_a_copy_that_failed_is_not_forgotten_with_its_attempt() -> None:
    """Another attempt would be sealed with blocks of the same prefix that were never copied."""
    engine, staging = gated("prefill", Broken)
    spec = make_spec("a", make_prompt(7), SAMPLING, "prefill")
    engine.add(spec)
    engine.step()
    staging.gate.set()
    with pytest.raises(RuntimeError, match="no thread left"):
        engine.abort(spec.work.attempt)
