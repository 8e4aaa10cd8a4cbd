"""The engine process of a worker: the step loop, and a thread that copies blocks.

    loop:   apply the commands that arrived  ->  step  ->  report
    mover:  copy and digest what the io process asks for, whatever the loop does

Forked by `shared.worker.fork_server` with one end of the channel and one of the mover's data
socket; settings come through the environment. Ends when the channel closes, so it never outlives
its io process. The mover runs with every transport: one that asks it nothing leaves it asleep, and
all workers are built alike.
"""

import os
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from shared.engine.build import build_engine
from shared.engine.engine import Engine
from shared.engine.handover.kv_pool import KVPool
from shared.engine.handover.output import StepOutput
from shared.engine.handover.shared_pool import PoolKind
from shared.engine.layers.random_weights import RandomWeights
from shared.engine.layers.weights import WeightReader
from shared.engine.loading.pool_access import PoolAccess, descriptors_of, start_mover
from shared.engine.rank_processes.followers import RankLostError, end_process
from shared.engine.running.step_trace import StepTrace
from shared.engine.scheduling.sequence import SequenceSpec
from shared.errors import BatonError, OutOfBlocksError, ProtocolError, RequestError
from shared.model.checkpoint import load_checkpoint
from shared.mover.first_tokens import FirstTokens
from shared.planted_faults.faulty_engine import FaultyEngine
from shared.process import freeze_heap
from shared.settings.groups import Settings
from shared.settings.load import load_settings
from shared.telemetry.logs import configure_logs
from shared.worker.channel import (
    Abort,
    Add,
    Adopt,
    Announced,
    Beat,
    Command,
    CommandSource,
    EngineChannel,
    Nearing,
    Ready,
    Refused,
    Release,
    Reserve,
    Reserved,
    Scheduled,
    StepReport,
    Trace,
)
from shared.worker.identity import WorkerRole

LOOK_EVERY_S = 2e-5
"""for a first token that is about to be shown"""
LOOK_AGAIN_S = 0.002
"""whether the step in flight has ended sooner than was predicted"""
GAUGED_EVERY_NS = 1_000_000_000


class EngineLoop:
    """Applies commands between steps and reports each step."""

    def __init__(
        self,
        engine: Engine | FaultyEngine,
        channel: CommandSource,
        first_tokens: FirstTokens | None = None,
    ) -> None:
        """`first_tokens`: of sequences whose KV is here; default: none are shown."""
        self._engine = engine
        self._channel = channel
        self._first_tokens = first_tokens or FirstTokens(lambda: None)
        self._began_ns = 0
        """when the step in flight began to run"""
        self._gauged_ns = 0
        self._trace = StepTrace(Path(tempfile.gettempdir()))
        engine.on_scheduled = self._report_scheduled

    def run(self) -> None:
        """Until the io process closes the channel (EOFError)."""
        while True:
            self.turn()

    def turn(self) -> None:
        """Apply what arrived, waiting for something if there is nothing to do, then step. Where
        token 1 is near, the next step is started as the one in flight ends, so that it joins."""
        if self._engine.has_work:
            self._receive(0.0)
        else:
            self._wait()
        while due_s := self._engine.next_launch.due_s():
            self._receive(min(due_s, LOOK_AGAIN_S))
        self._step()

    def _wait(self) -> None:
        """For a command, or something to do; what will be done then is exercised while it is
        near."""
        launch = self._engine.next_launch
        exercise_s = launch.exercise_due_s()
        while not (self._receive(exercise_s) or self._engine.has_work):
            exercise_s = launch.exercise_due_s()
            if exercise_s == 0:
                launch.exercise()
            elif exercise_s is None and not self._first_tokens.any_expected:
                return

    def _receive(self, limit_s: float | None) -> bool:
        """Apply commands and begin with first tokens that arrive within this time, or sooner, None:
        whenever; whether a command came."""
        if self._first_tokens.any_expected:
            limit_s = LOOK_EVERY_S if limit_s is None else min(limit_s, LOOK_EVERY_S)
        commands = self._channel.receive(limit_s)
        for command in commands:
            self._apply(command)
        for attempt, token_id in self._first_tokens.arrived():
            if not self._engine.begin(attempt, token_id):
                self._first_tokens.decline(attempt)
        return bool(commands)

    def _step(self) -> None:
        start_ns = time.time_ns()
        ran_ahead = self._engine.in_flight
        self._trace.begin_step()
        output = self._engine.step()
        self._trace.end_step()
        for attempt, problem in output.failed:
            self._channel.send(Refused(attempt, problem))
        for attempt, problem in output.refused:
            self._channel.send(Refused(attempt, problem, "grammar"))
        end_ns = time.time_ns()
        began_ns = self._began_ns if ran_ahead else start_ns
        self._channel.send(self._report(output, began_ns, end_ns))
        # What this turn started runs from now on, if it had to wait for a step before it.
        self._began_ns = end_ns if ran_ahead else start_ns

    def _apply(self, command: Command) -> None:
        match command:
            case Add(spec):
                self._take(spec, lambda: self._engine.add(spec))
            case Reserve(spec):
                self._take(spec, lambda: self._engine.reserve(spec))
            case Nearing(attempt):
                self._engine.near(attempt)
            case Adopt():
                self._adopt(command)
            case Release(attempt):
                self._engine.release(attempt)
            case Abort(attempt):
                self._engine.abort(attempt)
            case Beat() if not self._engine.has_work:
                self._engine.meet()  # a rank that hangs shows although no step needs it
            case Trace():
                self._trace.ask()
            case Beat():
                pass  # the report of this turn answers it

    def _take(self, spec: SequenceSpec, take: Callable[[], object]) -> None:
        try:
            take()
        except RequestError as error:
            too_long = error.code == "context_length_exceeded"
            attempt = spec.work.attempt
            self._channel.send(Refused(attempt, error.message, "too_long" if too_long else ""))
        except OutOfBlocksError as error:
            self._channel.send(Refused(spec.work.attempt, str(error), "no_room"))

    def _adopt(self, command: Adopt) -> None:
        """A token 1 that does not continue the sequence is its source's fault: it costs the
        attempt, not this process."""
        try:
            self._engine.adopt(command.attempt, command.run)
        except ProtocolError as error:
            self._channel.send(Refused(command.attempt, str(error)))

    def _report_scheduled(self, output: StepOutput) -> None:
        """Between schedule and run: what overlaps with the step must not wait for it."""
        told = output.started or output.reserved or output.handed_back or output.pieces
        if not (told or output.alone):
            return
        self._channel.send(
            Scheduled(
                start_ns=time.time_ns(),
                started=tuple(output.started),
                reserved=tuple(Reserved(*item) for item in output.reserved),
                handed_back=tuple(output.handed_back),
                announced=tuple(Announced(*item) for item in output.pieces),
                alone=output.alone,
            )
        )

    def _report(self, output: StepOutput, start_ns: int, end_ns: int) -> StepReport:
        return StepReport(
            start_ns=start_ns,
            end_ns=end_ns,
            load=self._engine.load(),
            chunks=tuple(output.chunks),
            scored=tuple(output.scored),
            tokens=tuple(output.tokens),
            sealed=tuple(output.sealed),
            ended=tuple(output.ended),
            finished=tuple(output.finished),
            stored=tuple(output.stored),
            removed=tuple(output.removed),
            counters=self._engine.counters.totals(),
            gauges=self._gauges(end_ns),
            alone=self._engine.alone,
        )

    def _gauges(self, now_ns: int) -> dict[str, float] | None:
        if now_ns - self._gauged_ns < GAUGED_EVERY_NS:
            return None
        self._gauged_ns = now_ns
        return self._engine.gauges.values()


def run_engine(
    role: WorkerRole, channel_socket: socket.socket, data_sockets: Sequence[socket.socket]
) -> int:
    """The process's exit status. A data socket for each rank."""
    channel = EngineChannel(channel_socket)
    try:
        settings = load_settings()
        configure_logs(settings.telemetry.log_level)
        data_socket, *others = data_sockets
        engine, vocab_size = _load(settings, role, [sock.detach() for sock in others])
        token_s = engine.try_out()
        engine.rehearse()
        first_tokens = FirstTokens(channel.wake)
        start_mover(data_socket, engine.kv_pool, first_tokens)
    except RankLostError as error:
        channel.pass_failure(str(error))
        end_process(error)
    except BatonError as error:
        channel.pass_failure(str(error))
        return error.exit_code
    except (OSError, RuntimeError) as error:
        channel.pass_failure(f"the engine cannot start: {error}")
        return 1
    engine.grammars.on_ready = channel.wake
    _pass_memory(engine.kv_pool, channel)
    channel.send(
        Ready(
            pid=os.getpid(),
            layout=engine.memory.layout,
            num_blocks=engine.memory.num_blocks,
            arena_bytes=None if engine.memory.holds_blocks else len(engine.memory.arena),
            max_model_len=engine.max_model_len,
            vocab_size=vocab_size,
            load=engine.load(),
            step_tokens=engine.step_size.num_tokens,
            prefill_token_s=token_s,
            step_sequences=engine.step_size.num_seqs,
        )
    )
    freeze_heap()
    try:
        EngineLoop(engine, channel, first_tokens).run()
    except RankLostError as error:
        end_process(error)
    except (EOFError, ConnectionError):
        pass
    finally:
        engine.grammars.close()
    return 0


def _load(
    settings: Settings, role: WorkerRole, mover_fds: Sequence[int]
) -> tuple[Engine | FaultyEngine, int]:
    """The engine and the size of its vocabulary."""
    drawn = settings.model.random_weights
    checkpoint = load_checkpoint(settings.model.name, random_weights=drawn)
    hands_over = role == "prefill" or settings.engine.prefix_cache
    kind = _pool_kind(settings.handover.transport) if hands_over else "private"
    engine = build_engine(
        *settings.of_engine,
        role,
        checkpoint,
        RandomWeights if drawn else WeightReader,
        PoolAccess(kind, tuple(mover_fds)),
    )
    planted = settings.telemetry.planted_faults
    return FaultyEngine(engine, planted) if planted else engine, checkpoint.config.vocab_size


def _pool_kind(transport: str) -> PoolKind:
    if transport == "tcp":
        return "private"
    return "read" if transport == "nixl" else "mapped"


def _pass_memory(kv_pool: KVPool, channel: EngineChannel) -> None:
    descriptors = descriptors_of(kv_pool)
    try:
        channel.pass_memory(kv_pool.memory.fd, descriptors)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
