"""`baton bench handover` as it is run: two real cells.

Its goals are not judged here: other work on the machine would decide."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.cli.__main__ import main
from services.cli.cluster.run_file import live_records
from shared.runtime_folder import runtime_folder

pytestmark = pytest.mark.clock

QUICK = ("--device", "cpu", "--threads", "1", "--quick")


@pytest.mark.parametrize(
    ("apart", "transport"), [((), "tcp"), (("--apart",), "auto")], ids=["in turn", "apart"]
)
def test_a_quick_run_measures_every_figure_and_leaves_nothing(
    apart: tuple[str, ...], transport: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, plot = tmp_path / "bench.jsonl", tmp_path / "run.svg"
    flags = ("--transport", transport, "--json", str(path), "--plot", str(plot))
    code = main(["bench", "handover", *QUICK, *apart, *flags])
    lines: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    environment, *figures, timeline = lines
    assert code == int(any(one["invalid"] for one in figures))  # other work on the machine
    assert environment["transport"] == transport
    assert [one["part"] for one in figures].count("added") == 2
    assert all(one["goal"] is None for one in figures), "goals are those of GPUs"
    by_name = {one["name"].strip(): one for one in figures}
    for length in (64, 256):
        assert by_name[f"time added to token 2, {length} tokens, p50"]["n"] == 3
        assert by_name[f"gap 1-2 / median gap, idle, {length} tokens, p50"]["value"] > 0
        for load in ("loaded", "prompt behind it"):
            assert by_name[f"gap 1-2 / median gap, {load}, {length} tokens, p50"]["value"] > 0
    rates = [one for one in figures if one["part"] == "rate"]
    assert all(0.0 < one["value"] < 100.0 for one in rates)
    # 2 layers, keys and values of 2 heads of 64 in fp32, blocks of 16 tokens
    num_mb = 2 * 2 * 2 * 64 * 4 * 256 / 1e6
    assert [one["name"] for one in rates][-1] == f"KV of {num_mb:.3g} MB, p50"
    copies = [one for one in figures if one["part"] == "copy"]
    assert len(copies) == (3 if transport == "auto" else 0)
    assert all(0.0 < one["value"] < 10.0 for one in copies)
    moments = timeline["moments_ms"]
    order = ("prefill begins", "published, as decode read it", "copied", "verified", "adopted")
    times_ms = [moments[name] for name in (*order, "first decode step begins")]
    assert times_ms == sorted(times_ms)
    assert moments["token 1 at the gateway"] < moments["token 2 at the client"]
    assert moments["first decode step begins"] < moments["token 2 at the client"]
    assert plot.read_text().startswith("<svg")
    assert "one hand-over of 256 tokens" in capsys.readouterr().out
    assert live_records(runtime_folder()) == []


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--lengths", "abc"), "--lengths abc"),
        (("--plot", "x.png"), ".svg"),
        (("--json", "no/such/folder/x"), "no folder"),
        (("--model", "nonesuch"), "nonesuch"),
        (("--lengths", "600", "--max-model-len", "512"), "do not fit into the 512"),
        (("--transport", "pigeon"), "--transport"),
        (("--device", "xyz"), "--device: 'xyz' is not auto"),
        (("--requests", "1"), "--requests 1: at least 2"),
        (("--streams", "0"), "--streams 0: at least 1"),
    ],
)
def test_a_bad_flag_starts_nothing(
    flags: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "handover", *QUICK, *flags]) == 2
    assert says in capsys.readouterr().err
