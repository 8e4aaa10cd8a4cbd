"""The tensors of a step, unpacked by the kernel as by the reference."""

from collections.abc import Callable

import pytest
import torch

from kernels.elementwise import reference
from kernels.elementwise.prepare_step import TILE, prepare_step

WIDTH = 40
"""of the tables' rows in memory"""
STALE = 77
Outputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
Case = tuple[int, int, int, int]
"""tokens, sequences, width of the tables, rows after padding"""
CASES: list[Case] = [
    (1, 1, 1, 1),
    (3, 3, 7, 8),
    (5, 2, 40, 5),
    (TILE + 3, 2, 9, TILE + 3),
    (4, 4, 1, 4),
    (6, 1, 3, 2 * TILE),
]


def _outputs(case: Case) -> Outputs:
    _, num_sequences, _, num_rows = case
    longs = (torch.full((num_rows,), STALE) for _ in range(3))
    lengths = torch.full((num_rows,), STALE, dtype=torch.int32)
    tables = torch.full((num_sequences, WIDTH), STALE, dtype=torch.int32)
    return (*longs, lengths, tables)  # type: ignore[return-value]


def _packed(case: Case, *, ahead: bool) -> tuple[torch.Tensor, int]:
    """With `ahead`, every second id is a token of the step before."""
    num_tokens, num_sequences, width, _ = case
    generator = torch.Generator().manual_seed(sum(case))
    between = 2 * num_sequences + 3  # lengths of queries, and parts that are not unpacked
    length = 3 * num_tokens + num_sequences + between + num_sequences * width
    packed = torch.randint(1, 50, (length,), generator=generator, dtype=torch.int32)
    if ahead:
        packed[:num_tokens:2] = -1 - packed[:num_tokens:2]
    return packed, length - num_sequences * width


def _run(
    step: Callable[..., None], case: Case, previous: torch.Tensor | None, *, ahead: bool
) -> Outputs:
    packed, tables_at = _packed(case, ahead=ahead)
    outputs = _outputs(case)
    step(packed, previous, case[0], tables_at, outputs)
    return outputs


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_unpacks_as_the_reference(case: Case, ahead: bool) -> None:
    previous = torch.arange(1000, 1060) if ahead else None
    ours = _run(prepare_step, case, previous, ahead=ahead)
    wanted = _run(reference.prepare_step, case, previous, ahead=ahead)
    for index, (mine, theirs) in enumerate(zip(ours, wanted, strict=True)):
        assert torch.equal(mine, theirs), index
    assert (ours[0] >= 1000).any() == ahead


def test_a_wrong_token_of_the_step_before_is_found() -> None:
    previous = torch.arange(1000, 1060)
    ours = _run(prepare_step, CASES[1], previous, ahead=True)
    wanted = _run(reference.prepare_step, CASES[1], previous + 1, ahead=True)
    assert not torch.equal(ours[0], wanted[0])


def test_what_does_not_fit_is_refused() -> None:
    packed, tables_at = _packed(CASES[1], ahead=False)
    ids, positions, slots, lengths, tables = _outputs(CASES[1])
    for error, outputs in (
        (ValueError, (ids[:2], positions[:2], slots[:2], lengths[:2], tables)),
        (ValueError, (ids, positions[:2], slots, lengths, tables)),
        (ValueError, (ids, positions, slots, lengths, tables[:, :3])),
        (TypeError, (ids.int(), positions, slots, lengths, tables)),
        (TypeError, (ids, positions, slots, lengths.long(), tables)),
        (TypeError, (ids, positions, slots, lengths, tables.long())),
    ):
        with pytest.raises(error):
            prepare_step(packed, None, 3, tables_at, outputs)
    with pytest.raises(TypeError):
        prepare_step(packed, torch.zeros(4).int(), 3, tables_at, _outputs(CASES[1]))
