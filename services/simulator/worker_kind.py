"""What a worker can do: the numbers that all workers of a role share."""

from dataclasses import dataclass

from services.autoscaler.planning.prefill_replay import computing_s
from services.autoscaler.planning.typical_worker import TypicalWorker
from services.autoscaler.view import Arrival, Role
from services.autoscaler.view import WorkerView as SeenWorker
from services.gateway.owner.links.worker_view import WorkerView as RoutedWorker
from shared.kv.layout import num_blocks_for
from shared.message_parts.step_costs import StepCosts
from shared.queue.room import Room

LEAST_STEP_S = 1e-6
"""no step takes less, whatever is said to take nothing"""


@dataclass(frozen=True)
class WorkerKind:
    """One role's workers."""

    costs: StepCosts
    step_tokens: int = 2048
    num_blocks: int = 25_000
    block_size: int = 16

    @property
    def token_s(self) -> float:
        """Seconds per prompt token in a full step, as gateways fit it."""
        return self.alone_s(Arrival(0.0, self.step_tokens)) / self.step_tokens

    def alone_s(self, arrival: Arrival) -> float:
        """What one that does nothing else needs for a prompt."""
        worker = TypicalWorker(self.costs, self.step_tokens, self.num_blocks, self.block_size)
        return computing_s([arrival], worker)[0]

    def routed(self, incarnation: str, role: Role, room: Room) -> RoutedWorker:
        """A new worker as the router sees it."""
        return RoutedWorker(
            incarnation=incarnation,
            role=role,
            ready=True,
            room=room,
            idle=True,
            queued_tokens=0,
            num_sequences=0,
            spare_blocks=self.num_blocks,
            costs=self.costs,
        )

    def seen(self, routed: RoutedWorker, age_s: float, *, is_draining: bool) -> SeenWorker:
        """The same worker as it registers itself."""
        return SeenWorker(
            name=routed.incarnation,
            incarnation=routed.incarnation,
            age_s=age_s,
            is_draining=is_draining,
            num_attempts=routed.num_sequences,
            num_queued_tokens=routed.queued_tokens,
            num_free_blocks=routed.spare_blocks,
            num_blocks=self.num_blocks,
            costs=self.costs,
            step_tokens=self.step_tokens,
            block_size=self.block_size,
        )

    def blocks_of(self, arrival: Arrival) -> int:
        """KV blocks of its prompt and answer; one that no worker has blocks for takes all."""
        num_tokens = arrival.num_prompt_tokens + arrival.num_output_tokens
        return min(self.num_blocks, num_blocks_for(num_tokens, self.block_size))

    def decoding_s(self, num_sequences: int, context: float) -> tuple[float, float]:
        """Seconds of a step that decodes `num_sequences` whose contexts sum to `context` tokens,
        and half of what each such step makes the next one longer."""
        costs = self.costs
        first_s = costs.step_s + num_sequences * costs.row_s + context * costs.context_token_s
        return max(first_s, LEAST_STEP_S), num_sequences * costs.context_token_s / 2


PREFILL = WorkerKind(StepCosts(chunk_token_s=6e-5))
"""16,700 prompt tokens a second: a model of 8 billion parameters on a GPU that computes 267 TFLOP
of it in a second; the same for every token, so that a load in workers is tokens x this"""
DECODE = WorkerKind(StepCosts(step_s=6e-3, row_s=3e-5, context_token_s=5e-8, chunk_token_s=6e-5))
"""The same model: 16 GB of weights are read in each step and 128 KiB of KV per token, at 2.6 TB/s;
25,000 blocks are 52 GB"""
