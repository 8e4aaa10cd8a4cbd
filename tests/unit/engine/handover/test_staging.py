"""Blocks between a device pool and host memory, with a second CPU tensor as the device.

The contract: a reported piece lies in host memory whole, stays as it is while it may be read,
adopted blocks lie in the device pool before they are used, and host memory is given back.
"""

import os
import random
import time
from collections.abc import Sequence
from concurrent.futures import Future

import pytest
import torch

from shared.engine.handover.output import StepOutput
from shared.engine.handover.staging import HostStaging
from shared.engine.layers.kv_cache import pool_shape
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory, Piece
from shared.protocol import Attempt, Sampling
from tests.unit.engine.fake_runner import (
    LAYOUT,
    ForgetfulMemory,
    answer_alone,
    make_prompt,
    make_spec,
    run_to_end,
    steps,
    tokens_of,
)
from tests.unit.engine.handover.staged_worker import MAX_LENGTH, SAMPLING, Worker

PAGES = KVLayout("pages", "float32", 1, 2, 1, 1024, 1)
"""8 KiB: two pages"""


class Handover:
    """A reader that takes each piece in the moment it is reported."""

    def __init__(
        self,
        prefill_staging: type[HostStaging] = HostStaging,
        decode_staging: type[HostStaging] = HostStaging,
        *,
        decode_cache: bool = False,
    ) -> None:
        self.p = Worker("prefill", prefill_staging)
        self.d = Worker("decode", decode_staging, prefix_cache=decode_cache)

    def answer(self, name: str, prompt: tuple[int, ...]) -> list[int]:
        self.d.engine.reserve(make_spec(name, prompt, SAMPLING, "decode"))
        [(attempt, table, num_present)] = self.d.engine.step().reserved
        for block in table:  # whoever copies what was not pulled shall notice
            self.d.memory.block(block)[:] = os.urandom(LAYOUT.block_bytes)
        self.p.engine.add(make_spec(name, prompt, SAMPLING, "prefill"))
        sealed = []
        for output in steps(self.p.engine):
            for _, piece in output.staged:
                self._read(piece, table, num_present)
            sealed += [run for _, run in output.sealed]
        assert self.d.engine.adopt(attempt, sealed[0])
        self.p.engine.release(attempt)
        return tokens_of(run_to_end(self.d.engine), attempt)

    def _read(self, piece: Piece, table: tuple[int, ...], num_present: int) -> None:
        for offset, block in enumerate(piece.block_ids):
            logical = piece.first_block + offset
            if logical >= num_present:
                self.d.memory.block(table[logical])[:] = self.p.memory.block(block)


class PublishesLate(HostStaging):
    """Mutant: the piece is reported while the copy is still to come."""

    late: Sequence[int] = ()

    def _to_host(self, block_ids: Sequence[int], after: torch.cuda.Event | None) -> None:
        super()._to_host(self.late, after)
        self.late = block_ids


class PublishesOnce(HostStaging):
    """Mutant: takes what a block's earlier owner staged for the content of the present one."""

    def _lacks(self, block: int) -> bool:
        return self._staged[block] < 0


class AdoptsNothing(HostStaging):
    """Mutant: the pulled bytes stay on the host."""

    def _to_device(self, block_ids: Sequence[int], after: torch.cuda.Event | None) -> None:
        pass


class AdoptsAllButLast(HostStaging):
    """Mutant: the partial block at the end is forgotten."""

    def adopt(self, part: Sequence[int], after: torch.cuda.Event | None) -> "Future[None]":
        return super().adopt(part[:-1], after)


class AdoptsLate(HostStaging):
    """Mutant: says that the KV is there while the copy is still to come."""

    def adopt(self, part: Sequence[int], after: torch.cuda.Event | None) -> "Future[None]":
        done: Future[None] = Future()
        done.set_result(None)
        self._thread.submit(time.sleep, 0.01)
        super().adopt(part, after)
        return done


class RetiresUnnoticed(HostStaging):
    """Mutant: gives host memory back and still takes it for staged."""

    def retire(self, block_ids: Sequence[int]) -> None:  # type: ignore[override]
        for block in block_ids:
            self._memory.block(block)[:] = bytes(LAYOUT.block_bytes)


PROMPTS = [make_prompt(length, salt) for salt in (0, 1) for length in (23, 1, 4, 15, 16, 23, 30)]
"""of two families; within one, each begins like the longer ones"""


def all_answers_right(handover: Handover) -> bool:
    return all(
        handover.answer(str(index), prompt)
        == answer_alone(prompt, len(prompt), SAMPLING, MAX_LENGTH)
        for index, prompt in enumerate(PROMPTS * 2)
    )


@pytest.mark.parametrize("decode_cache", [False, True])
def test_staged_answers_equal_those_of_an_engine_alone(decode_cache: bool) -> None:
    handover = Handover(decode_cache=decode_cache)
    assert all_answers_right(handover)
    for worker in (handover.p, handover.d):
        worker.engine.check_integrity()
        assert worker.engine.load().held == 0
    assert handover.d.engine.counters.prompt_tokens_computed == 0


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        (PublishesLate, HostStaging),
        (PublishesOnce, HostStaging),
        (RetiresUnnoticed, HostStaging),
        (HostStaging, AdoptsNothing),
        (HostStaging, AdoptsAllButLast),
        (HostStaging, AdoptsLate),
    ],
)
def test_each_mistake_gives_wrong_answers(
    prefill: type[HostStaging], decode: type[HostStaging]
) -> None:
    assert not all_answers_right(Handover(prefill, decode))


class Readers:
    """What may be read of one prefill worker at any moment, and whether it still stands."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.pieces: dict[Attempt, dict[int, tuple[int, bytes]]] = {}
        """per standing attempt: block -> (generation, bytes) as they were when reported"""

    def note(self, output: StepOutput) -> None:
        for attempt in output.ended:
            self.pieces.pop(attempt, None)
        for attempt, piece in output.staged:
            if attempt in output.ended:
                continue  # END follows at once: what is read of it is thrown away
            for block, generation in zip(piece.block_ids, piece.generations, strict=True):
                content = bytes(self.worker.memory.block(block))
                assert content == self.worker.device_bytes(block)
                self.pieces.setdefault(attempt, {})[block] = generation, content

    def check(self) -> None:
        memory = self.worker.memory
        for blocks in self.pieces.values():
            for block, (generation, content) in blocks.items():
                assert memory.generations[block] == generation
                assert memory.block(block) == content


@pytest.mark.parametrize("seed", range(6))
def test_published_bytes_stand_until_their_attempt_is_over(seed: int) -> None:
    numbers = random.Random(seed)  # noqa: S311
    worker = Worker("prefill", num_blocks=24, keep_bytes=3 * LAYOUT.block_bytes)
    engine, readers = worker.engine, Readers(worker)
    waiting: list[Attempt] = []
    for number in range(60):
        prompt = make_prompt(numbers.randrange(1, 40), numbers.randrange(3))
        sampling = Sampling(max_tokens=numbers.choice((1, 5)), temperature=0.0)
        spec = make_spec(str(number), prompt, sampling, "prefill")
        engine.add(spec)
        waiting.append(spec.work.attempt)
        for _ in range(numbers.randrange(4)):
            readers.note(engine.step())
            readers.check()
        while len(waiting) > 3 or (waiting and numbers.random() < 0.3):
            attempt = waiting.pop(numbers.randrange(len(waiting)))
            readers.pieces.pop(attempt, None)
            engine.abort(attempt)
            readers.check()
    engine.check_integrity()
    assert len(worker.staging._retired) <= 3


def test_a_prefix_that_was_kept_is_not_copied_again() -> None:
    worker = Worker("prefill")
    engine, prompt = worker.engine, make_prompt(12)
    first = make_spec("a", prompt, SAMPLING, "prefill")
    engine.add(first)
    [(_, piece)] = [piece for output in run_to_end(engine) for piece in output.staged][:1]
    engine.release(first.work.attempt)
    kept = bytes(worker.memory.block(piece.block_ids[0]))
    worker.device[piece.block_ids[0]] = 0
    engine.add(make_spec("b", (*prompt, 1), SAMPLING, "prefill"))
    again = [piece for output in run_to_end(engine) for _, piece in output.staged]
    assert again[0].block_ids[0] == piece.block_ids[0]
    assert worker.memory.block(piece.block_ids[0]) == kept


def publish(staging: HostStaging, block_ids: Sequence[int]) -> None:
    for part in staging.parts(block_ids):
        staging.publish(part, None).result()


def occupied_bytes(memory: KVMemory) -> int:
    return os.fstat(memory.fd).st_blocks * 512


def test_host_memory_is_given_back() -> None:
    memory = KVMemory.create(PAGES, 16)
    device = torch.randn(pool_shape(PAGES, 16))
    staging = HostStaging(memory, device, keep_bytes=3 * PAGES.block_bytes)
    before = occupied_bytes(memory)
    for block in range(16):
        memory.generations[block] += 1
    table_bytes = occupied_bytes(memory) - before
    publish(staging, range(16))
    assert occupied_bytes(memory) == table_bytes + 16 * PAGES.block_bytes
    staging.retire(range(2, 16))
    assert occupied_bytes(memory) == table_bytes + (2 + 3) * PAGES.block_bytes
    assert memory.block(15) == device[15].numpy().tobytes()
    assert not any(memory.block(2))
    publish(staging, [2])
    assert memory.block(2) == device[2].numpy().tobytes()


def test_memory_that_has_a_new_owner_is_not_given_back_for_the_old_one() -> None:
    memory = ForgetfulMemory.create(LAYOUT, 4)
    device = torch.zeros(pool_shape(LAYOUT, 4))
    staging = HostStaging(memory, device, keep_bytes=2 * LAYOUT.block_bytes)
    publish(staging, range(4))
    staging.retire([0, 1])
    memory.generations[0] += 1
    pulled = os.urandom(LAYOUT.block_bytes)
    memory.block(0)[:] = pulled
    staging.retire([2, 3])
    assert memory.block(0) == pulled
    assert any(memory.block(1)) and not any(memory.block(2))


def test_an_adopted_or_abandoned_reservation_occupies_no_host_memory() -> None:
    memory = KVMemory.create(PAGES, 4)
    device = torch.zeros(pool_shape(PAGES, 4))
    staging = HostStaging(memory, device)
    pulled = [os.urandom(PAGES.block_bytes) for _ in range(4)]
    for block, content in enumerate(pulled):
        memory.generations[block] += 1
        memory.block(block)[:] = content
    full = occupied_bytes(memory)
    staging.adopt([0, 1], None).result()
    staging.retire([2])
    assert [device[block].numpy().tobytes() for block in (0, 1)] == pulled[:2]
    assert not device[2:].any()
    assert occupied_bytes(memory) == full - 3 * PAGES.block_bytes
    assert memory.block(3) == pulled[3]


def test_pages_that_a_neighbour_shares_stay() -> None:
    layout = KVLayout("odd", "float32", 1, 2, 1, 3 * 256, 1)  # a page and a half
    memory = KVMemory.create(layout, 3)
    memory.blocks[:] = os.urandom(len(memory.blocks))
    outer = bytes(memory.block(0)), bytes(memory.block(2))
    full = occupied_bytes(memory)
    memory.discard(1)
    assert (bytes(memory.block(0)), bytes(memory.block(2))) == outer
    assert occupied_bytes(memory) == full - 4096
