"""`baton bench engine` and `baton bench kernels` as a user runs them, on a CPU with small cells.

How fast anything is is not judged here: other work on the machine would decide.
"""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from services.cli.__main__ import main
from services.cli.bench.engine import checks, placed_model
from services.cli.bench.engine.steps import step_prediction
from services.cli.bench.engine.workload import RandomPrompts, Request, Workload
from services.cli.bench.kernels import runs
from services.cli.bench.kernels.runs import bench_lines
from shared.engine.running.step_clock import StepClock
from shared.errors import BatonError
from tests.rules.sources import ROOT
from tests.support.models.tiny_model import TINY, write_checkpoint

ENGINE = ("bench", "engine", "--device", "cpu")
STUB = """
import json, os
from pathlib import Path

__version__ = "0.0.stub"


class SamplingParams:
    def __init__(self, temperature, max_tokens, ignore_eos, detokenize):
        assert ignore_eos and not detokenize
        self.max_tokens = max_tokens


class _Output:
    def __init__(self, token_ids):
        self.outputs = [self]
        self.token_ids = token_ids


class LLM:
    def __init__(self, model, **options):
        config = json.loads((Path(model) / "config.json").read_text())
        self.vocab_size = config["vocab_size"]
        Path(os.environ["STUB_OPTIONS"]).write_text(json.dumps(options))

    def generate(self, prompts, sampling, use_tqdm):
        assert not use_tqdm
        return [
            _Output([(ids["prompt_token_ids"][0] + step) % self.vocab_size
                     for step in range(one.max_tokens)])
            for ids, one in zip(prompts, sampling, strict=True)
        ]
"""


@pytest.fixture(autouse=True)
def any_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "PHASES_AGREE", 1e-6)


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    write_checkpoint(tmp_path / "tiny", TINY)
    return str(tmp_path / "tiny")


def lines_of(text: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in text.splitlines()]
    assert lines[0]["kind"] == "environment"
    return lines[1:]


def test_a_demo_run_prints_every_kind_of_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ENGINE, "--model", "demo"]) == 0
    captured = capsys.readouterr()
    step, *figures, one_check, other_check = lines_of(captured.out)
    assert (step["cell"], step["unit"]) == ("worker-step-256", "us")
    assert step["value"] > 0
    assert [line["cell"] for line in figures] == [
        "tpot-1",
        "tpot-4",
        "prefill-64",
        "prefill-128",
        "offline",
        "offline-mixed",
    ]
    for line in figures:
        assert line["value"] > 0
        assert line["floor"] > 0
        assert line["ratio"] > 0
        assert all(check["ok"] is not False for check in line["checks"])
        assert [check["ok"] for check in line["checks"]].count(True) >= 4
    assert [one_check["cell"], other_check["cell"]] == ["tpot-1", "tpot-4"]
    assert one_check["ok"]
    assert other_check["ok"]
    assert "[2/9] loading demo; about" in captured.err
    assert "s left" in captured.err
    table = [line for line in captured.err.splitlines() if line.startswith("offline-mixed")]
    assert len(table) == 2  # its row, and what it is


def test_an_engine_predicts_its_own_steps(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ENGINE, "--model", tiny, "--cells", "step-time,tpot-1", "--quick"]) == 0
    line, decode, check = lines_of(capsys.readouterr().out)
    assert (line["cell"], line["unit"], line["rival"]) == ("step-time", "%", 10.0)
    assert line["value"] > 0
    assert line["step_us"] > 0
    assert min(line[name] for name in ("row_us", "context_token_us", "chunk_token_us")) >= 0
    assert line["num_decode_steps"] > 0
    assert line["num_mixed_steps"] > 0
    assert (decode["cell"], check["ok"]) == ("tpot-1", True), "its sequences are gone"


def test_an_engine_whose_steps_cannot_be_timed_is_no_figure(
    tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(StepClock, "note", lambda *_: None)
    monkeypatch.setattr(step_prediction, "MAX_STEPS_PER_ERROR", 1)
    assert main([*ENGINE, "--model", tiny, "--cells", "step-time", "--quick"]) == 1
    assert "of 256 steps only 0 could be timed" in capsys.readouterr().err


def test_random_weights_need_no_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "shape"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(dict(TINY)))
    code = main(
        [*ENGINE, "--model", str(folder), "--random-weights", "--cells", "prefill-64", "--quick"]
    )
    (figure,) = lines_of(capsys.readouterr().out)
    assert (code, figure["model"], figure["num_rounds"]) == (0, "shape", 1)


def test_two_ranks(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--random-weights", "--tp", "2", "--cells", "tpot-4")
    assert main([*ENGINE, "--model", tiny, *flags]) == 0
    figure, check = lines_of(capsys.readouterr().out)
    assert figure["cell"] == "tpot-4"
    assert check["ok"]


def test_profile_writes_traces_beside_scrapes(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "traces"
    flags = ("--cells", "tpot-1", "--profile", str(folder), "--scrape-hz", "50")
    assert main([*ENGINE, "--model", tiny, *flags]) == 0
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["host-gap-1.json.gz", "host-gap-4-scraped.json.gz"]
    with gzip.open(folder / names[0], "rt") as file:
        assert json.load(file)["traceEvents"]
    assert "host-gap-1: a trace of 8 steps" in capsys.readouterr().err


def test_prompts_that_repeat_fail_the_run(
    tiny: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The detector's proof: one prompt, again and again, with the prefix cache on."""

    def same(self: RandomPrompts, num: int, num_prompt: int, num_output: int) -> Workload:
        return Workload((Request(tuple(range(num_prompt)), num_output),) * num)

    monkeypatch.setattr(RandomPrompts, "equal", same)
    flags = ("--cells", "tpot-4", "--prefix-cache")
    assert main([*ENGINE, "--model", tiny, *flags]) == 1
    captured = capsys.readouterr()
    failed = [check["check"] for check in lines_of(captured.out)[0]["checks"] if not check["ok"]]
    assert {"random prompts", "prefix hits 0"} <= set(failed)
    assert "tpot-4: CHECK FAILED: prefix hits 0" in captured.err
    assert "baton: error: tpot-4: random prompts" in captured.err


def run_uninstalled(code: str, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """In a child interpreter, from the root of the checkout."""
    return subprocess.run(  # noqa: S603
        [sys.executable, "-c", code, *flags],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_it_runs_where_web_packages_are_missing(tiny: str) -> None:
    code = (
        "from tests.rules.blocked_imports import block; block()\n"
        "import sys; from services.cli.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    result = run_uninstalled(code, *ENGINE, "--model", tiny, "--cells", "prefill-64", "--quick")
    assert result.returncode == 0, result.stderr
    (figure,) = lines_of(result.stdout)
    assert figure["cell"] == "prefill-64"


def test_the_same_workload_by_vllm(tiny: str, tmp_path: Path) -> None:
    (tmp_path / "vllm.py").write_text(STUB)
    options = tmp_path / "options.json"
    code = "import sys; from services.cli.__main__ import main; sys.exit(main(sys.argv[1:]))"
    flags = ("--engine", "vllm", "--model", tiny, "--random-weights", "--quick")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    result = run_uninstalled(code, *ENGINE, *flags, PYTHONPATH=path, STUB_OPTIONS=str(options))
    assert result.returncode == 0, result.stderr
    figures = lines_of(result.stdout)
    assert [line["cell"] for line in figures][:2] == ["tpot-1", "tpot-4"]
    assert {line["engine"] for line in figures} == {"vllm 0.0.stub"}
    given = json.loads(options.read_text())
    assert given["load_format"] == "dummy"
    assert given["enable_prefix_caching"] is False
    assert given["max_num_seqs"] == 4


@pytest.mark.parametrize(
    ("flags", "code", "text"),
    [
        (("--engine", "vllm"), 3, "--engine vllm needs an installed vLLM"),
        (("--model", "llama-3.1-8b"), 2, "add --random-weights"),
        (("--cells", "tpot-7"), 2, "--cells tpot-7: no such cell; there are tpot-1, tpot-4"),
        (("--model", "nowhere", "--random-weights"), 2, "shapes are llama-3.1-8b"),
        (("--scrape-hz", "3"), 2, "--scrape-hz belongs to --profile"),
        (("--engine", "vllm", "--profile", "x"), 2, "--profile traces Baton's engine only"),
        (("--tp", "0"), 2, "--tp and --block-size: at least 1"),
    ],
)
def test_what_cannot_be_is_one_line(
    flags: tuple[str, ...], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ENGINE, *flags]) == code
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("baton: error: ")
    assert text in last


def test_a_model_too_large_for_a_cpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placed_model, "CPU_FACTOR", 1e6)
    assert main([*ENGINE, "--model", "llama-3.1-8b", "--random-weights"]) == 3
    assert "it needs a GPU" in capsys.readouterr().err


def test_kernels_need_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "kernels"]) == 3
    assert "kernels are timed on a GPU" in capsys.readouterr().err
    assert main(["bench", "kernels", "--only", "nothing"]) == 2


def test_kernels_print_lines_and_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = {"kernel": "linear", "rows": 32, "us": 20.0, "cublas_us": 25.0}
    (tmp_path / "stub_bench.py").write_text(f"print('note')\nprint('''{json.dumps(line)}''')\n")
    (tmp_path / "broken_bench.py").write_text("raise ArithmeticError('relative error 1.0')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(runs.BENCHES, "linear", "stub_bench")
    monkeypatch.setattr("services.cli.bench.kernels.command.check_device", lambda: None)
    assert main(["bench", "kernels", "--only", "linear"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"bench": "linear", **line}
    assert captured.err.splitlines()[-1].split() == [
        "linear",
        "rows",
        "32",
        "20",
        "us",
        "25",
        "1.25x",
    ]
    with pytest.raises(BatonError, match="broken_bench failed: ArithmeticError"):
        list(bench_lines("broken_bench"))
