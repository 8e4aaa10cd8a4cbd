"""The least time a cell can take on this device, from what it must read and multiply.

Decode reads all weights and all K and V of the batch; beyond some rows the products take longer
than the reading of their weights. Prefill is matrix products and attention. Neither counts norms,
rotations, activations, launches or the host, so nothing reaches a floor entirely: with what
elementwise kernels of a prefill must read and write, 8k tokens of an 8B model take 4 % longer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shared.engine.running.ceilings import Ceilings
from shared.model.model_size import ModelSize

ATTENTION_SHARES = ((1024, 260 / 701), (8192, 631 / 701), (32768, 656 / 701))
"""(tokens of a causal prompt, the best known attention kernel's rate as a share of a large matrix
product's): FlashAttention-3 on an H200. Short prompts are short of work for a whole GPU."""


@dataclass(frozen=True)
class Floors:
    """Of one model on one device; seconds."""

    size: ModelSize
    ceilings: Ceilings

    def decode_step_s(self, contexts: Sequence[float]) -> float:
        """One token for each sequence, of these lengths."""
        params = self.size.layer_params + self.size.head_params
        weights_s = self._matrix_s(params, len(contexts), self.size.weight_bytes)
        kv_bytes = sum(map(self.size.kv_read_bytes, contexts))
        return weights_s + kv_bytes / self.ceilings.copy_bytes_per_s

    def prefill_s(self, num_tokens: int) -> float:
        """One prompt, with the logits of its last token."""
        size = self.size
        matrix_s = self._matrix_s(size.layer_params, num_tokens)
        return matrix_s + self._matrix_s(size.head_params, 1) + self._attention_s(num_tokens)

    def workload_s(self, lengths: Sequence[tuple[int, int]]) -> float:
        """Sequences of (prompt, answer) tokens: all prompts, then all answers side by side. The
        phases use different parts of the device, so an engine that overlaps them can be faster.
        """
        num_tokens = sum(prompt for prompt, _ in lengths)
        total_s = self._matrix_s(self.size.layer_params, num_tokens)
        total_s += self._matrix_s(self.size.head_params, len(lengths))
        total_s += sum(self._attention_s(prompt) for prompt, _ in lengths)
        for step in range(1, max(answer for _, answer in lengths)):
            running = [prompt + step for prompt, answer in lengths if answer > step]
            total_s += self.decode_step_s(running)
        return total_s

    def _attention_s(self, num_tokens: int) -> float:
        rate = attention_share(num_tokens) * self.ceilings.matmul_flops_per_s
        return self.size.attention_flops(num_tokens) / rate

    def _matrix_s(self, params: int, num_rows: int, num_bytes: int = 0) -> float:
        """Products with matrices of `params` elements: by reading or by multiplying."""
        read_s = (num_bytes or params * self.size.param_bytes) / self.ceilings.copy_bytes_per_s
        return max(read_s, 2 * params * num_rows / self.ceilings.matmul_flops_per_s)


def attention_share(num_tokens: int) -> float:
    """Between the known lengths by the logarithm, outside as at the nearest."""
    (low, share), *rest = ATTENTION_SHARES
    if num_tokens <= low:
        return share
    for high, next_share in rest:
        if num_tokens <= high:
            way = math.log(num_tokens / low) / math.log(high / low)
            return share + way * (next_share - share)
        low, share = high, next_share
    return share
