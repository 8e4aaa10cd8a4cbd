"""A machine of random lives of many sequences on one small engine.

Adds, reservations, arrivals of KV, aborts and releases in any order, prompts that share
prefixes, pools so small that preemption and eviction are the rule. After every action the
invariants hold; every token is the one of an undisturbed run; at the end every sequence that was
not aborted has its answer and every block is back.
"""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from numpy.typing import NDArray

from shared.engine.handover.output import StepOutput
from shared.engine.scheduling import sequence as sequences
from shared.engine.scheduling.sequence import Mode, SequenceSpec, SequenceState
from shared.errors import OutOfBlocksError, RequestError
from shared.kv.memory import Piece
from shared.protocol import Attempt, Sampling, TokenRun
from shared.settings.groups import KVPressure
from tests.support.oracles.engine_integrity import check_engine
from tests.unit.engine.fake_runner import (
    BLOCK_SIZE,
    answer_alone,
    fake_engine,
    make_spec,
)

torch.set_num_threads(1)

MAX_MODEL_LEN = 40
SETTINGS = settings(
    max_examples=120,
    stateful_step_count=40,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking takes minutes of CPU
    suppress_health_check=list(HealthCheck),
)
MUTANT_SETTINGS = settings(
    SETTINGS, max_examples=500, phases=(Phase.generate,), database=None, derandomize=True
)
"""until the fault is found: with ten seeds the rarest took 6 to 225 lives"""

answers = lru_cache(maxsize=None)(answer_alone)


def without_counts(sampling: Sampling) -> Sampling:
    return replace(sampling, presence_penalty=0.0, repetition_penalty=1.0)


prompts = st.builds(
    lambda trunk, length, tail: ((trunk,) * length + tuple(tail))[: MAX_MODEL_LEN - 1],
    st.integers(0, 1),
    st.integers(0, 20),
    st.lists(st.integers(0, 2), min_size=1, max_size=6),
)
samplings = st.builds(
    Sampling,
    max_tokens=st.integers(1, 16),
    temperature=st.sampled_from([0.0, 0.9]),
    top_k=st.sampled_from([0, 5]),
    seed=st.integers(0, 2),
    min_tokens=st.integers(0, 3),
    eos_token_ids=st.sampled_from([(), (3,), (4, 5, 6)]),
    stop_token_ids=st.sampled_from([(), (7,)]),
    min_p=st.sampled_from([0.0, 0.3]),
    presence_penalty=st.sampled_from([0.0, 0.0, 1.5]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.5]),
    logit_bias=st.sampled_from([(), ((2, 3.0), (9, -100.0))]),
)
FIRST_CLASS = 0
priorities = st.sampled_from([3, 3, 6, FIRST_CLASS])


class EngineLives(RuleBasedStateMachine):
    """One engine, every mode, and a worker that answers it in any order."""

    runs_ahead = False

    @initialize(
        num_blocks=st.integers(6, 24),
        budget=st.integers(7, 24),
        prefix_cache=st.sampled_from([True, True, True, False]),
        policy=st.sampled_from(["preempt", "preempt", "queue", "reject"]),
    )
    def start(self, num_blocks: int, budget: int, prefix_cache: bool, policy: KVPressure) -> None:
        self.policy = policy
        self.engine, self.runner = fake_engine(
            num_blocks,
            role="prefill",
            budget=budget,
            max_num_seqs=4,
            max_model_len=MAX_MODEL_LEN,
            prefix_cache=prefix_cache,
            runs_ahead=self.runs_ahead,
        )
        self.engine._scheduler.on_kv_pressure = policy
        self.specs: dict[Attempt, SequenceSpec] = {}
        self.tokens: dict[Attempt, dict[int, int]] = {}
        self.live: set[Attempt] = set()
        self.tables: dict[Attempt, tuple[int, ...]] = {}
        self.begun: set[Attempt] = set()
        self.pieces: dict[Attempt, list[Piece]] = {}
        self.sealed: set[Attempt] = set()
        self.known: dict[bytes, int] = {}
        self._stage()

    @rule(
        token_ids=prompts,
        sampling=samplings,
        mode=st.sampled_from(["full", "prefill"]),
        priority=priorities,
    )
    def add(
        self, token_ids: tuple[int, ...], sampling: Sampling, mode: Mode, priority: int
    ) -> None:
        self._take(token_ids, sampling, mode, priority)

    @rule(token_ids=prompts, sampling=samplings, priority=priorities)
    def reserve(self, token_ids: tuple[int, ...], sampling: Sampling, priority: int) -> None:
        if len(self._answer(token_ids, sampling)) > 1:
            self._take(token_ids, sampling, "decode", priority)

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        for _ in range(count):
            self._observe(self.engine.step())
            check_engine(self.engine)

    @precondition(lambda self: self.tables)
    @rule(choice=st.randoms(use_true_random=False))
    def deliver(self, choice: Any) -> None:
        """The KV, and the verdict on it, or the KV alone."""
        attempt = choice.choice(sorted(self.tables))
        if attempt in self.begun or choice.random() < 0.5:
            self._deliver(attempt)
        elif self.engine.begin(attempt, self._arrive(attempt)):
            self.begun.add(attempt)
            assert not self.engine.begin(attempt, 0), "it begins once"

    @precondition(lambda self: self.pieces)
    @rule(choice=st.randoms(use_true_random=False))
    def release(self, choice: Any) -> None:
        attempt = choice.choice(sorted(self.pieces))
        sequence = self.engine.sequences.get(attempt)
        if self._is_held(attempt):
            self._read(attempt)
            self.live.discard(attempt)
        elif sequence is not None and sequence.state is SequenceState.HELD:
            return  # nobody can have read what is not sealed yet
        self.engine.release(attempt)

    @precondition(lambda self: self.specs)
    @rule(choice=st.randoms(use_true_random=False))
    def abort(self, choice: Any) -> None:
        attempt = choice.choice(sorted(self.specs))
        self.engine.abort(attempt)
        self.live.discard(attempt)
        self.tables.pop(attempt, None)
        self.begun.discard(attempt)
        self.pieces.pop(attempt, None)

    @invariant()
    def holds_together(self) -> None:
        if hasattr(self, "engine"):
            check_engine(self.engine)
            for sequence in self.engine.sequences.values():
                assert sequence.num_preemptions <= sequences.MAX_PREEMPTIONS
                assert sequence.whole or self.policy == "preempt" or not sequence.block_table
                if self.policy != "preempt" and sequence.work.priority == FIRST_CLASS:
                    assert not sequence.num_preemptions, "an equal made it give way"

    def teardown(self) -> None:
        """Left to itself and answered, the engine ends every sequence."""
        if not hasattr(self, "engine"):
            return
        for _ in range(4000):
            while self.engine.has_work:
                self._observe(self.engine.step())
                check_engine(self.engine)
            for attempt in sorted(self.tables):
                self._deliver(attempt)
            for attempt in [a for a in self.engine.sequences if self._is_held(a)]:
                self._read(attempt)
                self.live.discard(attempt)
                self.engine.release(attempt)
            if not self.engine.has_work:
                break
        assert not self.live and not self.engine.sequences
        load = self.engine.load()
        assert load.held == 0 and load.free + load.cached == load.total

    def _take(
        self, token_ids: tuple[int, ...], sampling: Sampling, mode: Mode, priority: int
    ) -> None:
        name, sampling = f"{len(self.specs):03d}", self._possible(sampling)
        spec = make_spec(name, token_ids, sampling, mode, priority=priority)
        try:
            assert self.engine.reserve(spec) if mode == "decode" else self.engine.add(spec)
        except RequestError:
            return
        except OutOfBlocksError:
            assert self.policy == "reject" and mode != "decode"
            return
        self.specs[spec.work.attempt] = spec
        self.tokens[spec.work.attempt] = {}
        self.live.add(spec.work.attempt)

    def _observe(self, output: StepOutput) -> None:
        for run in output.tokens:
            attempt = run.attempt
            assert attempt not in self.begun, "told before the verdict"
            for offset, token in enumerate(run.token_ids):
                assert self.tokens[attempt].setdefault(run.index + offset, token) == token
            self._check_tokens(attempt, ended=run.finish_reason is not None)
        for attempt, block_ids, num_present in output.reserved:
            self.tables[attempt] = block_ids
            for index in range(num_present):
                self._check_block(attempt, index, self.runner.kv[block_ids[index]])
        for attempt, piece, _ in output.pieces:
            self.pieces.setdefault(attempt, []).append(piece)
            self._check_piece(attempt, piece)
        self.sealed.update(attempt for attempt, _ in output.sealed)
        assert self.policy == "preempt" or not output.handed_back
        for attempt in [*output.finished, *output.ended, *output.handed_back]:
            self.live.discard(attempt)
            self.pieces.pop(attempt, None)
        for name in output.removed:
            del self.known[name]
        for name, depth in output.stored:
            assert self.known.setdefault(name, depth) == depth
        assert self.known == dict(self.engine.cached_prefixes())

    def _deliver(self, attempt: Attempt) -> None:
        """The verdict on what prefill wrote, and token 1 with it."""
        token_ids = self.specs[attempt].work.token_ids
        first = self._answer(token_ids, self.specs[attempt].work.sampling)[0]
        if attempt not in self.begun:
            self._arrive(attempt)
        self.begun.discard(attempt)
        assert self.engine.adopt(attempt, TokenRun(*attempt, 0, (first,)))
        del self.tables[attempt]

    def _arrive(self, attempt: Attempt) -> int:
        """What prefill wrote arrives in the reserved blocks; token 1."""
        token_ids = self.specs[attempt].work.token_ids
        content = self._transferred()
        for position, token in enumerate(token_ids):
            block = self.tables[attempt][position // BLOCK_SIZE]
            content[block, position % BLOCK_SIZE] = (token, position)
        return self._answer(token_ids, self.specs[attempt].work.sampling)[0]

    def _read(self, attempt: Attempt) -> None:
        """A reader finds every block of a held prefill, once, as it was published."""
        pieces = self.pieces.pop(attempt)
        published = [block for piece in pieces for block in piece.block_ids]
        assert published == list(self.engine.sequences[attempt].block_table)
        for piece in pieces:
            self._check_piece(attempt, piece)

    def _check_piece(self, attempt: Attempt, piece: Piece) -> None:
        blocks = zip(piece.block_ids, piece.generations, strict=True)
        for offset, (block, generation) in enumerate(blocks):
            assert self.engine.memory.generations[block] == generation
            self._check_block(attempt, piece.first_block + offset, self._transferred()[block])

    def _check_block(self, attempt: Attempt, index: int, block: NDArray[np.int64]) -> None:
        token_ids = self.specs[attempt].work.token_ids
        start = index * BLOCK_SIZE
        expected = list(enumerate(token_ids[start : start + BLOCK_SIZE], start))
        assert block[: len(expected)].tolist() == [
            [token, position] for position, token in expected
        ]

    def _check_tokens(self, attempt: Attempt, *, ended: bool) -> None:
        spec = self.specs[attempt]
        got = self.tokens[attempt]
        answer = answers(
            spec.work.token_ids, len(spec.work.token_ids), spec.work.sampling, MAX_MODEL_LEN
        )
        assert [got[index] for index in range(len(got))] == answer[: len(got)]
        assert ended == (len(got) == len(answer))

    def _answer(self, token_ids: tuple[int, ...], sampling: Sampling) -> list[int]:
        return answers(token_ids, len(token_ids), self._possible(sampling), MAX_MODEL_LEN)

    def _possible(self, sampling: Sampling) -> Sampling:
        """The sampler of the host, which counts tokens once it knows them, is no step behind."""
        return without_counts(sampling) if self.runs_ahead else sampling

    def _is_held(self, attempt: Attempt) -> bool:
        sequence = self.engine.sequences.get(attempt)
        held = sequence is not None and sequence.state is SequenceState.HELD
        return held and attempt in self.sealed

    def _transferred(self) -> NDArray[np.int64]:
        """What transfers read and write: (token, position) per slot of each block."""
        return self.runner.kv

    def _stage(self) -> None:
        """Add other memory to the model's."""


class EngineLivesAhead(EngineLives):
    """The same for an engine that decides a step while the one before it runs."""

    runs_ahead = True


def assert_found(
    machine: type[EngineLives],
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    mutant: object,
) -> None:
    """Random lives notice a planted fault."""
    monkeypatch.setattr(owner, name, mutant)
    with pytest.raises((AssertionError, IndexError, KeyError, ExceptionGroup)):
        run_state_machine_as_test(machine, settings=MUTANT_SETTINGS)
