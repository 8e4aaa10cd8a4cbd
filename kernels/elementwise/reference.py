"""Torch references of the elementwise kernels, with the kernel's own signature: what a kernel is
tested against, and what runs where there is no GPU. Written to be read, not to be fast. `overlap`
is when a kernel may begin and changes no result.

Pool: [num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim]; slot = block_id *
block_size + offset.
"""

import torch
import torch.nn.functional as F


def store_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    kv_pool: torch.Tensor,
    layer: int,
    slot_mapping: torch.Tensor,
) -> None:
    """Write k, v [T, num_kv_heads, head_dim] into slots i64[T] of one layer; -1 skips a row."""
    block_size = kv_pool.shape[4]
    rows = (slot_mapping >= 0).nonzero().squeeze(1)
    slots = slot_mapping[rows]
    blocks, offsets = slots // block_size, slots % block_size
    pool = kv_pool[:, layer]
    pool[blocks, 0, :, offsets] = k[rows].to(pool.dtype)
    pool[blocks, 1, :, offsets] = v[rows].to(pool.dtype)


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    output: torch.Tensor,
    *,
    overlap: bool = False,
) -> None:
    """Write x / rms(x) * weight over the last dimension of x [T, W] into `output`. The quotient is
    computed in float32 and rounded to x's dtype before the weight multiplies it."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    output.copy_(weight * normed.to(x.dtype))


def rope_store(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_pool: torch.Tensor,
    layer: int,
    queries: torch.Tensor,
    *,
    qk_norm: torch.Tensor | None = None,
    eps: float = 0.0,
    overlap: bool = False,
) -> None:
    """Norm (with qk_norm [H + Hkv, D]) and rotate the query and key heads of qkv
    [T, (H + 2 Hkv) * D] by the angles at `positions` of the tables f32[max_positions, D / 2], in
    float32; write queries [T, H, D], store K and V."""
    num_tokens, num_heads, head_dim = queries.shape
    heads = qkv.reshape(num_tokens, -1, head_dim)
    num_turned = num_heads + kv_pool.shape[3]
    turned = heads[:, :num_turned].float()
    if qk_norm is not None:
        scale = torch.rsqrt(turned.square().mean(-1, keepdim=True) + eps)
        turned = turned * scale * qk_norm.float()
    turned = rope(turned, cos[positions], sin[positions]).to(qkv.dtype)
    store_kv(turned[:, num_heads:], heads[:, num_turned:], kv_pool, layer, slot_mapping)
    queries.copy_(turned[:, :num_heads])


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate pairs (i, i + head_dim / 2) of x [T, heads, head_dim]; cos, sin [T, head_dim / 2]."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos.float()[:, None], sin.float()[:, None]
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.to(x.dtype)


def silu_mul(
    gate_up: torch.Tensor,
    output: torch.Tensor,
    *,
    overlap: bool = False,
) -> None:
    """Write silu(gate) * up of rows [T, 2 I] that hold gate, then up; computed in float32."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    output.copy_(F.silu(gate) * up)


def prepare_step(
    packed: torch.Tensor,
    previous: torch.Tensor | None,
    num_tokens: int,
    tables_at: int,
    outputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    """Unpack i32 `packed`: token ids, positions and slots of `num_tokens` tokens, context lengths
    of as many sequences as there are tables, and from `tables_at` on the tables. See
    kernels/elementwise/prepare_step.py."""
    input_ids, positions, slots, context_lens, tables = outputs
    num_sequences = tables.shape[0]
    ids = packed[:num_tokens].long()
    if previous is not None:
        ids = torch.where(ids < 0, previous[(-1 - ids).clamp(min=0)], ids)
    parts = {
        input_ids: (ids, 0),
        positions: (packed[num_tokens : 2 * num_tokens], 0),
        slots: (packed[2 * num_tokens : 3 * num_tokens], -1),
        context_lens: (packed[3 * num_tokens : 3 * num_tokens + num_sequences], 0),
    }
    for output, (values, padding) in parts.items():
        output.fill_(padding)
        output[: values.shape[0]] = values
    if num_sequences:
        rows = packed[tables_at:].view(num_sequences, -1)
        tables[:, : rows.shape[1]] = rows
