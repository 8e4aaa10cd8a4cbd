"""Llama 2, 3.x and Mistral: pre-norm decoder layers, rotary positions, grouped-query attention
over all positions or a sliding window of them, SwiGLU.

A family that differs in a detail subclasses `Model` and overrides that detail (see qwen3.py).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from shared.engine.attention import Attention
from shared.engine.batch import BatchTensors
from shared.engine.kv_cache import store_kv
from shared.engine.layers import Linear, rms_norm, silu_mul
from shared.engine.rope import Rope, rotate
from shared.engine.weights import WeightReader
from shared.model_config import ModelConfig


@dataclass(frozen=True)
class Layer:
    """Weights of one decoder layer. `qk_norm` is [num_heads + num_kv_heads, head_dim] for
    families that normalise each query and key head, else None."""

    input_norm: torch.Tensor
    qkv: Linear
    out: Linear
    post_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    qk_norm: torch.Tensor | None = None


class Model:
    """See shared.engine.model.Model."""

    def __init__(self, config: ModelConfig, reader: WeightReader, max_positions: int) -> None:
        self.config = config
        self._rope = Rope(config, max_positions, reader.device)
        hidden = config.hidden_size
        self._embedding = reader.tensor("model.embed_tokens.weight", config.vocab_size, hidden)
        self._layers = [self._load_layer(reader, index) for index in range(config.num_layers)]
        self._final_norm = reader.tensor("model.norm.weight", hidden)
        self._lm_head = reader.lm_head(self._embedding, tied=config.tie_word_embeddings)

    def forward(
        self, batch: BatchTensors, kv_pool: torch.Tensor, attention: Attention
    ) -> torch.Tensor:
        hidden = F.embedding(batch.input_ids, self._embedding)
        cos, sin = self._rope.at(batch.positions, hidden.dtype)
        config = self.config
        heads = [config.num_heads, config.num_kv_heads]
        for index, layer in enumerate(self._layers):
            turned, values = self._project(layer, self._norm(hidden, layer.input_norm))
            queries, keys = torch.split(rotate(turned, cos, sin), heads, dim=1)
            store_kv(keys, values, kv_pool, index, batch.slot_mapping)
            scale, window = config.score_scales[index], config.windows[index]
            mixed = attention(queries, kv_pool, index, batch, scale, window)
            hidden = hidden + layer.out(mixed.flatten(1))
            gate_up = layer.gate_up(self._norm(hidden, layer.post_norm))
            hidden = hidden + layer.down(silu_mul(gate_up))
        return self._norm(hidden, self._final_norm)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._lm_head(hidden).float()

    @property
    def linears(self) -> list[Linear]:
        layers = [(layer.qkv, layer.out, layer.gate_up, layer.down) for layer in self._layers]
        return [linear for group in layers for linear in group] + [self._lm_head]

    def _norm(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(rows, weight, self.config.norm_eps)

    def _project(self, layer: Layer, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Query and key heads side by side, not yet rotated, and value heads, each
        [T, heads, head_dim]."""
        config = self.config
        num_turned = config.num_heads + config.num_kv_heads
        heads = layer.qkv(rows).view(rows.shape[0], -1, config.head_dim)
        turned, values = torch.split(heads, [num_turned, config.num_kv_heads], dim=1)
        if layer.qk_norm is not None:
            turned = rms_norm(turned, layer.qk_norm, config.norm_eps)
        return turned, values

    def _load_layer(self, reader: WeightReader, index: int) -> Layer:
        config = self.config
        hidden, wide = config.hidden_size, config.intermediate_size
        q_width = config.num_heads * config.head_dim
        kv_width = config.num_kv_heads * config.head_dim
        prefix = f"model.layers.{index}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        qkv_bias, out_bias = self._attention_biases
        return Layer(
            input_norm=reader.tensor(prefix + "input_layernorm.weight", hidden),
            qkv=reader.fused(
                {
                    attention + "q_proj": q_width,
                    attention + "k_proj": kv_width,
                    attention + "v_proj": kv_width,
                },
                hidden,
                bias=qkv_bias,
            ),
            out=reader.linear(attention + "o_proj", hidden, q_width, bias=out_bias),
            post_norm=reader.tensor(prefix + "post_attention_layernorm.weight", hidden),
            gate_up=reader.fused(
                {mlp + "gate_proj": wide, mlp + "up_proj": wide}, hidden, bias=config.mlp_bias
            ),
            down=reader.linear(mlp + "down_proj", hidden, wide, bias=config.mlp_bias),
            qk_norm=self._load_qk_norm(reader, attention),
        )

    @property
    def _attention_biases(self) -> tuple[bool, bool]:
        """Whether the projection to queries, keys and values has a bias, and the output's."""
        return self.config.attention_bias, self.config.attention_bias

    def _load_qk_norm(self, reader: WeightReader, prefix: str) -> torch.Tensor | None:
        """Norm weights of query and key heads; Llama has none."""
        return None
