"""Qwen3 (dense): Llama with a norm over each query and each key head before the rotation."""

import torch

from shared.engine.layers.matrices import RmsNorm
from shared.engine.layers.weights import WeightReader
from shared.engine.models import llama


class Model(llama.Model):
    """Llama but for the norms of query and key heads."""

    def _load_qk_norm(self, reader: WeightReader, prefix: str) -> RmsNorm | None:
        config = self.config
        query = reader.tensor(prefix + "q_norm.weight", config.head_dim)
        key = reader.tensor(prefix + "k_norm.weight", config.head_dim)
        heads = (query.expand(config.num_heads, -1), key.expand(config.num_kv_heads, -1))
        return RmsNorm(torch.cat(heads), config.norm_eps)
