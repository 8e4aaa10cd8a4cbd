"""Llama 2, 3.x and Mistral: pre-norm decoder layers, rotary positions, grouped-query attention
over all positions or a sliding window of them, SwiGLU.

A family that differs in a detail subclasses `Model` and overrides that detail (see qwen3.py).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from shared.engine.layers.attention import Attention
from shared.engine.layers.batch_tensors import BatchTensors
from shared.engine.layers.matrices import Linear, RmsNorm
from shared.engine.layers.operations import Operations
from shared.engine.layers.rope import Rope
from shared.engine.layers.weights import WeightReader
from shared.model.config import ModelConfig


@dataclass(frozen=True)
class Layer:
    """Weights of one decoder layer."""

    input_norm: RmsNorm
    qkv: Linear
    out: Linear
    post_norm: RmsNorm
    gate_up: Linear
    down: Linear
    qk_norm: RmsNorm | None = None
    """of [num_heads + num_kv_heads, head_dim], in families that norm each query and key head"""


class Model:
    """See shared.engine.layers.model.Model."""

    def __init__(
        self,
        config: ModelConfig,
        reader: WeightReader,
        max_positions: int,
        operations: Operations,
    ) -> None:
        self.config = config
        self._operations = operations
        self._rope = Rope(config, max_positions, reader.device)
        hidden = config.hidden_size
        self._embedding = reader.tensor("model.embed_tokens.weight", config.vocab_size, hidden)
        self._layers = [self._load_layer(reader, index) for index in range(config.num_layers)]
        self._final_norm = self._load_norm(reader, "model.norm")
        self._lm_head = reader.lm_head(self._embedding, tied=config.tie_word_embeddings)

    def forward(
        self, batch: BatchTensors, kv_pool: torch.Tensor, attention: Attention
    ) -> torch.Tensor:
        operations, config = self._operations, self.config
        hidden = F.embedding(batch.input_ids, self._embedding)
        angles = operations.angles(self._rope, batch.positions, hidden.dtype)
        for index, layer in enumerate(self._layers):
            qkv = operations.project(hidden, layer.input_norm, layer.qkv)
            queries = operations.turn_and_store(qkv, angles, layer.qk_norm, batch, kv_pool, index)
            scale, window = config.score_scales[index], config.windows[index]
            mixed = attention(queries, kv_pool, index, batch, scale, window)
            hidden = operations.add(hidden, layer.out, mixed.flatten(1))
            gated = operations.gate(hidden, layer.post_norm, layer.gate_up)
            hidden = operations.add(hidden, layer.down, gated)
        return hidden

    def logits(self, hidden: torch.Tensor, output: torch.Tensor | None = None) -> torch.Tensor:
        return self._operations.project(hidden, self._final_norm, self._lm_head, output)

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def linears(self) -> list[Linear]:
        layers = [(layer.qkv, layer.out, layer.gate_up, layer.down) for layer in self._layers]
        return [linear for group in layers for linear in group] + [self._lm_head]

    def _load_layer(self, reader: WeightReader, index: int) -> Layer:
        config, shard = self.config, reader.shard
        hidden, wide = config.hidden_size, shard.columns
        prefix = f"model.layers.{index}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        qkv_bias, out_bias = self._attention_biases
        return Layer(
            input_norm=self._load_norm(reader, prefix + "input_layernorm"),
            qkv=reader.fused(
                {
                    attention + "q_proj": shard.queries,
                    attention + "k_proj": shard.keys,
                    attention + "v_proj": shard.keys,
                },
                hidden,
                bias=qkv_bias,
            ),
            out=reader.linear(attention + "o_proj", hidden, shard.queries, bias=out_bias),
            post_norm=self._load_norm(reader, prefix + "post_attention_layernorm"),
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

    def _load_norm(self, reader: WeightReader, name: str) -> RmsNorm:
        weight = reader.tensor(name + ".weight", self.config.hidden_size)
        return RmsNorm(weight, self.config.norm_eps)

    def _load_qk_norm(self, reader: WeightReader, prefix: str) -> RmsNorm | None:
        """The norm of query and key heads; Llama has none."""
        return None
