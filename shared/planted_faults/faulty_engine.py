"""An engine that sleeps once in each request's prefill and once in its decode, as long as asked, or
dies in a step that computes a certain token.

The worker wraps its engine in one only where `--planted-faults` is set.
"""

import os
import signal
import time
from typing import Any

from shared.engine.engine import Engine
from shared.engine.handover.output import StepOutput
from shared.engine.scheduling.sequence import SequenceState
from shared.planted_faults.faults import planted_crash, planted_delay_s
from shared.protocol import Attempt, TokenRun


class FaultyEngine:
    """See shared.engine.engine.Engine, whose every other member this has too."""

    def __init__(self, engine: Engine, planted_faults: str) -> None:
        """SettingsError if `planted_faults` is malformed."""
        self._engine = engine
        self._prefill_delay_s = planted_delay_s(planted_faults, "prefill")
        self._decode_delay_s = planted_delay_s(planted_faults, "decode")
        self._deadly_token = planted_crash(planted_faults)
        self._computing: set[Attempt] = set()
        """attempts whose prompt is computed here, before token 1"""
        self._adopted: set[Attempt] = set()
        """attempts whose next token is the first that decode computes"""
        self.on_scheduled = engine.on_scheduled
        engine.on_scheduled = self._report_scheduled

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def adopt(self, attempt: Attempt, run: TokenRun) -> bool:
        adopted = self._engine.adopt(attempt, run)
        if adopted:
            self._adopted.add(attempt)
        return adopted

    def step(self) -> StepOutput:
        """Sleeps within the step that computes a request's first token on decode."""
        output = self._engine.step()
        told = {run.attempt for run in output.tokens}
        decoding = told & self._adopted
        known = self._engine.sequences.keys()
        self._adopted = (self._adopted - told | told & self._computing) & known
        self._computing = (self._computing - told) & known
        if decoding and self._decode_delay_s:
            time.sleep(self._decode_delay_s)
        return output

    def _computes(self, token_id: int, alone: Attempt | None) -> bool:
        """The step that is about to run has a sequence with this token."""
        computed = (SequenceState.WRITING, SequenceState.DECODE)
        return any(
            token_id in sequence.token_ids
            for attempt, sequence in self._engine.sequences.items()
            if sequence.state in computed
            and (attempt == alone if alone else not sequence.work.alone)
        )

    def _report_scheduled(self, output: StepOutput) -> None:
        """Sleeps between schedule and run, once the start of a prompt is reported."""
        self._computing.update(attempt for attempt, _ in output.started)
        self.on_scheduled(output)
        if self._deadly_token is not None and self._computes(self._deadly_token, output.alone):
            os.kill(os.getpid(), signal.SIGSEGV)
        if output.started and self._prefill_delay_s:
            time.sleep(self._prefill_delay_s)
