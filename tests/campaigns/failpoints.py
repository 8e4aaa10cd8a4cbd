"""`make failpoints`: a process dies at each step of a request, right before or right after it.

The cell, the load and what is judged are those of `baton chaos`. A random kill seldom comes between
two steps of the protocol; here one comes between every two. The product has no line of this: a
`sitecustomize` puts the places around its methods (tests/campaigns/failing_points).
"""

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from services.cli.chaos import command
from services.cli.chaos.campaign import Outcome, Plan
from services.cli.chaos.cell import Cell
from services.cli.chaos.client_faults import leave
from services.cli.chaos.fault import Kind, NotInjectedError, Scene, is_gone, until
from services.cli.chaos.report import explain, record, render
from services.cli.cluster.local_cell import until_stopped
from tests.campaigns.figures import Figure, at_least, exactly, judge, say

FOLDER = Path(__file__).parent / "failing_points"
REACHED_S = 20.0
"""under load, and where clients hang up, every step comes many times in it"""
LEAVE_EVERY_S = 0.5
TURNS = 2
"""how often each place is armed"""
PAUSE_S = 0.3

GATEWAY_PLACES = (
    "services.gateway.owner.requests:Requests.accept",
    "services.gateway.owner.requests:Requests._send_assign",
    "services.gateway.owner.requests:Requests._send_receive",
    "services.gateway.owner.requests:Requests._write_finish",
    "services.gateway.owner.requests:Requests._end",
    "services.gateway.owner.records.record_writer:RecordWriter._write",
)
"""of a request: owned, at prefill, at decode, over, told, written"""
IO_PLACES = (
    "shared.worker.attempts.offers:Offers.begin",
    "shared.worker.attempts.offers:Offers.announce",
    "shared.worker.attempts.offers:Offers.seal",
    "shared.worker.attempts.offers:Offers.on_released",
    "services.prefill.service:PrefillService._send_tokens",
    "services.prefill.service:PrefillService.forget",
    "services.decode.service:DecodeService.begin",
    "services.decode.service:DecodeService._pull",
    "services.decode.service:DecodeService._near",
    "services.decode.service:DecodeService._adopt",
    "services.decode.service:DecodeService._send_tokens",
    "services.decode.service:DecodeService.forget",
    "shared.transfer.pull:Pull._open",
    "shared.transfer.pull:Pull._verify",
)
"""of a hand-over, at both ends; and what either tells the gateway"""
ENGINE_PLACES = (
    "shared.engine.engine:Engine.add",
    "shared.engine.engine:Engine.reserve",
    "shared.engine.engine:Engine.adopt",
    "shared.engine.engine:Engine.release",
    "shared.worker.engine_process:EngineLoop._report_scheduled",
    "shared.worker.engine_process:EngineLoop._report",
)
PLACES = tuple(
    f"{place} {when}"
    for place in (*GATEWAY_PLACES, *IO_PLACES, *ENGINE_PLACES)
    for when in ("before", "after")
)


@dataclass(frozen=True)
class Failpoint:
    """One place; the first process that comes there dies."""

    place: str
    armed: Path

    async def __call__(self, scene: Scene) -> str:
        """The process that died."""
        names = _names(scene.cell)
        self.armed.touch()
        with suppress(TimeoutError):
            async with asyncio.timeout(REACHED_S):
                while self.armed.exists():
                    if self.place.partition(" ")[0].endswith(".forget"):
                        await leave(scene)
                    await asyncio.sleep(LEAVE_EVERY_S)
        with suppress(FileNotFoundError):
            self.armed.unlink()
            raise NotInjectedError(f"nobody came there in {REACHED_S:g} s")
        (victim,) = self.armed.parent.glob(f"{self.armed.name}.*")
        pid = int(victim.suffix[1:])
        victim.unlink()
        if pid in names:
            scene.cell.exits[names[pid]] += 1
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            await until(f"{pid} gone", lambda: is_gone(process))
        return names.get(pid, "an engine")


def _names(cell: Cell) -> dict[int, str]:
    """Of the processes whose end is the end of a gateway or worker."""
    return {child.pid: child.spec.name for child in cell.children if child.pid is not None}


def make_kinds(folder: Path, places: Sequence[str]) -> list[Kind]:
    (folder / "places").write_text("".join(f"{place}\n" for place in places))
    return [
        Kind(
            place.rpartition(":")[2],
            Failpoint(place, folder / str(number)),
            least_ready=2,
            cuts_gateway=place.startswith("services.gateway."),
        )
        for number, place in enumerate(places)
    ]


def run(folder: Path, places: Sequence[str], turns: int, seed: int) -> Outcome:
    """BatonError if the cell does not start, or no answer is certain in it."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    cell_plan = command.make_cell_plan(parser.parse_args([]))
    kinds = make_kinds(folder, places)
    plan = Plan(turns * len(kinds), seed, kinds, PAUSE_S)
    path = os.pathsep.join(filter(None, (str(FOLDER), os.environ.get("PYTHONPATH"))))
    os.environ.update({"FAILPOINTS": str(folder), "PYTHONPATH": path})
    outcome = asyncio.run(until_stopped(command.run_plan(cell_plan, plan)))
    assert outcome is not None, "stopped by a signal"
    return outcome


def figures(outcome: Outcome, places: Sequence[str], seed: int) -> list[Figure]:
    line = record(outcome, seed)
    sys.stderr.write(render([line]))
    found = list(explain(outcome))
    for text in found:
        say(text)
    reached = {fault.kind for fault in outcome.faults}
    return [
        exactly("places where nobody died", len(places) - len(reached)),
        exactly("what must not be", len(found)),
        at_least("answers that were hit", line["outcomes"].get("hit", 0), len(places) / 4),
    ]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=TURNS, help="how often each place is armed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--places", default="", help="only those with this in their name")
    given = parser.parse_args(arguments)
    places = [place for place in PLACES if given.places in place]
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(Path(folder), places, given.turns, given.seed)
    return judge(figures(outcome, places, given.seed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
