"""What a GPU runner decides on the host: sizes of graphs, memory, the split of a step."""

import pytest

from shared.engine.batch import SKIP_SLOT
from shared.engine.block_pool import MIN_BLOCKS
from shared.engine.decode_graphs import DecodeGraphs, graph_sizes, next_size
from shared.engine.empty_steps import decode_step, prompt_step
from shared.engine.memory_profile import GIB, MemoryProfile
from shared.engine.paged_attention import num_decoding
from shared.errors import SettingsError


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


def profile(weights_gib: float) -> MemoryProfile:
    return MemoryProfile(
        total_bytes=80 * GIB,
        utilization=0.9,
        others_bytes=GIB,
        weights_bytes=int(weights_gib * GIB),
        activations_bytes=2 * GIB,
    )


def test_the_pool_gets_what_the_rest_leaves() -> None:
    measured = profile(15.0)
    used = sum(
        (
            measured.others_bytes,
            measured.weights_bytes,
            measured.activations_bytes,
            measured.graphs_bytes,
            measured.kv_bytes,
        )
    )
    assert used == int(0.9 * 80 * GIB)
    assert measured.num_blocks(2**21) == measured.kv_bytes // 2**21
    assert str(measured).startswith("72.0 of 80.0 GiB may be used: weights 15.00, activations 2.00")


def test_a_model_that_does_not_fit_says_what_takes_the_room_and_what_helps() -> None:
    with pytest.raises(SettingsError) as told:
        profile(69.0).num_blocks(2**21)
    for part in ("weights 69.00", "KV -0.40", "--gpu-memory-utilization", "--tp", str(MIN_BLOCKS)):
        assert part in str(told.value)


def test_decoding_sequences_are_those_with_one_row_that_stand_first() -> None:
    assert num_decoding((1, 1, 5, 1)) == 2
    assert num_decoding((7, 1)) == 0
    assert num_decoding((1, 1)) == 2
    assert num_decoding(()) == 0
