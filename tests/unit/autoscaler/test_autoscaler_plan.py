"""Flags that make no sense are refused by name, before anything starts."""

import argparse
from typing import Any

import pytest

from services.autoscaler.plan import plan_of
from services.cli.autoscaler import add_arguments
from shared.errors import SettingsError


def options(*flags: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return vars(parser.parse_args(["run", *flags]))


CLUSTER = ("--prefill", "b-prefill", "--decode", "b-decode", "--release", "b", "--namespace", "n")


def test_the_flags_make_the_view_that_every_turn_starts_from() -> None:
    plan = plan_of(
        options(
            *CLUSTER,
            *("--mode", "builtin", "--prefill-replicas", "2-6", "--decode-gpus", "4"),
            *("--slo-ttft-ms", "500", "--slo-gap-ms", "20", "--slo-target", "0.95"),
            *("--max-gpus", "12"),
        )
    )
    prefill, decode = plan.view.roles["prefill"], plan.view.roles["decode"]
    assert (prefill.least, prefill.most, prefill.num_gpus) == (2, 6, 1)
    assert (decode.least, decode.most, decode.num_gpus) == (1, 4, 4)
    assert plan.view.promise.wait_s == 0.5
    assert plan.view.promise.gap_s == 0.02
    assert plan.view.promise.target == 0.95
    assert plan.view.max_gpus == 12
    assert plan.place.deployments == {"prefill": "b-prefill", "decode": "b-decode"}


def test_decode_alone_is_a_cell_whose_decode_workers_do_both() -> None:
    flags = ("--decode", "b-decode", "--decode-replicas", "1-8", "--release", "b")
    plan = plan_of(options("--mode", "builtin", *flags))
    assert list(plan.view.roles) == ["decode"] and plan.view.is_aggregated
    assert (plan.view.roles["decode"].least, plan.view.roles["decode"].most) == (1, 8)
    assert plan.place.deployments == {"decode": "b-decode"}
    assert not plan_of(options()).view.is_aggregated


def test_without_a_cluster_it_advises() -> None:
    plan = plan_of(options())
    assert plan.mode == "advise" and not plan.place.deployments
    assert plan.view.max_gpus is None


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--mode", "builtin"), "--mode builtin"),
        (("--prefill", "b-prefill"), "--release"),
        (("--prefill", "b-prefill", "--release", "b"), "--prefill: name .* decode workers too"),
        (("--prefill-replicas", "3"), "--prefill-replicas: '3'"),
        (("--decode-replicas", "4-2"), "--decode-replicas: '4-2'"),
        (("--decode-replicas", "0-2"), "--decode-replicas: '0-2'"),
    ],
)
def test_what_makes_no_sense_is_named(flags: tuple[str, ...], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        plan_of(options(*flags))


@pytest.mark.parametrize(
    "flags",
    [("--slo-target", "0"), ("--slo-target", "1.5"), ("--slo-ttft-ms", "nan"), ("--port", "-1")],
)
def test_numbers_out_of_range_are_refused(flags: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit):
        options(*flags)
