"""A run of `baton bench serve`, read from its `--json` file: what arrived, what clients felt, and
the workers that served it, with the step times that they had learned by its end.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.autoscaler.planning.typical_worker import TypicalWorker
from services.autoscaler.view import ROLES, Arrival, Role, WorkerView
from services.simulator.prefill_worker import ROOM_STEPS
from services.simulator.worker_kind import WorkerKind
from shared.errors import SettingsError
from shared.message_parts.step_costs import StepCosts

Line = Mapping[str, Any]


@dataclass(frozen=True)
class Felt:
    """What the client of one whole answer measured."""

    ttft_s: float
    token_s: float | None
    """from token to token, on average; None where one came"""
    e2e_s: float
    """to the last token"""


@dataclass(frozen=True)
class MeasuredLoad:
    """One load point."""

    name: str
    arrivals: Sequence[Arrival]
    """of whatever was sent, oldest first, from 0"""
    felt: Sequence[Felt | None]
    """of each of them; None: it was refused, or failed"""


@dataclass(frozen=True)
class MeasuredRun:
    """All load points of one endpoint."""

    loads: Sequence[MeasuredLoad]
    num_workers: Mapping[Role, int]
    kinds: Mapping[Role, WorkerKind]


def read_measured_run(path: Path) -> MeasuredRun:
    """SettingsError where the file is none, or says too little of its cell."""
    where = f"--measured {path}"
    lines = list(_lines(path, where))
    environment = next((line for line in lines if line.get("kind") == "environment"), {})
    requests = [line for line in lines if line.get("kind") == "request"]
    if not requests:
        raise SettingsError(f"{where}: has no requests; `bench serve --json` writes some")
    try:
        status = environment["endpoint"]["status_after"]
        workers = [_worker(entry, status["block_size"]) for entry in status["workers"]]
        loads = [_load(name, requests) for name in _names(requests, environment)]
    except (KeyError, TypeError) as error:
        raise SettingsError(
            f"{where}: says nothing of the cell's workers ({error}); it takes a Baton that shows "
            "its status at the URL that was loaded, and this release's `bench serve`"
        ) from None
    by_role = {role: [one for of, one in workers if of == role] for role in ROLES}
    if not by_role["prefill"]:  # decode workers did both
        del by_role["prefill"]
    kinds = {role: _kind(where, role, found) for role, found in by_role.items()}
    return MeasuredRun(loads, {role: len(found) for role, found in by_role.items()}, kinds)


def _lines(path: Path, where: str) -> Iterator[Line]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{where}: {error}") from error
    for number, raw in enumerate(text.splitlines(), start=1):
        try:
            line = json.loads(raw)
        except ValueError:
            line = None
        if not isinstance(line, dict):
            raise SettingsError(f"{where}, line {number}: not a JSON object")
        yield line


def _names(requests: Sequence[Line], environment: Line) -> list[str]:
    """Of the first endpoint's load points."""
    first = environment["endpoint"]["name"]
    return list(dict.fromkeys(line["load"] for line in requests if line["endpoint"] == first))


def _load(name: str, requests: Sequence[Line]) -> MeasuredLoad:
    first = requests[0]["endpoint"]
    sent = [line for line in requests if (line["load"], line["endpoint"]) == (name, first)]
    sent.sort(key=lambda line: float(line["scheduled_ms"]))
    return MeasuredLoad(name, [_arrival(line) for line in sent], [_felt(line) for line in sent])


def _arrival(line: Line) -> Arrival:
    return Arrival(
        line["scheduled_ms"] / 1000,
        line["input_tokens"],
        line["cached_tokens"],
        line["output_tokens"],
    )


def _felt(line: Line) -> Felt | None:
    if line["error"]:
        return None
    token_ms = line["tpot_ms"]
    token_s = None if token_ms is None else token_ms / 1000
    return Felt(line["ttft_ms"] / 1000, token_s, line["e2e_ms"] / 1000)


def _worker(entry: Line, block_size: int) -> tuple[str, WorkerView]:
    view = WorkerView(
        name=entry["id"],
        incarnation=entry["incarnation"],
        age_s=float("inf"),
        num_blocks=entry["kv"]["total"],
        costs=StepCosts(**entry["step_costs"]),
        step_tokens=entry["idle_room_tokens"] // ROOM_STEPS,
        block_size=block_size,
    )
    return entry["role"], view


def _kind(where: str, role: Role, workers: Sequence[WorkerView]) -> WorkerKind:
    worker = TypicalWorker.of(workers)
    if worker is None:
        knows = " that knows what its steps take" if workers else ""
        raise SettingsError(f"{where}: the cell has no {role} worker{knows}")
    return WorkerKind(worker.costs, worker.step_tokens, worker.num_blocks, worker.block_size)
