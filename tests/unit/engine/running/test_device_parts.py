"""What a GPU runner decides on the host: sizes of graphs, the split of a step."""

import pytest

from shared.engine.layers.paged_attention import num_decoding
from shared.engine.layers.row_sizes import graph_sizes, next_size
from shared.engine.running.decode_graphs import DecodeGraphs
from shared.engine.running.empty_steps import decode_step, prompt_step
from shared.engine.scheduling.batch import SKIP_SLOT


@pytest.mark.parametrize("max_rows", [1, 2, 3, 8, 60, 64, 100, 256, 300, 1024, 3000])
def test_every_number_of_rows_has_a_size_that_is_not_much_larger(max_rows: int) -> None:
    sizes = graph_sizes(max_rows)
    assert list(sizes) == sorted(set(sizes)) and sizes[-1] == max_rows
    graphs = DecodeGraphs(max_rows)
    for num_rows in range(1, max_rows + 1):
        size = graphs.size_for(num_rows)
        assert num_rows <= size <= max_rows
        assert size - num_rows < max(8, num_rows)
    assert len(sizes) <= 45


def test_sequences_beside_a_prompt_use_the_kernels_of_a_graph() -> None:
    """Of which there are few: else one would be compiled while serving."""
    sizes = graph_sizes(300)
    assert {next_size(num_rows) for num_rows in range(1, 300)} <= {*sizes, next_size(299)}
    assert [next_size(num_rows) for num_rows in (1, 3, 4, 5, 33, 65, 300)] == [
        1,
        4,
        4,
        8,
        40,
        80,
        320,
    ]


def test_steps_nobody_asked_for_fill_what_they_are_said_to() -> None:
    prompts = prompt_step(70, 3, 32, 16)
    assert prompts.query_lens.tolist() == [32, 32, 6]
    assert prompts.context_lens.tolist() == prompts.query_lens.tolist()
    assert prompts.positions.tolist() == [*range(32), *range(32), *range(6)]
    assert prompts.block_tables.shape == (3, 2)
    assert prompts.shape.num_logits_rows == 3
    largest = prompt_step(64, 100, 32, 16)
    assert (largest.query_lens.tolist(), largest.shape.num_logits_rows) == ([32, 32], 64)
    assert decode_step(2).query_lens.tolist() == [1, 1]
    for step in (prompts, largest, decode_step(2)):
        assert (step.slot_mapping == SKIP_SLOT).all()
        assert not step.block_tables.any()
        assert not step.input_ids.any()


def test_a_graph_is_made_of_the_second_step_of_its_size() -> None:
    graphs, calls = DecodeGraphs(8), []

    class Graph:
        def replay(self) -> None:
            calls.append("replay")

    graphs._capture = lambda step: Graph()  # type: ignore[method-assign,assignment,return-value]
    for size in (4, 4, 8, 4):
        graphs.run(size, lambda: calls.append("step"))
    assert calls == ["step", "replay", "step", "replay"]


def test_decoding_sequences_are_those_with_one_row_that_stand_first() -> None:
    assert num_decoding((1, 1, 5, 1)) == 2
    assert num_decoding((7, 1)) == 0
    assert num_decoding((1, 1)) == 2
    assert num_decoding(()) == 0
