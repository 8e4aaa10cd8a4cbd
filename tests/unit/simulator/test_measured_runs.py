"""A measured run, held against the simulator.

Guarded against: a prediction that is near whatever was measured, one of other workers than those
that served, refused requests that count as fast ones, and a file that ends in a traceback.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from services.autoscaler.view import Promise, Role
from services.cli.__main__ import main
from services.cli.bench.measure.quantiles import Distribution
from services.simulator.cell import Setup, SimulatedCell
from services.simulator.measured_run import read_measured_run
from services.simulator.policies.static import StaticPolicy
from services.simulator.prediction import Prediction, predict
from services.simulator.report.comparison import compared, verdict
from services.simulator.worker_kind import WorkerKind
from shared.errors import SettingsError
from shared.message_parts.step_costs import StepCosts
from tests.support.cell_views import poisson

NUM_WORKERS: dict[Role, int] = {"prefill": 2, "decode": 1}
PREFILL = WorkerKind(StepCosts(1e-3, 1e-4, 1e-8, 1e-4, 1e-9), 512, 1000, 16)
DECODE = WorkerKind(StepCosts(2e-2, 1e-4, 1e-7, 1e-4, 1e-9), 512, 1000, 16)
ARRIVALS = poisson(9.0, 60.0, num_output=20, until_s=60.0)


def worker(name: str, kind: WorkerKind, role: str) -> dict[str, Any]:
    return {
        "id": name,
        "incarnation": f"{name}.1",
        "role": role,
        "kv": {"total": kind.num_blocks},
        "step_costs": kind.costs._asdict(),
        "idle_room_tokens": 2 * kind.step_tokens,
    }


def recorded(slower: float = 1.0) -> list[dict[str, Any]]:
    """A run of the simulated cell as `bench serve` would have written it, its times multiplied."""
    setup = Setup(NUM_WORKERS, {"prefill": PREFILL, "decode": DECODE}, warm_s=0.0)
    cell = SimulatedCell(setup, ARRIVALS, StaticPolicy(NUM_WORKERS))
    cell.run(60.0, 1000.0)
    workers = [worker(f"p{number}", PREFILL, "prefill") for number in range(2)]
    workers.append(worker("d", DECODE, "decode"))
    status = {"block_size": 16, "workers": workers}
    lines: list[dict[str, Any]] = [
        {"kind": "environment", "endpoint": {"name": None, "status_after": status}}
    ]
    for request in cell.requests:
        arrival = request.arrival
        assert request.computed_s is not None and request.ended_s is not None
        num_later, decoding_s = arrival.num_output_tokens - 1, request.ended_s - request.computed_s
        lines.append(
            {
                "kind": "request",
                "load": "9/s",
                "endpoint": None,
                "error": None,
                "scheduled_ms": 1000 * arrival.at_s,
                "input_tokens": arrival.num_prompt_tokens,
                "cached_tokens": 0,
                "output_tokens": arrival.num_output_tokens,
                "ttft_ms": 1000 * slower * (request.computed_s - arrival.at_s),
                "tpot_ms": 1000 * slower * decoding_s / num_later if num_later else None,
                "e2e_ms": 1000 * slower * (request.ended_s - arrival.at_s),
            }
        )
    return [*lines, {"kind": "summary"}]


def written(folder: Path, lines: list[dict[str, Any]]) -> Path:
    path = folder / "run.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def predicted(folder: Path, lines: list[dict[str, Any]]) -> Prediction:
    return predict(read_measured_run(written(folder, lines)), Promise(0.2, 0.1))


def test_a_run_of_the_simulated_cell_is_predicted_to_the_digit(tmp_path: Path) -> None:
    prediction = predicted(tmp_path, recorded())
    names = {(row.name, row.quantile) for row in prediction.rows}
    assert len(names) == len(prediction.rows) == 9
    assert all(abs(row.off) < 1e-6 for row in prediction.rows)
    (share,) = prediction.shares
    assert share.num_requests == len(ARRIVALS)
    assert 0.1 < share.measured == share.predicted < 0.9
    assert "those in time by 0.0 points: it may be trusted" in verdict(prediction)


def test_figures_are_those_that_the_run_itself_reports(tmp_path: Path) -> None:
    lines = recorded()[:15]
    told_ms = Distribution.of(line["ttft_ms"] for line in lines if "ttft_ms" in line)
    row = predicted(tmp_path, lines).rows[0]
    assert (row.name, row.quantile) == ("time to first token", 0.5)
    assert told_ms.n % 2 == 0, "of an odd number every median is the same"
    assert 1000 * row.measured == pytest.approx(told_ms.at(0.5))


def test_a_slower_cell_than_its_step_times_say_is_not_predicted(tmp_path: Path) -> None:
    prediction = predicted(tmp_path, recorded(slower=1.25))
    assert all(row.off == pytest.approx(-0.2) for row in prediction.rows)
    assert prediction.shares[0].measured < prediction.shares[0].predicted
    assert "off by 20 % at most" in verdict(prediction)
    assert "do not choose a policy by it" in verdict(prediction)


def test_the_workers_that_served_are_simulated(tmp_path: Path) -> None:
    """One prefill worker fewer, and requests wait longer than they did."""
    lines = recorded()
    del lines[0]["endpoint"]["status_after"]["workers"][0]
    rows = predicted(tmp_path, lines).rows
    assert max(row.off for row in rows if row.name == "time to first token") > 1


def test_a_cell_whose_workers_do_both_is_simulated_as_one(tmp_path: Path) -> None:
    """Its decode worker is far too slow for these prompts, and so it is predicted."""
    lines = recorded()
    del lines[0]["endpoint"]["status_after"]["workers"][:2]
    path = written(tmp_path, lines)
    run = read_measured_run(path)
    assert run.num_workers == {"decode": 1}
    prediction = predict(run, Promise(0.2, 0.1))
    assert compared(run, prediction).startswith("workers: 1 aggregated,")
    assert max(row.off for row in prediction.rows if row.name == "time to first token") > 1


def test_what_was_refused_is_counted_apart(tmp_path: Path) -> None:
    lines = recorded()
    for line in lines[1:21]:
        line["error"] = "http_429"
        del line["ttft_ms"], line["tpot_ms"], line["e2e_ms"]
    (share,) = predicted(tmp_path, lines).shares
    assert (share.num_refused, share.num_requests) == (20, len(ARRIVALS) - 20)


def test_too_few_requests_say_nothing(tmp_path: Path) -> None:
    prediction = predicted(tmp_path, recorded()[:9])
    assert "too few requests" in verdict(prediction)


def test_the_command_prints_a_table_or_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, recorded())
    command = ["autoscaler", "simulate", "--measured", str(path), "--slo-ttft-ms", "200"]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert out.startswith("workers: 2 prefill and 1 decode,")
    assert "time to first token, p99" in out and "+0 %" in out and "in time, of" in out
    assert main([*command, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 9


def _without_status(lines: list[dict[str, Any]]) -> None:
    lines[0]["endpoint"]["status_after"] = None


def _without_decode(lines: list[dict[str, Any]]) -> None:
    lines[0]["endpoint"]["status_after"]["workers"].pop()


def _without_costs(lines: list[dict[str, Any]]) -> None:
    for one in lines[0]["endpoint"]["status_after"]["workers"]:
        one["step_costs"] = StepCosts()._asdict()


def _without_requests(lines: list[dict[str, Any]]) -> None:
    del lines[1:]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_without_status, "says nothing of the cell's workers"),
        (_without_decode, "the cell has no decode worker$"),
        (_without_costs, "no prefill worker that knows what its steps take"),
        (_without_requests, "has no requests"),
    ],
)
def test_a_file_that_says_too_little_is_refused(tmp_path: Path, spoil: Any, said: str) -> None:
    lines = recorded()
    spoil(lines)
    with pytest.raises(SettingsError, match=said):
        read_measured_run(written(tmp_path, lines))


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with pytest.raises(SettingsError, match="--measured "):
        read_measured_run(path)
    path.write_text("{}\nnonsense\n")
    with pytest.raises(SettingsError, match="line 2: not a JSON object"):
        read_measured_run(path)
