"""Torch references of the attention kernels, with the kernel's own signature. Written to be read,
not to be fast.

Pool: [num_blocks, num_layers, 2, num_kv_heads, block_size, head_dim]; slot = block_id *
block_size + offset.
"""

import torch


def paged_prefill_attention(
    q: torch.Tensor,
    kv_pool: torch.Tensor,
    layer: int,
    block_tables: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    window: int = 0,
) -> torch.Tensor:
    """Causal attention of packed queries [T, num_heads, head_dim] over paged K and V.

    Sequence s owns rows cu_seqlens_q[s] to cu_seqlens_q[s + 1], the last of its
    context_lens[s] positions; block_tables is i32[S, width]. A row sees the last `window`
    positions up to its own, or with 0 all of them. Rows past the last sequence give zeros.
    Accumulates in float32, returns q's dtype.
    """
    output = torch.zeros_like(q)
    borders = cu_seqlens_q.tolist()
    for sequence, length in enumerate(context_lens.tolist()):
        rows = slice(borders[sequence], borders[sequence + 1])
        keys, values = _sequence_kv(kv_pool, layer, block_tables[sequence], length)
        own = torch.arange(length - (rows.stop - rows.start), length, device=q.device)
        distance = own[:, None] - torch.arange(length, device=q.device)[None]
        hidden = (distance < 0) | (distance >= (window or length))
        output[rows] = _attention(q[rows], keys, values, hidden, scale)
    return output


def paged_decode_attention(
    q: torch.Tensor,
    kv_pool: torch.Tensor,
    layer: int,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    window: int = 0,
) -> torch.Tensor:
    """The same for one query row per sequence: q is [S, num_heads, head_dim]."""
    one_each = torch.arange(q.shape[0] + 1, dtype=torch.int32, device=q.device)
    return paged_prefill_attention(
        q, kv_pool, layer, block_tables, one_each, context_lens, scale, window
    )


def _sequence_kv(
    kv_pool: torch.Tensor, layer: int, block_table: torch.Tensor, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V [num_kv_heads, length, head_dim] of one sequence, in float32."""
    num_blocks = -(-length // kv_pool.shape[4])
    blocks = kv_pool[block_table[:num_blocks].long(), layer].float()
    keys, values = blocks.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :length]
    return keys, values


def _attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, hidden: torch.Tensor, scale: float
) -> torch.Tensor:
    """q [R, num_heads, head_dim] over K, V [num_kv_heads, L, head_dim]; hidden bool[R, L]."""
    group_size = q.shape[1] // keys.shape[0]
    keys, values = (item.repeat_interleave(group_size, dim=0) for item in (keys, values))
    scores = q.float().transpose(0, 1) @ keys.transpose(1, 2) * scale
    weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
    return (weights @ values).transpose(0, 1).to(q.dtype)
