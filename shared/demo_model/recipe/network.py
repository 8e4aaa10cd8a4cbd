"""The Llama network in its training form, with Hugging Face's names for the weights.

Only the recipe uses it; the engine has its own model. Shapes: B rows, T tokens, C = hidden size.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

INIT_STD = 0.02


@dataclass(frozen=True)
class Shape:
    """The sizes of a model."""

    vocab_size: int = 4096
    hidden_size: int = 256
    intermediate_size: int = 704
    num_layers: int = 6
    num_heads: int = 8
    num_kv_heads: int = 2
    max_position_embeddings: int = 4096
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads


def rotary_tables(shape: Shape, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines, [max_position_embeddings, head_dim], halves repeated as Llama does."""
    exponents = torch.arange(0, shape.head_dim, 2, device=device).float() / shape.head_dim
    positions = torch.arange(shape.max_position_embeddings, device=device).float()
    angles = torch.outer(positions, shape.rope_theta**-exponents)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(states: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turns [B, heads, T, head_dim] by the angle of its position."""
    first, second = states.chunk(2, dim=-1)
    return states * cosines + torch.cat((-second, first), dim=-1) * sines


class RMSNorm(nn.Module):
    """Root-mean-square norm with a learned scale."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        return functional.rms_norm(hidden, self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    """Causal attention with fewer key heads than query heads."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        kv_size = shape.num_kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, shape.hidden_size, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(shape.hidden_size, shape.hidden_size, bias=False)

    def forward(self, hidden: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        rows, length, _ = hidden.shape

        def heads(projected: Tensor) -> Tensor:
            return projected.view(rows, length, -1, self.shape.head_dim).transpose(1, 2)

        values = heads(self.v_proj(hidden))
        queries = rotate(heads(self.q_proj(hidden)), cosines, sines).to(values.dtype)
        keys = rotate(heads(self.k_proj(hidden)), cosines, sines).to(values.dtype)
        group = self.shape.num_heads // self.shape.num_kv_heads
        mixed = functional.scaled_dot_product_attention(
            queries,
            keys.repeat_interleave(group, dim=1),
            values.repeat_interleave(group, dim=1),
            is_causal=True,
        )
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(rows, length, -1))
        return out


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden))
        return out


class Layer(nn.Module):
    """One transformer layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = FeedForward(shape)

    def forward(self, hidden: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), cosines, sines)
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


class Decoder(nn.Module):
    """Embedding, layers and last norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)


class Network(nn.Module):
    """The whole model; the output matrix is the embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Decoder(shape)
        residual_std = INIT_STD / (2 * shape.num_layers) ** 0.5
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                into_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=residual_std if into_residual else INIT_STD)
        self._tables: tuple[Tensor, Tensor] | None = None

    @property
    def num_parameters(self) -> int:
        """Weights, the shared embedding counted once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def hidden_states(self, token_ids: Tensor) -> Tensor:
        """Last hidden states [B, T, C] of token ids [B, T]."""
        if self._tables is None or self._tables[0].device != token_ids.device:
            self._tables = rotary_tables(self.shape, token_ids.device)
        length = token_ids.shape[1]
        cosines, sines = self._tables[0][:length], self._tables[1][:length]
        hidden: Tensor = self.model.embed_tokens(token_ids)
        for layer in self.model.layers:
            hidden = layer(hidden, cosines, sines)
        out: Tensor = self.model.norm(hidden)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores [..., vocab_size] of hidden states [..., C]."""
        return functional.linear(hidden, self.model.embed_tokens.weight)
