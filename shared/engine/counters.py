"""What one engine has done since it started: plain integers for metrics and tests."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from shared.engine.scheduling.batch import ScheduledSequence

LOCAL_PREFILL_REASONS = ("agg", "no_prefill_worker", "no_pair", "slow_link")
"""why a decode worker may compute a prompt itself"""


@dataclass(slots=True)
class EngineCounters:
    """Totals that only grow."""

    steps: int = 0
    """steps that ran the model"""
    preemptions: int = 0
    handed_back: int = 0
    prompt_tokens_computed: int = 0
    """prompt tokens fed to the model runner, recomputation after a preemption included"""
    local_prefill_tokens: Counter[str] = field(default_factory=Counter)
    """of those, by reason, the ones a decode worker computed"""
    generated_tokens: int = 0
    early_starts: int = 0
    """sequences that decoded on KV from another worker while it was being verified"""
    prefix_query_tokens: int = 0
    """prompt tokens looked up in the prefix cache, once per attempt"""
    prefix_hit_tokens: int = 0

    def count_step(self, items: Sequence[ScheduledSequence], role: str) -> None:
        """Prompt work is counted here and nowhere else. `role`: of the engine."""
        self.steps += bool(items)
        for sequence, _, num_tokens, _, prefill in items:
            if prefill:
                self.prompt_tokens_computed += num_tokens
                if role == "decode" and sequence.spec.mode == "full":
                    self.local_prefill_tokens[sequence.spec.reason] += num_tokens

    def totals(self) -> dict[str, int]:
        """By metric name; a part after a colon is the value of the metric's label. Every one is
        there from the start, so that a zero is seen as one."""
        totals = {
            "engine_steps": self.steps,
            "preemptions": self.preemptions,
            "prompt_tokens:computed": self.prompt_tokens_computed,
            "prompt_tokens:cached": self.prefix_hit_tokens,
            "tokens_sampled": self.generated_tokens,
            "early_starts": self.early_starts,
            "prefix_cache_queries": self.prefix_query_tokens,
            "prefix_cache_hits": self.prefix_hit_tokens,
        }
        for reason in LOCAL_PREFILL_REASONS:
            totals[f"local_prefill_tokens:{reason}"] = self.local_prefill_tokens[reason]
        return totals
