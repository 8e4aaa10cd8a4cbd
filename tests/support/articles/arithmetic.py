"""The figures of shared/articles, computed from the formulas next to them.

A formula is arithmetic on numbers, lists, models and functions. What the product computes, it is
asked: there is no second formula here.
"""

import argparse
import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from loadtest.prefix_saving import expected_share
from services.cli import simulate
from services.cli.bench.engine.figures.floors import Floors
from services.cli.bench.sweep.knee import find_knee
from services.cli.byte_size import GIB
from services.cli.capacity.devices import named_gpu
from services.cli.capacity.estimate import Capacity, estimate, usd_per_million_tokens
from services.simulator.batching.device import POLICIES, Device, serve
from services.simulator.batching.load import Load
from services.simulator.batching.main import asked, compare
from services.simulator.batching.outcome import Outcome, outcome_of
from services.simulator.batching.request import Request
from shared.engine.running.ceilings import Ceilings
from shared.errors import ModelError
from shared.kv.layout import num_blocks_for
from shared.model.checkpoint import random_checkpoint
from shared.model.model_size import ModelSize
from shared.model.shapes import SHAPES
from shared.settings.groups import KVSettings
from tests.support.cases import known_models
from tests.support.cases.known_models import question

Model = Mapping[str, Any]
MODELS: Mapping[str, Model] = {
    "gpt2": known_models.GPT2,
    "gpt2_medium": known_models.GPT2_MEDIUM,
    "llama_7b": known_models.LLAMA_7B,
    "llama_13b": known_models.LLAMA_13B,
    "llama_70b": known_models.LLAMA_70B,
    "llama_8b": SHAPES["llama-3.1-8b"],
}
A100 = Ceilings(copy_bytes_per_s=2e12, matmul_flops_per_s=312e12)
BLOCK = KVSettings().block_size
OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}


def kv(model: Model, tokens: int) -> int:
    return known_models.kv_bytes(model, tokens)


def token(model: Model) -> int:
    return _capacity(model).token_bytes


def layer_token(model: Model) -> int:
    return _capacity(model).layer_token_bytes


def in_pool(model: Model, gib: int, tokens: int) -> int:
    return known_models.in_pool(model, gib * GIB, tokens)


def weights(model: Model, num_bytes: int = 2) -> int:
    return _capacity(model, dtype={2: "float16", 4: "float32"}[num_bytes]).weights_bytes


def unused(tokens: int) -> float:
    return 1 - tokens / (num_blocks_for(tokens, BLOCK) * BLOCK)


def shares(model: Model) -> list[float]:
    """Of what a worker may use of an A100-80: weights, KV pool, largest step."""
    of = estimate(question(model, named_gpu("A100-80")))
    return [part / of.usable_bytes for part in (of.weights_bytes, of.pool_bytes, of.step_bytes)]


def fewest_gpus(model: Model, gpus: list[int]) -> int:
    """Of A100-80: the least of these numbers over which it fits."""
    for tp in gpus:
        try:
            if estimate(question(model, named_gpu("A100-80"), tp=tp)).fits:
                return tp
        except ModelError:
            continue
    raise ValueError(f"it fits on none of {gpus}")


def padding(lengths: list[int]) -> float:
    requests = [Request(at, 0.0, length, 1) for at, length in enumerate(lengths)]
    device = replace(_simulated()[1], num_slots=len(lengths))
    return outcome_of("static", serve(POLICIES["static"], device, requests), requests).padding_ratio


def batching(policy: str) -> float:
    return _outcomes()[policy].tokens_a_second


def knee(points: list[list[float]]) -> int:
    return find_knee([(int(batch), rate) for batch, rate in points]).batch


def saved(requests: int, shared: int, own: int, block: int = 1) -> float:
    return expected_share(requests, shared, own, block)


def prefill(model: Model, tokens: int) -> float:
    return _floors(model).prefill_s(tokens)


def step(model: Model, sequences: int, tokens: int) -> float:
    return _floors(model).decode_step_s([tokens] * sequences)


def usd(price: float, tokens_per_s: float) -> float:
    asked = question(known_models.LLAMA_7B)
    return usd_per_million_tokens(replace(asked, usd_per_gpu_hour=price, tokens_per_s=tokens_per_s))


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        *(kv, token, layer_token, in_pool, weights, unused, shares, fewest_gpus),
        *(padding, batching, knee, saved, prefill, step, usd),
    )
}


def _simulated() -> tuple[Load, Device]:
    """What `baton simulate batching` takes without more."""
    parser = argparse.ArgumentParser()
    simulate.add_arguments(parser)
    return asked(vars(parser.parse_args(["batching"])))


@cache
def _outcomes() -> Mapping[str, Outcome]:
    return {outcome.policy: outcome for outcome in compare(*_simulated())}


def _capacity(model: Model, **settings: Any) -> Capacity:
    return estimate(question(model, **settings))


def _floors(model: Model) -> Floors:
    """Least times on an A100 with 80 GB."""
    config = random_checkpoint(known_models.NOWHERE, "m", model).config
    return Floors(ModelSize.of(config, "float16"), A100)


def values_of(formula: str) -> tuple[float, ...]:
    """One value, or those of a list. ValueError for what is no formula."""
    try:
        found = _value(ast.parse(formula, mode="eval").body)
    except SyntaxError as error:
        raise ValueError(f"{formula}: {error.msg}") from None
    return tuple(found) if isinstance(found, list) else (found,)


def numbers_in(formula: str) -> set[float]:
    tree = ast.walk(ast.parse(formula, mode="eval"))
    found = (node.value for node in tree if isinstance(node, ast.Constant))
    return {float(value) for value in found if isinstance(value, int | float)}


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=int() | float() | str() as constant):
            return constant
        case ast.Name(id=name) if name in MODELS:
            return MODELS[name]
        case ast.List(elts=items):
            return [_value(item) for item in items]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_value(left), _value(right))
        case ast.Call(func=ast.Name(id=name), args=items, keywords=[]) if name in FUNCTIONS:
            return FUNCTIONS[name](*map(_value, items))
    raise ValueError(f"{ast.unparse(node)} is no formula")
