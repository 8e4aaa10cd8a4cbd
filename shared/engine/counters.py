"""What one engine has done since it started: plain integers for metrics and tests."""

from collections import Counter
from dataclasses import dataclass, field

LOCAL_PREFILL_REASONS = ("agg", "no_prefill_worker", "no_pair", "slow_link")
"""why a decode worker may compute a prompt itself"""
OVERS = ("0", "1.1", "1.25", "1.5", "2")
"""times its prediction that a decode step is counted to have taken more than"""


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
    decode_steps: Counter[str] = field(default_factory=Counter)
    """timed steps without a chunk of a warm device, by what they took more than"""
    generated_tokens: int = 0
    early_starts: int = 0
    """sequences that decoded on KV from another worker while it was being verified"""
    prefix_query_tokens: int = 0
    """prompt tokens looked up in the prefix cache, once per attempt"""
    prefix_hit_tokens: int = 0

    def count_prompt(self, num_tokens: int, local_reason: str) -> None:
        """Prompt work is counted here and nowhere else. `local_reason`: why a decode worker does
        it, or nothing."""
        self.prompt_tokens_computed += num_tokens
        if local_reason:
            self.local_prefill_tokens[local_reason] += num_tokens

    def count_decode_step(self, times_predicted: float) -> None:
        """How many times its prediction a step took."""
        for over in OVERS:
            self.decode_steps[over] += times_predicted > float(over)

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
        for over in OVERS:
            totals[f"decode_steps:{over}"] = self.decode_steps[over]
        return totals
