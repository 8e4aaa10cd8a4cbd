"""`baton serve prefill|decode` on a device that computes nothing: a step takes what given costs
make of it, and each token is the same.

`PACED_WORKER_COSTS=STEP,ROW,CONTEXT,TOKEN,PAIR python -m tests.campaigns.scaling.paced_worker`, in
seconds, and then as `baton`: `serve prefill FLAGS`. Steps are launched ahead, as on a GPU. All else
is a worker's own: links, room, scheduler, hand-over, and what it learns of its steps. The fork
server runs this module too, so that its engines are paced.
"""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from services.cli.__main__ import main
from shared.engine import build, engine
from shared.engine.loading.rank import build_rank
from shared.engine.loading.runner_parts import RunnerParts
from shared.engine.running import step_clock
from shared.engine.running.model_runner import OnStored, Runner
from shared.engine.running.step_size import StepSize
from shared.engine.running.trial import Trial
from shared.engine.sampling.sample_row import SampleRow
from shared.engine.sampling.sampled_tokens import SampledToken
from shared.engine.scheduling.batch import HostBatch
from shared.message_parts.step_costs import StepCosts
from shared.worker import fork_server
from shared.worker.fork_client import ForkServer

MODULE = "tests.campaigns.scaling.paced_worker"
COSTS = "PACED_WORKER_COSTS"
"""a variable: numbers in the order of `StepCosts`"""
TOKEN = SampledToken(400, None)
"""it has text"""


@dataclass(frozen=True)
class PacedStep:
    """One step of the device, once it is launched; the duration that a step clock asks for."""

    begins_s: float
    ends_s: float
    before_ends_s: float | None
    """None: it follows none"""

    def is_over(self) -> bool:
        return time.monotonic() >= self.ends_s

    def seconds(self) -> float | None:
        return self.ends_s - self.begins_s if self.is_over() else None

    def gap_s(self) -> float | None:
        if self.before_ends_s is None or not self.is_over():
            return None
        return self.begins_s - self.before_ends_s


class PacedDevice:
    """Works on one step after the other. It is its own step timer."""

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._follows = False
        self.step = PacedStep(0.0, 0.0, None)
        """that was launched last"""

    def seconds(self, size: StepSize) -> float:
        """Of one step."""
        return sum(cost * each for cost, each in zip(self._costs, (1, *size), strict=True))

    def launch(self, size: StepSize) -> None:
        before_s = self.step.ends_s
        begins_s = max(time.monotonic(), before_s)
        follows = before_s if self._follows else None
        self.step = PacedStep(begins_s, begins_s + self.seconds(size), follows)

    def begin(self, *, follows: bool = False) -> None:
        self._follows = follows

    def end(self) -> PacedStep:
        return self.step

    def pass_by(self) -> None:
        """Each step knows the one before it."""

    def trial(self, num_tokens: int) -> Trial:
        """What `try_steps` would measure."""
        shortest, prompt = StepSize.of_chunk(0, 1), StepSize.of_chunk(0, num_tokens)
        return Trial(self.seconds(shortest), self.seconds(prompt), num_tokens)


class PacedTokens:
    """One for each row of the step that was launched last."""

    def __init__(self, step: PacedStep, num_rows: int) -> None:
        self.device_ids = torch.full((num_rows,), TOKEN.token_id)
        self._step = step
        self._num_rows = num_rows

    def ready(self) -> bool:
        return self._step.is_over()

    def wait(self) -> list[SampledToken]:
        time.sleep(max(0.0, self._step.ends_s - time.monotonic()))
        return [TOKEN] * self._num_rows


class PacedRunner:
    """Launches steps; all else is of the runner that it stands in for."""

    runs_ahead = True

    def __init__(self, runner: Runner, device: PacedDevice) -> None:
        self._runner = runner
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def run(
        self,
        batch: HostBatch,
        previous: torch.Tensor | None = None,
        on_stored: OnStored | None = None,
    ) -> torch.Tensor:
        """No logits: `sample` looks at none."""
        self._device.launch(StepSize.of(batch))
        return torch.empty(batch.shape.num_logits_rows, 0)

    def sample(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> PacedTokens:
        return PacedTokens(self._device.step, len(rows))


def pace(costs: StepCosts) -> None:
    """All engines that this process builds from now on."""
    device = PacedDevice(costs)

    def build_paced_rank(*arguments: Any) -> RunnerParts:
        parts = build_rank(*arguments)
        runner = PacedRunner(parts.runner, device)
        return replace(parts, runner=runner, sampler=runner)

    for module, name, paced in (
        (build, "build_rank", build_paced_rank),
        (engine, "try_steps", lambda runner, most_tokens, block_size: device.trial(most_tokens)),
        (step_clock, "timer_for", lambda of: device),
    ):
        assert hasattr(module, name)
        setattr(module, name, paced)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        ForkServer.module = MODULE
        sys.exit(main(sys.argv[1:]))
    pace(StepCosts(*map(float, os.environ[COSTS].split(","))))
    sys.exit(fork_server.main(sys.argv[1:]))
