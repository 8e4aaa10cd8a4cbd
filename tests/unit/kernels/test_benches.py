"""The benchmarks of kernels/ where there is no GPU."""

import importlib
import sys

import pytest
import torch

BENCHES = (
    "attention.bench_decode",
    "attention.bench_prefill",
    "linear.bench",
    "elementwise.bench",
    "sampling.bench",
    "peer.bench",
)


@pytest.mark.parametrize("name", BENCHES)
def test_without_a_gpu_one_line_says_so(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(sys, "argv", [name])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"kernels.{name}").main()
    assert ended.value.code == 3
    needed = 2 if name == "peer.bench" else 1
    said = capsys.readouterr()
    assert (said.out, said.err) == (
        "",
        f"error: this needs {needed} GPU(s), and torch sees 0\n",
    )
