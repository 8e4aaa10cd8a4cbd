"""`baton demo`: everything once, on any machine: start, ask, show the trace, stop."""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from services.cli.cluster.local_cell import (
    finished,
    running,
    stop_signals,
    this_machine,
)
from services.cli.cluster.model_check import check_model
from services.cli.cluster.output import Output
from services.cli.cluster.plan import Machine, Plan, Topology, make_plan
from services.cli.gateway_client import GatewayClient
from services.cli.trace.drawing import drawn
from services.cli.trace.finished_receipt import finished_receipt
from shared.demo_model.knowledge import DEMO_QUESTION

MAX_TOKENS = 160


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompt", default=DEMO_QUESTION, metavar="TEXT", help="what to ask")
    parser.add_argument("--model", metavar="DIR|HUB_ID", help="default: the demo model")
    parser.add_argument(
        "--topology",
        choices=("pd", "agg"),
        help="see `baton up`; default: pd, the hand-over shows, but for a model on one GPU",
    )


def run(arguments: argparse.Namespace) -> int:
    started_s = time.monotonic()
    plan = demo_plan(arguments.model, arguments.topology, os.environ, this_machine())
    check_model(plan)
    return asyncio.run(_demo(plan, arguments.prompt, started_s))


def demo_plan(
    model: str | None, topology: Topology | None, environ: Mapping[str, str], machine: Machine
) -> Plan:
    """The demo model runs on the CPU: it answers there before a GPU has compiled its kernels. Two
    workers with another model would not fit on one GPU."""
    flags: dict[str, Any] = {"port": 0, "model": model} if model else {"port": 0, "device": "cpu"}
    chosen: Topology = topology or ("agg" if model and machine.num_gpus == 1 else "pd")
    num_prefill = 1 if chosen == "pd" else None
    plan = make_plan(
        flags, environ, machine, topology=chosen, num_prefill=num_prefill, num_decode=1
    )
    return plan if topology else replace(plan, why="")


async def _demo(plan: Plan, prompt: str, started_s: float) -> int:
    output = Output(quiet=True)
    async with stop_signals() as stop:
        output.say(f"starting {plan.summary}")
        async with running(plan, output, restart=False) as cell:
            if await finished(cell.wait_ready(), stop):
                output.ready(cell.url)
                output.flush()
                client = GatewayClient(cell.url)
                await finished(asyncio.to_thread(_connect_workers, client), stop)
                asking = asyncio.to_thread(_ask, client, prompt, started_s)
                await finished(asking, stop)
            output.say("stopping")
    output.say(f"done after {time.monotonic() - started_s:.1f} s")
    return 0


def _connect_workers(client: GatewayClient) -> None:
    """The first hand-over of two workers also connects them; the question's shows what every
    later one costs."""
    with client.chat([{"role": "user", "content": "hello"}], max_tokens=2) as answer:
        for _ in answer:
            pass


def _ask(client: GatewayClient, prompt: str, started_s: float) -> None:
    """Streams one answer to the terminal, then draws the request's trace."""
    sys.stdout.write(f"\n> {prompt}\n\n")
    asked_s = time.monotonic()
    first_s = 0.0
    messages = [{"role": "user", "content": prompt}]
    with client.chat(messages, max_tokens=MAX_TOKENS, temperature=0) as answer:
        for piece in answer:
            first_s = first_s or time.monotonic()
            sys.stdout.write(piece)
            sys.stdout.flush()
    sys.stdout.write("\n\n")
    receipt = finished_receipt(client, answer.request_id)
    if first_s:
        after_s = (first_s - asked_s, first_s - started_s)
        sys.stdout.write(_speed(receipt, *after_s, time.monotonic() - first_s))
    sys.stdout.write(f"\nrequest {answer.request_id}\n{drawn(receipt)}\n")
    sys.stdout.flush()


def _speed(receipt: dict[str, Any], asked_s: float, started_s: float, rest_s: float) -> str:
    """`asked_s`, `started_s`: from the question and from the start to the first token;
    `rest_s`: from there to the last."""
    text = (
        f"first token {asked_s * 1e3:.0f} ms after the question, {started_s:.1f} s after the start"
    )
    num_tokens = receipt.get("completion_tokens", 0)
    if num_tokens > 1 and rest_s > 0:
        text += f"; {num_tokens} tokens, {(num_tokens - 1) / rest_s:.0f} a second"
    return f"{text}\n"
