"""Torch reference of prepare_step, with the kernel's own signature."""

import torch


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
