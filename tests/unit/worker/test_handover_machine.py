"""Random lives of a prefill and a decode worker, with crashes, cancels, retries and lost leases
between any two steps of engine, transfer, service and gateway.

Whatever happens: no client sees a token that an undisturbed run would not give, and in the end
every block is back. The model hashes the KV it finds through its block table, so one wrong or
half-copied block changes the answer.
"""

import asyncio
from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from services.decode.service import DecodeService
from services.prefill.service import PrefillService
from shared.engine.engine import Engine
from shared.engine.handover.kv_pool import host_pool
from shared.engine.sampling.sampler import Sampler
from shared.engine.scheduling.block_pool import BlockPool
from shared.engine.scheduling.scheduler import Scheduler
from shared.kv.layout import KVLayout
from shared.kv.memory import KVMemory
from shared.protocol import Sampling
from shared.worker.channel import Abort, Release, StepReport
from tests.support.fakes.manual_clock import ManualClock
from tests.support.fakes.memory_transport import MemoryNetwork
from tests.support.oracles.engine_integrity import check_engine
from tests.support.pairs.worker_pair import PairGateway, PairRequest, StepSender, StepWorker
from tests.unit.engine.fake_runner import BLOCK_SIZE, FakeRunner, answer_alone, make_prompt
from tests.unit.worker.stepped_transfer import Gates, SteppedTransport

MAX_MODEL_LEN = 32
NUM_BLOCKS = {"prefill": 8, "decode": 7}
LAYOUT = KVLayout("fake", "float32", 1, 2, 1, 2, BLOCK_SIZE)
"""64 bytes a block: the fake model's (token, position) pairs of four positions"""
MAX_END_TURNS = 3000
Role = Literal["prefill", "decode"]
ROLES = st.sampled_from(("prefill", "decode"))


class World:
    """Two workers, their gateway, and one event loop that runs only when told to."""

    def __init__(self, sabotage: Callable[[StepWorker], None] = lambda worker: None) -> None:
        self.sabotage = sabotage
        """breaks each new worker in one way; for the tests of this test"""
        self.clock = ManualClock()
        self.gates = Gates()
        self.network = MemoryNetwork()
        self.runner = asyncio.Runner()
        self.workers: dict[Role, StepWorker] = {}
        self.num_boots = 0
        self.wanted: dict[str, list[int]] = {}
        self.run(self._boot_all)

    def run(self, action: Callable[[], object]) -> None:
        """Do something on the event loop, then let every task come to rest at a gate."""

        async def act() -> None:
            action()
            for _ in range(8):
                await asyncio.sleep(0)

        self.runner.run(act())

    def submit(self, request: PairRequest) -> None:
        self.wanted[request.rid] = answer_alone(
            request.prompt, len(request.prompt), request.sampling, MAX_MODEL_LEN
        )
        self.run(lambda: self.gateway.submit(request))

    def turn(self, role: Role) -> None:
        if self.workers[role].has_work:
            self.run(self.workers[role].turn)

    def crash(self, role: Role) -> None:
        """The process is gone, its memory too; another takes its place."""
        old = self.workers[role]
        self._bury(old)
        self.workers[role] = self._boot(role)
        self.runner.run(self.workers[role].service.start())
        self.run(lambda: self.gateway.replace(old, self.workers[role]))

    def lose_leases(self) -> None:
        """As if decode had shown no sign of life for too long."""
        transport = self.workers["prefill"].transport
        assert isinstance(transport, SteppedTransport)
        self.clock.advance(31.0)
        self.run(transport.table.expire)

    def finish(self) -> None:
        """Nothing is disturbed any more: everything ends, every block comes back."""
        self.advance(self.is_over)
        for worker in self.workers.values():
            worker.assert_all_blocks_back()
        for request in self.gateway.requests.values():
            assert request.finish_reason
            if request.finish_reason != "cancelled":
                assert request.sequencer.token_ids == self.wanted[request.rid]

    def advance(self, is_there: Callable[[], object], spare: int = 0) -> None:
        """Everybody in turn, until `is_there`; the `spare` oldest gates stay closed."""
        for _ in range(MAX_END_TURNS):
            if is_there():
                return
            for role, worker in self.workers.items():
                self.run(worker.deliver)
                self.run(lambda worker=worker: self.gateway.pump(worker))  # type: ignore[misc]
                self.turn(role)
            if len(self.gates.waiting) > spare:
                self.run(lambda: self.gates.open(spare))

    def is_over(self) -> bool:
        return self.gateway.done and all(
            not (worker.has_work or worker.channel.events or worker.engine.sequences)
            for worker in self.workers.values()
        )

    def close(self) -> None:
        for worker in self.workers.values():
            self._bury(worker)
        self.runner.close()

    def _bury(self, worker: StepWorker) -> None:
        self.runner.run(worker.service.close())

    def _boot_all(self) -> None:
        self.workers = {"prefill": self._boot("prefill"), "decode": self._boot("decode")}
        self.gateway = PairGateway(self.workers["prefill"], self.workers["decode"])
        self.starting = asyncio.ensure_future(self.workers["prefill"].service.start())

    def _boot(self, role: Role) -> StepWorker:
        self.num_boots += 1
        inc = f"{role}.{self.num_boots}"
        engine = shared_memory_engine(role)

        worker = StepWorker(
            role,
            inc,
            engine,
            SteppedTransport(engine.memory, inc, self.network, self.clock, self.gates),
            asyncio.Event(),
        )
        self.sabotage(worker)
        return worker


def shared_memory_engine(role: Role) -> Engine:
    """The fake model with its KV in memory that a transport can read and write."""
    num_blocks = NUM_BLOCKS[role]
    memory = KVMemory.create(LAYOUT, num_blocks)
    runner = FakeRunner(num_blocks)
    size = num_blocks * LAYOUT.block_bytes
    runner.kv = np.frombuffer(memory.blocks[:size], dtype=np.int64).reshape(runner.kv.shape)
    runner.kv[:] = -1
    scheduler = Scheduler(
        BlockPool(num_blocks, BLOCK_SIZE, memory.generations),
        max_num_batched_tokens=8,
        max_num_seqs=3,
        max_model_len=MAX_MODEL_LEN,
    )
    return Engine(runner, scheduler, Sampler(), host_pool(memory), role)


class HandoverMachine(RuleBasedStateMachine):
    """Every rule is one step of one party, or one misfortune."""

    sabotage: Callable[[StepWorker], None] = staticmethod(lambda worker: None)

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.sabotage)
        self.num_submitted = 0

    @precondition(lambda self: self.num_submitted < 6)
    @rule(
        length=st.integers(1, 17),
        salt=st.integers(0, 1),
        max_tokens=st.integers(1, 8),
        seed=st.integers(0, 9),
        local=st.sampled_from((None, None, None, "slow_link")),
    )
    def submit(
        self,
        length: int,
        salt: int,
        max_tokens: int,
        seed: int,
        local: Literal["slow_link"] | None,
    ) -> None:
        self.num_submitted += 1
        sampling = Sampling(max_tokens=max_tokens, temperature=0.8 * (seed > 4), seed=seed)
        rid = f"r{self.num_submitted}"
        self.world.submit(PairRequest(rid, make_prompt(length, salt), sampling, local))

    @rule(role=ROLES, count=st.integers(1, 4))
    def step_engine(self, role: Role, count: int) -> None:
        for _ in range(count):
            self.world.turn(role)

    @rule(role=ROLES)
    def deliver(self, role: Role) -> None:
        self.world.run(self.world.workers[role].deliver)

    @rule(role=ROLES, limit=st.integers(1, 3))
    def pump(self, role: Role, limit: int) -> None:
        self.world.run(lambda: self.world.gateway.pump(self.world.workers[role], limit))

    @rule(choice=st.integers(0, 3), count=st.integers(1, 10))
    def transfer(self, choice: int, count: int) -> None:
        for _ in range(count):
            self.world.run(lambda: self.world.gates.open(choice))

    @rule(count=st.integers(1, 6))
    def run_quietly(self, count: int) -> None:
        """A stretch without misfortune, so that lives get far."""
        for _ in range(count):
            for role in self.world.workers:
                self.world.turn(role)
                self.deliver(role)
                self.pump(role, 9)
            self.transfer(0, 4)

    @precondition(lambda self: self.num_submitted)
    @rule(which=st.integers(0, 5), leaves=st.booleans())
    def disturb(self, which: int, leaves: bool) -> None:
        """The client leaves, or the gateway loses patience."""
        live = [r for r in self.world.gateway.requests.values() if not r.finish_reason]
        if not live:
            return
        request = live[which % len(live)]
        act = self.world.gateway.cancel if leaves else self.world.gateway.retry
        self.world.run(lambda: act(request))

    @precondition(lambda self: self.num_submitted)
    @rule(role=ROLES)
    def crash(self, role: Role) -> None:
        self.world.crash(role)

    @precondition(lambda self: self.num_submitted)
    @rule()
    def lose_leases(self) -> None:
        self.world.lose_leases()

    @invariant()
    def no_client_has_a_wrong_token(self) -> None:
        for rid, request in self.world.gateway.requests.items():
            tokens = request.sequencer.token_ids
            assert tokens == self.world.wanted[rid][: len(tokens)]

    @invariant()
    def blocks_add_up(self) -> None:
        for worker in self.world.workers.values():
            check_engine(worker.engine)
            load = worker.engine.load()
            assert load.free + load.cached + load.held == load.total

    def teardown(self) -> None:
        try:
            self.world.finish()
        finally:
            self.world.close()


HandoverMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)
TestHandover = HandoverMachine.TestCase


def keep_cancelled(worker: StepWorker) -> None:
    """CANCEL does not reach the engine."""
    drop_commands(worker, Abort)


def keep_released(worker: StepWorker) -> None:
    """RELEASE does not reach the engine."""
    drop_commands(worker, Release)


def drop_commands(worker: StepWorker, kind: type) -> None:
    channel = worker.channel
    put = channel.put
    channel.put = lambda command: None if isinstance(command, kind) else put(command)  # type: ignore[method-assign]
    worker.service._engine = worker.service._offers._engine = StepSender(channel)


def free_under_a_pull(worker: StepWorker) -> None:
    """CANCEL frees decode's blocks while a pull goes on writing them (against R7, R18)."""
    if isinstance(worker.service, DecodeService):
        worker.service._pulls.cancel = lambda attempt, then: then()  # type: ignore[method-assign]


def read_blindly(worker: StepWorker) -> None:
    """Prefill frees what it sealed at once, and decode checks nothing (against R7, R13)."""
    if isinstance(worker.service, PrefillService):
        service = worker.service
        report = service._report

        def release_early(event: StepReport) -> None:
            report(event)
            for attempt, _ in event.sealed:
                worker.channel.put(Release(attempt))

        service._report = release_early  # type: ignore[method-assign, assignment]
    transport = worker.transport
    assert isinstance(transport, SteppedTransport)
    transport.table.is_fresh = lambda *asked: True  # type: ignore[method-assign]
    transport.blind()


@pytest.mark.parametrize("sabotage", [keep_cancelled, keep_released, read_blindly])
def test_the_machine_finds_what_is_broken(sabotage: Callable[[StepWorker], None]) -> None:
    class Sabotaged(HandoverMachine):
        pass

    Sabotaged.sabotage = staticmethod(sabotage)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            Sabotaged,
            settings=settings(
                max_examples=500,
                stateful_step_count=40,
                database=None,
                derandomize=True,
                phases=(Phase.generate,),
                suppress_health_check=list(HealthCheck),
            ),
        )


@pytest.mark.parametrize("broken", [False, True])
def test_a_cancelled_pull_writes_into_nobody_elses_blocks(broken: bool) -> None:
    """The first pull stands in the middle of a block; its request is cancelled, the next one
    gets its blocks and its KV; then the first pull may go on."""
    world = World(free_under_a_pull if broken else lambda worker: None)
    sampling = Sampling(max_tokens=6, temperature=0.0)
    first = PairRequest("r1", make_prompt(8, 0), sampling)
    second = PairRequest("r2", make_prompt(8, 1), sampling)
    world.submit(first)
    world.advance(lambda: "blocks" in world.gates.passed)
    world.run(lambda: world.gateway.cancel(first))
    world.submit(second)
    world.advance(lambda: second.sequencer.next_index >= 2, spare=len(world.gates.waiting))
    try:
        if broken:
            with pytest.raises(AssertionError):
                world.finish()
        else:
            world.finish()
    finally:
        world.close()
