"""GPT-2: learned positions, norms with mean and bias, one fused projection, a GELU MLP.

Its linear layers are stored as `Conv1D`, that is [inputs, outputs]. Checkpoints saved from the
bare model lack the prefix `transformer.`; old ones hold the causal mask as `attn.bias`.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from shared.engine.layers.attention import Attention
from shared.engine.layers.batch_tensors import BatchTensors
from shared.engine.layers.kv_cache import store_kv
from shared.engine.layers.matrices import LayerNorm, Linear, gelu_tanh
from shared.engine.layers.operations import Operations
from shared.engine.layers.weights import WeightReader
from shared.model.config import ModelConfig

PREFIX = "transformer."


@dataclass(frozen=True)
class Layer:
    """Weights of one decoder layer."""

    attention_norm: LayerNorm
    qkv: Linear
    out: Linear
    mlp_norm: LayerNorm
    up: Linear
    down: Linear


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
        hidden = config.hidden_size
        prefix = PREFIX if reader.has(PREFIX + "wte.weight") else ""
        self._embedding = reader.tensor(prefix + "wte.weight", config.vocab_size, hidden)
        positions = reader.tensor(prefix + "wpe.weight", config.max_position_embeddings, hidden)
        self._position_embedding = positions[:max_positions]
        self._layers = [
            self._load_layer(reader, f"{prefix}h.{index}.") for index in range(config.num_layers)
        ]
        self._final_norm = self._load_norm(reader, prefix + "ln_f")
        self._lm_head = reader.lm_head(self._embedding, tied=config.tie_word_embeddings)

    def forward(
        self, batch: BatchTensors, kv_pool: torch.Tensor, attention: Attention
    ) -> torch.Tensor:
        operations, config = self._operations, self.config
        hidden = F.embedding(batch.input_ids, self._embedding)
        hidden = hidden + F.embedding(batch.positions, self._position_embedding)
        for index, layer in enumerate(self._layers):
            qkv = operations.project(hidden, layer.attention_norm, layer.qkv)
            heads = qkv.view(qkv.shape[0], -1, config.head_dim)
            queries, keys, values = torch.split(heads, config.num_heads, dim=1)
            store_kv(keys, values, kv_pool, index, batch.slot_mapping)
            mixed = attention(queries, kv_pool, index, batch, config.score_scales[index])
            hidden = operations.add(hidden, layer.out, mixed.flatten(1))
            wide = gelu_tanh(operations.project(hidden, layer.mlp_norm, layer.up))
            hidden = operations.add(hidden, layer.down, wide)
        return hidden

    def logits(self, hidden: torch.Tensor, output: torch.Tensor | None = None) -> torch.Tensor:
        return self._operations.project(hidden, self._final_norm, self._lm_head, output)

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def linears(self) -> list[Linear]:
        layers = [(layer.qkv, layer.out, layer.up, layer.down) for layer in self._layers]
        return [linear for group in layers for linear in group] + [self._lm_head]

    def _load_layer(self, reader: WeightReader, prefix: str) -> Layer:
        hidden, shard = self.config.hidden_size, reader.shard
        heads = (shard.queries, shard.keys, shard.keys)
        reader.ignore(prefix + "attn.bias")
        reader.ignore(prefix + "attn.masked_bias")
        return Layer(
            attention_norm=self._load_norm(reader, prefix + "ln_1"),
            qkv=reader.fused_conv1d(prefix + "attn.c_attn", heads, hidden),
            out=reader.conv1d(prefix + "attn.c_proj", hidden, shard.queries),
            mlp_norm=self._load_norm(reader, prefix + "ln_2"),
            up=reader.conv1d(prefix + "mlp.c_fc", shard.columns, hidden),
            down=reader.conv1d(prefix + "mlp.c_proj", hidden, shard.columns),
        )

    def _load_norm(self, reader: WeightReader, name: str) -> LayerNorm:
        weight, bias = (
            reader.tensor(f"{name}.{part}", self.config.hidden_size) for part in ("weight", "bias")
        )
        return LayerNorm(weight, bias, self.config.norm_eps)
