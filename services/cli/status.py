"""`baton status`: the workers of a running gateway, as a table or as JSON."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from services.cli.gateway_client import GatewayClient, told_url
from services.cli.terminal import terminal_width, wrapped

COLUMNS = (
    "ID",
    "ROLE",
    "STATE",
    "PID",
    "HOST",
    "RUNNING",
    "WAITING",
    "FREE",
    "CACHED",
    "HELD",
    "TOTAL",
    "BEAT",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", action="store_true", help="as the gateway says it; by model where it has several"
    )
    parser.add_argument("--model", default="", metavar="M", help="of several: this one alone")
    parser.add_argument(
        "--url",
        metavar="U",
        help="default: $BATON_URL, else of the only `baton up` here, else 127.0.0.1:8000",
    )


def run(arguments: argparse.Namespace) -> int:
    client = GatewayClient(told_url(arguments.url), timeout_s=10.0)
    answers = [client.status(arguments.model)]
    if not arguments.model:
        others = (name for name in answers[0].get("models", ()) if name != answers[0]["model"])
        answers += map(client.status, others)
    if arguments.json:
        told = answers[0] if len(answers) == 1 else {each["model"]: each for each in answers}
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
    else:
        width = terminal_width()
        sys.stdout.write("\n".join(render_status(each, width) for each in answers))
    return 0


def render_status(answer: Mapping[str, Any], width: int | None = None) -> str:
    """One line on the gateway, then a table with a line per worker; where the terminal's `width`
    is too small for it, a sentence per worker."""
    live = answer.get("requests", {}).get("live", 0)
    head = (
        f"baton {answer.get('version', '?')} at {answer.get('url', '?')}: "
        f"{answer.get('model', '?')}, {answer.get('max_model_len', '?')} tokens, "
        f"{live} live request(s)"
    )
    head = wrapped(head, width) + "\n"
    if answer.get("admin_url"):
        head += wrapped(f"probes and metrics at {answer['admin_url']}", width) + "\n"
    rows = [_row(worker) for worker in answer.get("workers", [])]
    if trouble := answer.get("trouble"):
        head += wrapped(f"{'trouble' if rows else 'no workers'}: {trouble}", width) + "\n"
    elif not rows:
        head += "no workers\n"
    if (store := answer.get("redis", "ok")) != "ok":
        head += wrapped(f"trouble: Redis: {store}; new requests are refused", width) + "\n"
    if not rows:
        return head
    table = _table([COLUMNS, *rows])
    if width is not None and max(map(len, table.splitlines())) > width:
        table = "".join(f"{wrapped(_sentence(row), width)}\n" for row in rows)
    pairs = answer.get("hand_overs", [])
    return head + table + "".join(f"{wrapped(_hand_overs(pair), width)}\n" for pair in pairs)


def _sentence(row: Sequence[str]) -> str:
    """What the table says of one worker."""
    name, role, state, pid, host, running, waiting, free, cached, held, total, beat = row
    return (
        f"{name}: {role}, {state}, pid {pid} on {host}; {running} running, {waiting} waiting; "
        f"{free} free, {cached} cached, {held} held of {total} blocks; last beat {beat} ago"
    )


def _hand_overs(pair: Mapping[str, Any]) -> str:
    """What one pair of workers did."""
    num_bytes = pair["bytes"]
    size = f"{num_bytes / 1e6:,.1f} MB" if num_bytes >= 1e6 else f"{num_bytes / 1e3:.0f} kB"
    rate = f" at {pair['gb_per_s']:.3g} GB/s" if pair["gb_per_s"] else ""
    return (
        f"{pair['prefill']} -> {pair['decode']}: {pair['num']} hand-over(s), "
        f"{size}{rate}, {pair['transport']}: {pair['why']}"
    )


def _row(worker: Mapping[str, Any]) -> tuple[str, ...]:
    kv = worker.get("kv", {})
    beat_s = worker.get("heartbeat_age_s")
    return (
        *(str(worker.get(key, "")) for key in ("id", "role", "state", "pid", "host")),
        *(str(worker.get(key, "")) for key in ("running", "waiting")),
        *(str(kv.get(key, "")) for key in ("free", "cached", "held", "total")),
        "" if beat_s is None else f"{beat_s:.1f} s",
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join(lines) + "\n"
