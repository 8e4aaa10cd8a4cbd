"""A warmed-up GPU worker compiles nothing while it serves: a kernel takes a second, in which nobody
gets a token."""

import functools
import json
import os
import subprocess
import sys
from typing import Any

from tests.rules.sources import ROOT

NUM_CASES = 8
MIN_STEPS = 50
MAX_CALLS = 300
"""of the host for a layer of a prompt: 245, the stub's among them, or 464 if no launch is kept"""


def lines_of(*flags: str) -> list[dict[str, Any]]:
    """What serving_launches.py says."""
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    ended = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "tests.unit.engine.running.serving_launches", *flags],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


@functools.cache
def served(*flags: str) -> list[dict[str, Any]]:
    """What it says of each case."""
    cases = lines_of(*flags)
    assert len(cases) == NUM_CASES
    assert all(case["num_steps"] >= MIN_STEPS for case in cases)
    return cases


def test_nothing_is_compiled_after_the_warm_up() -> None:
    for case in served():
        assert not case["late"], case
        assert case["num_warm"] >= 20


def test_a_start_compiles_ahead_exactly_what_is_launched() -> None:
    """By Triton's own keys. On a CPU gpt2 stores K and V without a kernel."""
    ahead = {case["case"]: set(case["keys"]) for case in lines_of("listed")}
    for case in served():
        launched = set(case["keys"])
        assert launched <= ahead[case["case"]], case["case"]
        assert len(ahead[case["case"]] - launched) == (case["case"] == "gpt2"), case["case"]


def test_a_kernel_that_a_list_lacks_is_noticed() -> None:
    """Where the list was made for one way of choosing tokens."""
    (ahead,) = lines_of("listed", "greedy")
    (case,) = (case for case in served() if case["case"] == ahead["case"])
    assert set(ahead["keys"]) < set(case["keys"])


def test_layers_repeat_the_first_ones_launches() -> None:
    """Each of which serving_launches.py compares with what Triton would have chosen."""
    repeated = {name for case in served() for name in case["repeated"]}
    assert repeated == {
        "merge_kernel",
        "paged_decode_kernel",
        "paged_prefill_hopper_kernel",
        "paged_prefill_kernel",
        "rms_norm_kernel",
        "rope_store_kernel",
        "silu_mul_kernel",
        "skinny_hopper_kernel",
        "skinny_linear_kernel",
    }


def test_without_a_warm_up_it_would_be() -> None:
    for case in served("bare"):
        assert {"prepare_step_kernel", "paged_decode_kernel"} <= set(case["late"]), case
        assert {"paged_prefill_hopper_kernel", "paged_prefill_kernel"} & set(case["late"]), case


def test_a_layer_of_a_prompt_costs_the_host_little() -> None:
    (layer,) = lines_of("layer")
    assert layer["looked_up"] == 0
    assert 0 < layer["calls"] <= MAX_CALLS
