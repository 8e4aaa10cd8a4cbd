"""`baton bench engine` on a GPU: graphs against an eager engine, and the host gap of its trace."""

import json
from pathlib import Path

import pytest

from services.cli.__main__ import main
from tests.support.models.tiny_model import TINY


def test_a_small_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = {**TINY, "max_position_embeddings": 2048, "head_dim": 64}
    (tmp_path / "config.json").write_text(json.dumps(long))
    flags = ("--random-weights", "--device", "cuda", "--quick", "--cells", "tpot-32,prefill-1k")
    memory = ("--gpu-memory-utilization", "0.3")
    traces = ("--profile", str(tmp_path / "traces"))
    code = main(["bench", "engine", "--model", str(tmp_path), *flags, *memory, *traces])
    captured = capsys.readouterr()
    lines = [json.loads(line) for line in captured.out.splitlines()]
    figures = {line["cell"]: line for line in lines if line["kind"] == "figure"}
    assert set(figures) == {"tpot-32", "prefill-1k", "host-gap-1-p99", "host-gap-1-share"}
    assert figures["host-gap-1-share"]["num_steps"] == 200
    (step,) = [line for line in lines if line["kind"] == "step"]
    assert {"prepare_step_kernel", "paged_decode_kernel"} <= {
        one["kernel"] for one in step["parts"]
    }
    assert "kernels of a step" in captured.err
    equal = [line for line in lines if line["kind"] == "check"]
    assert [line["ok"] for line in equal] == [True]
    # A model this small comes from the cache, which is what the first is for; its steps are the
    # host's time, which anything may disturb.
    failed = {check["check"] for check in figures["tpot-32"]["checks"] if check["ok"] is False}
    timing = "time per token agrees with the median step"
    assert failed - {timing} == {"KV read per step > 4 x L2"}
    assert code == 1
