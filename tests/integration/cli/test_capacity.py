"""`baton capacity` as it is typed, and its KV blocks next to those that an engine allocates."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.cli.__main__ import main
from services.cli.capacity.devices import Device
from services.cli.capacity.estimate import Question, estimate
from shared.errors import SettingsError
from shared.model.checkpoint import load_checkpoint
from tests.support.models.built_engine import built_engine
from tests.support.models.tiny_model import TINY, TINY_GPT2, write_checkpoint
from tests.support.settings import settings_with

MODELS = {"llama": TINY, "gpt2": TINY_GPT2}
SETTINGS = [
    (memory_mib, block_size, dtype)
    for memory_mib in (1, 3, 8)
    for block_size, dtype in ((16, "float32"), (5, "float32"), (32, "bfloat16"))
]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("memory_mib", "block_size", "dtype"), SETTINGS)
def test_as_many_blocks_are_predicted_as_a_cpu_engine_allocates(
    name: str, memory_mib: int, block_size: int, dtype: str, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path, MODELS[name])
    settings = settings_with(
        model=str(tmp_path),
        device="cpu",
        dtype=dtype,
        kv_memory_mib=memory_mib,
        block_size=block_size,
    )
    checkpoint = load_checkpoint(str(tmp_path))
    device = Device("host", 2**34, on_gpu=False)
    capacity = estimate(
        Question(checkpoint, device, settings.compute, settings.kv, settings.engine)
    )
    engine = built_engine(settings)
    assert engine.memory.num_blocks == capacity.num_blocks
    assert len(engine.memory.blocks) == capacity.pool_bytes
    assert engine.max_model_len == capacity.longest


def test_a_pool_that_an_engine_refuses_does_not_fit(tmp_path: Path) -> None:
    wide = {**TINY, "head_dim": 512, "num_hidden_layers": 6}
    write_checkpoint(tmp_path, wide)
    settings = settings_with(
        model=str(tmp_path), device="cpu", kv_memory_mib=1, block_size=32, max_num_seqs=1
    )
    checkpoint = load_checkpoint(str(tmp_path))
    device = Device("host", 2**34, on_gpu=False)
    capacity = estimate(
        Question(checkpoint, device, settings.compute, settings.kv, settings.engine)
    )
    assert not capacity.fits
    with pytest.raises(SettingsError, match="--kv-memory-mib leaves room for"):
        built_engine(settings)


def test_a_pool_beyond_the_machine_s_memory_is_refused_before_it_is_made(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY)
    settings = settings_with(model=str(tmp_path), device="cpu", kv_memory_mib=10**9)
    with pytest.raises(SettingsError, match=r"GiB are free; --kv-memory-mib \d+ fits"):
        built_engine(settings)


def asked(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, dict[str, Any]]:
    code = main(["capacity", *flags, "--json", "-"])
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, content


@pytest.mark.parametrize(
    "flags",
    [
        ["--model=llama-3.1-8b", "--gpu=L4", "--context=131072"],
        ["--model=llama-3.1-8b", "--gpu-memory=24GB", "--dtype=float32", "--context=32768"],
        ["--model=llama-3.1-70b-40-layers", "--gpu=A100-40"],
        ["--model=tiny", "--device=cpu", "--context=40000", "--kv-memory-mib=4"],
        ["--model=demo", "--device=cpu", "--kv-blocks=1"],
        ["--model=demo", "--device=cpu", "--kv-blocks=99999999"],
        ["--model=demo", "--device=cpu", "--kv-memory-mib=99999999", "--tp=2"],
        ["--model=llama-3.1-8b", "--gpu=H100", "--kv-blocks=99999999"],
    ],
)
def test_what_does_not_fit_fits_when_its_advice_is_typed(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, refused = asked(capsys, *flags)
    assert (code, refused["fits"]) == (1, False)
    assert refused["advice"]
    for way in refused["advice"]:
        words = [word for flag in way for word in flag.split()]
        code, followed = asked(capsys, *flags, *words)
        assert (code, followed["fits"]) == (0, True)


def test_it_prints_60_columns_of_what_the_json_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    found = tmp_path / "found.json"
    flags = ["--model=llama-3.1-8b", "--gpu=H100", "--prompt=3000", "--json", str(found)]
    assert main(["capacity", *flags, "--price=2.5", "--tokens-per-s=3000"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 60
    content = json.loads(found.read_text())
    assert content["kv_token_bytes"] == 128 * 2**10
    assert [row["tokens"] for row in content["rows"]] == [1024, 3000, 4096, 8192, 32768, 131072]
    for text in (f"{content['num_blocks']:,}", "128 KiB", "0.231 USD", "upper estimate", "mapped"):
        assert text in shown
    assert shown.endswith("it fits: one worker on a GPU\n")
    money = ("--price=2.5", "--tokens-per-s=3000")
    assert main(["capacity", "--model=llama-3.1-8b", "--gpu=L4", "--dtype=float32", *money]) == 1
    refused = capsys.readouterr().out
    assert "USD" not in refused, "of what nobody can run"
    assert max(map(len, refused.splitlines())) <= 60
    assert "it fits with" in refused
    assert "--tp" in refused


def test_ranks_on_a_cpu_have_their_share_of_its_memory(capsys: pytest.CaptureFixture[str]) -> None:
    alone, split = (asked(capsys, "--device=cpu", f"--tp={tp}")[1] for tp in (1, 2))
    assert split["device"]["total_bytes"] == alone["device"]["total_bytes"] // 2
    assert split["fits"] and split["weights_bytes"] < alone["weights_bytes"]
    assert main(["capacity", "--device=cpu", "--tp=2"]) == 0
    assert "memory of each of 2 ranks: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--gpu=V100"], "--gpu-memory 80GiB"),
        (["--gpu-memory=lots"], "such as 80GiB"),
        (["--gpu-memory=0GiB"], "less than 1GiB"),
        (["--gpu-memory=24"], "less than 1GiB"),
        (["--gpu=H100", "--gpu-memory=80GiB"], "not allowed with"),
        (["--gpu=H100", "--context=5000"], "--context 5000 is above the model's 4096"),
        (["--gpu=H100", "--prompt=5000"], "--prompt 5000 is above the model's 4096"),
        (["--gpu=H100", "--price=2"], "baton bench serve"),
        (["--gpu=H100", "--context=0"], "no number of tokens"),
        (["--gpu=H100", "--model=llama-9"], "neither a directory nor a hub id"),
        (["--gpu=H100", "--model=llama-9"], "shapes are llama-3.1-8b"),
        (["--gpu=H100", "--json=/nowhere/x.json"], "there is no folder"),
    ],
)
def test_a_bad_flag_is_one_line_that_helps(
    flags: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["capacity", *flags]) == 2
    assert told in capsys.readouterr().err
