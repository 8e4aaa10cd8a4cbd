"""Rotary fields in both forms, how long a sequence each kind allows, and what is refused."""

import math
from typing import Any

import pytest

from shared.errors import ModelError
from shared.model.rope import DynamicRope, LinearRope, Llama3Rope, RopeConfig, YarnRope, parse_rope

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"factor": 4, "original_max_position_embeddings": 128}


def _new(kind: str, **fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 5e5, **fields}}


def _old(kind: str, **fields: Any) -> dict[str, Any]:
    return {"rope_theta": 5e5, "rope_scaling": {"type": kind, **fields}}


@pytest.mark.parametrize(
    ("kind", "fields", "scaling"),
    [
        ("default", {}, None),
        ("linear", {"factor": 2}, LinearRope(2.0)),
        ("dynamic", {"factor": 2}, DynamicRope(2.0, 512)),
        ("llama3", LLAMA3, Llama3Rope(8.0, 1.0, 4.0, 64)),
        ("yarn", {**YARN, "attention_factor": 1.5}, YarnRope(4.0, 1.5, 32.0, 1.0, True, 128)),
    ],
)
def test_old_and_new_forms_say_the_same(kind: str, fields: dict[str, Any], scaling: Any) -> None:
    expected = RopeConfig(5e5, scaling)
    assert parse_rope(_new(kind, **fields), 16, 512) == expected
    assert parse_rope(_old(kind, **fields), 16, 512) == expected
    both = _new(kind, **fields) | {"rope_scaling": _new(kind, **fields)["rope_parameters"]}
    assert parse_rope(both, 16, 512) == expected


def test_absent_fields_take_the_defaults_of_transformers() -> None:
    assert parse_rope({}, 16, 512) == RopeConfig(10000.0)
    assert parse_rope({"rope_scaling": None, "rope_parameters": None}, 16, 512).scaling is None
    yarn = parse_rope(_old("yarn", factor=4.0, beta_fast=None), 16, 512).scaling
    assert yarn == YarnRope(4.0, 0.1 * math.log(4.0) + 1.0, 32.0, 1.0, True, 512)
    unstated = parse_rope(_new("yarn", original_max_position_embeddings=128), 16, 512).scaling
    assert isinstance(unstated, YarnRope) and unstated.factor == 4.0


def test_an_original_length_beside_the_ropes_fields_beats_one_among_them() -> None:
    raw = {**_new("yarn", **YARN), "original_max_position_embeddings": 32}
    scaling = parse_rope(raw, 16, 512).scaling
    assert isinstance(scaling, YarnRope) and scaling.original_max_position_embeddings == 32


@pytest.mark.parametrize(
    ("raw", "default", "longest"),
    [
        ({}, 512, 512),
        (_new("llama3", **LLAMA3), 512, 512),
        (_new("linear", factor=2.5), 512, 1280),
        (_new("dynamic", factor=4), 512, 2048),
        (_new("yarn", factor=8, original_max_position_embeddings=128), 1024, 1024),
        (_new("yarn", factor=2, original_max_position_embeddings=128), 512, 512),
    ],
)
def test_how_long_a_sequence_may_be(raw: dict[str, Any], default: int, longest: int) -> None:
    rope = parse_rope(raw, 16, 512)
    assert (rope.default_len(512), rope.longest_len(512)) == (default, longest)


def test_a_dynamic_base_is_the_trained_one_up_to_the_original_length() -> None:
    rope = DynamicRope(4.0, 512)
    assert rope.base(1e4, 16, 100) == rope.base(1e4, 16, 512) == 1e4
    assert rope.base(1e4, 16, 1024) == pytest.approx(1e4 * 5 ** (16 / 14))


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (_new("longrope"), "rope type 'longrope' is not supported"),
        (_old("mrope"), "rope type 'mrope' is not supported"),
        (_new("linear"), "factor is None"),
        (_new("llama3", factor=2), "low_freq_factor is None"),
        (_new("yarn", factor="4"), "factor is '4'"),
        (_new("linear", factor=0.5), "factor 0.5 is below 1"),
        (_new("yarn", factor=2, original_max_position_embeddings=0), "embeddings is 0"),
        (_new("dynamic", factor=2, original_max_position_embeddings=64), "dynamic whose"),
        (_new("default", rope_theta=1.0), "rope_theta 1.0 is not above 1"),
        (_new("default", partial_rotary_factor=0.5), "partial_rotary_factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({**_new("linear", factor=2), **_old("linear", factor=4)}, "disagree"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "per layer type"),
        ({"rope_scaling": "linear"}, "needs an object"),
    ],
)
def test_what_we_do_not_compute_is_refused(raw: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence) as refusal:
        parse_rope(raw, 16, 512)
    assert "\n" not in str(refusal.value)


def test_a_dynamic_base_needs_more_than_one_pair() -> None:
    with pytest.raises(ModelError, match="head_dim"):
        parse_rope(_new("dynamic", factor=2), 2, 512)
