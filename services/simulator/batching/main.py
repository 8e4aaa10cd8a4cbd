"""`baton simulate batching`: runs each policy on the same requests, and says what they came to."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from services.simulator.batching.continuous_batching import BLOCK_SIZE
from services.simulator.batching.device import POLICIES, Device, serve
from services.simulator.batching.load import Load
from services.simulator.batching.outcome import Outcome, outcome_of
from services.simulator.batching.page import COLUMNS, cells, rendered
from services.simulator.batching.step_cost import H200_8B
from shared.errors import SettingsError


def run(options: Mapping[str, Any]) -> int:
    """SettingsError that names the flag."""
    load, device = asked(options)
    outcomes = compare(load, device)
    facts = _facts(load, device)
    page = rendered(outcomes, facts, device.num_slots, min(options["shown"], load.num_requests))
    try:
        Path(options["out"]).write_text(page, encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"--out {options['out']}: {error}") from error
    sys.stderr.write(f"wrote {options['out']}\n")
    if options["json"]:
        records = [outcome.record() for outcome in outcomes]
        sys.stdout.write(json.dumps({"facts": dict(facts), "policies": records}) + "\n")
    else:
        sys.stdout.write(_table(outcomes))
    return 0


def asked(options: Mapping[str, Any]) -> tuple[Load, Device]:
    """What the flags say. SettingsError that names the flag."""
    least = options["slots"] - 1 + BLOCK_SIZE
    if options["step_tokens"] < least:
        raise SettingsError(f"--step-tokens: {options['slots']} places need {least} at least")
    load = Load(
        num_requests=options["requests"],
        rate=options["rate"],
        prompt=options["prompt"],
        output=options["output"],
        seed=options["seed"],
    )
    device = Device(
        costs=options["step_costs"] or H200_8B,
        num_slots=options["slots"],
        step_tokens=options["step_tokens"],
        longest=load.longest,
        wait_s=options["wait_ms"] / 1000,
    )
    return load, device


def compare(load: Load, device: Device) -> list[Outcome]:
    """Each policy on requests of its own that are the same."""
    outcomes = []
    for policy, make in POLICIES.items():
        requests = load.requests()
        outcomes.append(outcome_of(policy, serve(make, device, requests), requests))
    return outcomes


def _facts(load: Load, device: Device) -> list[tuple[str, str]]:
    costs = device.costs
    (shortest, longest), (least, most) = load.prompt, load.output
    return [
        ("requests", f"{load.num_requests:,}, {load.rate:g} a second, seed {load.seed}"),
        ("tokens", f"{shortest} to {longest} in, {least} to {most} out, log-uniform"),
        ("places", f"{device.num_slots}; steps of at most {device.step_tokens} tokens"),
        ("a group is waited for", f"{1000 * device.wait_s:g} ms (dynamic, timed)"),
        (
            "a step",
            f"{1e3 * costs.step_s:g} ms, {1e6 * costs.row_s:g} us a sequence, "
            f"{1e9 * costs.context_token_s:g} ns a position it attends to, "
            f"{1e6 * costs.chunk_token_s:g} us a prompt token, "
            f"{1e9 * costs.chunk_pair_s:g} ns a pair of such a token and a position",
        ),
    ]


def _table(outcomes: Sequence[Outcome]) -> str:
    rows = [COLUMNS, *map(cells, outcomes)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *others in rows:
        padded = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *padded]) + "\n")
    return "".join(lines)
