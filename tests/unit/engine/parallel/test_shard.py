"""Every head, column and token belongs to exactly one rank; KV heads to as many as need them."""

from dataclasses import replace
from typing import Any

import pytest

from shared.engine.layers.shard import Part, Shard, part_of
from shared.errors import ModelError
from shared.model.config import parse_config
from shared.model.shapes import SHAPES
from tests.support.models.tiny_model import TINY

MODEL = parse_config({**TINY, "num_attention_heads": 8, "num_key_value_heads": 2})


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_parts_make_up_the_whole(size: int) -> None:
    shards = [Shard(MODEL, rank, size) for rank in range(size)]
    for name in ("queries", "columns", "vocabulary"):
        parts: list[Part] = [getattr(shard, name) for shard in shards]
        assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
        assert parts[-1].stop == parts[0].total
    assert shards[0].vocabulary_width * size >= MODEL.vocab_size
    assert all(shard.vocabulary.width <= shard.vocabulary_width for shard in shards)


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4, 8])
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_a_rank_has_the_kv_heads_of_its_query_heads(size: int, num_kv_heads: int) -> None:
    model = replace(MODEL, num_kv_heads=num_kv_heads)
    for rank in range(size):
        shard = Shard(model, rank, size)
        config, dim = shard.config, model.head_dim
        for head in range(config.num_heads):
            wanted = (shard.queries.start // dim + head) // model.group_size
            assert shard.keys.start // dim + head // config.group_size == wanted


def test_one_rank_has_everything() -> None:
    shard = Shard(MODEL)
    assert shard.config == MODEL
    parts = (shard.queries, shard.keys, shard.columns, shard.vocabulary)
    assert all(part.is_whole for part in parts)
    assert part_of(7) == Part(7, 0, 7)
    assert part_of(Part(7, 2, 3)).width == 1


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("size", [2, 4, 8])
def test_known_models_can_be_split(name: str, size: int) -> None:
    shard = Shard(parse_config(SHAPES[name]), size - 1, size)
    assert shard.config.num_heads * size == shard.model.num_heads


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"num_heads": 6, "num_kv_heads": 6}, "6 attention heads cannot be split evenly over 4"),
        ({"intermediate_size": 202}, "202 MLP columns"),
        ({"num_heads": 12, "num_kv_heads": 3}, "3 KV heads can be neither"),
        ({"vocab_size": 5}, "5 tokens are too few"),
    ],
)
def test_what_cannot_be_split_is_said(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ModelError, match=problem):
        Shard(replace(MODEL, **change), 0, 4)
