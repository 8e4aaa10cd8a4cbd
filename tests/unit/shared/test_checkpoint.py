"""Resolving a model, its identity, files and lengths, and one clear sentence for the rest."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shared.errors import MissingError, ModelError, SettingsError
from shared.model.checkpoint import (
    Checkpoint,
    kv_layout,
    load_checkpoint,
    max_model_len,
    resolve_dtype,
    resolve_model,
    weight_files,
)
from shared.model.config import parse_config
from tests.support.models.tiny_model import TINY, TINY_GPT2, write_checkpoint


def _raw(**changes: Any) -> dict[str, Any]:
    return {**TINY, **changes}


def test_identity_tells_fine_tunes_apart_and_layouts_follow(tmp_path: Path) -> None:
    one = write_checkpoint(tmp_path / "one", TINY, seed=0)
    copy = Path(shutil.copytree(tmp_path / "one", tmp_path / "copy"))
    other = write_checkpoint(tmp_path / "other", TINY, seed=1)
    assert load_checkpoint(str(copy)).identity == one.identity
    assert other.identity != one.identity
    layouts = [kv_layout(item, "float32", 16) for item in (one, other)]
    assert layouts[0].fingerprint() != layouts[1].fingerprint()
    assert layouts[0].block_bytes == 2 * 2 * 2 * 16 * 16 * 4
    assert one.name == "one"


def test_end_ids_come_from_generation_config_first(tmp_path: Path) -> None:
    assert write_checkpoint(tmp_path, TINY).eos_token_ids == (1,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 5]}))
    assert load_checkpoint(str(tmp_path)).eos_token_ids == (3, 5)


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY)
    (tmp_path / "model.safetensors").write_bytes(bytes(4))
    with pytest.raises(ModelError, match=r"model\.safetensors: not a complete"):
        load_checkpoint(str(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model\.safetensors: missing"):
        load_checkpoint(str(tmp_path))
    index = {"weight_map": {"a": "first.safetensors", "b": "second.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "first.safetensors").touch()
    with pytest.raises(ModelError, match=r"second\.safetensors: missing"):
        weight_files(tmp_path)
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(ModelError, match=r"config\.json: cannot be read"):
        load_checkpoint(str(tmp_path))
    (tmp_path / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json: missing"):
        load_checkpoint(str(tmp_path))


def test_a_name_that_is_nothing_is_refused(tmp_path: Path) -> None:
    for name in ("no-such-model", str(tmp_path / "absent"), "a/b/c"):
        with pytest.raises(ModelError, match=r"neither a directory nor a hub id.* name a check"):
            resolve_model(name)


def test_a_hub_id_without_the_hub_package_names_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingError, match="pip install huggingface_hub"):
        resolve_model("owner/name")


def test_texts_are_read_without_weights_and_of_the_hub_nothing_else_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway needs no weights."""
    whole = write_checkpoint(tmp_path / "whole", TINY)
    (tmp_path / "whole/model.safetensors").unlink()
    texts = load_checkpoint(str(tmp_path / "whole"), texts_only=True)
    assert (texts.config, texts.eos_token_ids) == (whole.config, whole.eos_token_ids)
    assert texts.identity == ""
    fetched: list[str] = []

    def fetch(_: str, allow_patterns: list[str]) -> str:
        fetched.extend(allow_patterns)
        return str(tmp_path / "whole")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert load_checkpoint("owner/name", texts_only=True).name == "owner/name"
    assert fetched == ["*.json", "*.jinja"]


def test_a_hub_that_is_out_of_reach_names_the_cures(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(*_: object, **__: object) -> str:
        raise OSError("connection refused\nand more")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    says = "refused; if .* `hf download owner/name` .* --model the directory, or .* HF_HOME"
    with pytest.raises(ModelError, match=says):
        resolve_model("owner/name")


def test_length_and_dtype_follow_the_settings(tmp_path: Path) -> None:
    config = parse_config(_raw(dtype="bfloat16"))
    assert (max_model_len(config, 0), max_model_len(config, 100)) == (512, 100)
    with pytest.raises(SettingsError, match="max-model-len 513"):
        max_model_len(config, 513)
    assert resolve_dtype("auto", config, "cpu") == "float32"
    assert resolve_dtype("auto", config, "cuda") == "bfloat16"
    assert resolve_dtype("float16", config, "cpu") == "float16"


def test_a_stretched_rope_may_be_asked_for_more_and_gpt2_may_not() -> None:
    linear = parse_config(_raw(rope_scaling={"type": "linear", "factor": 4.0}))
    assert (max_model_len(linear, 0), max_model_len(linear, 2048)) == (512, 2048)
    with pytest.raises(SettingsError, match="max-model-len 2049 is above the model's 2048"):
        max_model_len(linear, 2049)
    yarn = parse_config(_raw(rope_scaling={"type": "yarn", "factor": 4.0}))
    assert (max_model_len(yarn, 0), max_model_len(yarn, 100)) == (2048, 100)
    with pytest.raises(SettingsError, match="max-model-len 513 is above the model's 512"):
        max_model_len(parse_config(TINY_GPT2), 513)


def test_a_dynamic_ropes_length_is_part_of_what_a_block_means(tmp_path: Path) -> None:
    dynamic = {**TINY, "rope_scaling": {"type": "dynamic", "factor": 4.0}}
    stretched = write_checkpoint(tmp_path / "dynamic", dynamic)
    plain = write_checkpoint(tmp_path / "plain", TINY)
    lengths = (0, 100, 512, 1024, 2048)
    names = [kv_layout(stretched, "float32", 16, length).model for length in lengths]
    assert names[0] == names[1] == names[2] == stretched.identity
    assert len(set(names)) == 3
    assert kv_layout(plain, "float32", 16, 100).model == plain.identity


def test_reading_a_checkpoint_imports_no_torch(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY)
    program = (
        "import sys; from shared.model.checkpoint import load_checkpoint; "
        f"load_checkpoint({str(tmp_path)!r}); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0  # noqa: S603


def test_the_random_demo_model_is_made_once_and_is_complete(tmp_path: Path) -> None:
    from shared.demo_model.random_model import random_model  # noqa: PLC0415

    path = random_model(tmp_path)
    before = (path / "model.safetensors").stat().st_mtime_ns
    assert random_model(tmp_path) == path
    assert (path / "model.safetensors").stat().st_mtime_ns == before
    assert sorted(item.name for item in tmp_path.iterdir()) == [path.name]
    checkpoint: Checkpoint = load_checkpoint(str(path))
    assert checkpoint.eos_token_ids == (checkpoint.config.vocab_size - 1,)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert json.loads((path / name).read_text(encoding="utf-8"))
