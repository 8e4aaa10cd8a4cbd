"""Reading config.json in both forms, resolving a model, and one clear sentence for the rest."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shared.checkpoint import (
    Checkpoint,
    Llama3Rope,
    kv_layout,
    load_checkpoint,
    max_model_len,
    parse_config,
    resolve_dtype,
    resolve_model,
    weight_files,
)
from shared.errors import MissingError, ModelError, SettingsError
from tests.tiny_model import TINY, write_checkpoint

ROPE = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def _raw(**changes: Any) -> dict[str, Any]:
    return {**TINY, **changes}


def test_old_and_new_forms_are_one_config() -> None:
    shared = {name: value for name, value in TINY.items() if name != "rope_theta"}
    old = shared | {
        "rope_theta": 5e5,
        "rope_scaling": {"type": "llama3", **ROPE},
        "torch_dtype": "bfloat16",
    }
    new = shared | {
        "rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **ROPE},
        "dtype": "bfloat16",
    }
    assert parse_config(old) == parse_config(new)
    assert parse_config(new).rope_theta == 5e5
    assert parse_config(new).llama3_rope == Llama3Rope(8.0, 1.0, 4.0, 8192)
    assert parse_config(new).dtype == "bfloat16"


def test_absent_fields_take_llamas_defaults() -> None:
    bare = _raw(num_attention_heads=4)
    for name in ("num_key_value_heads", "head_dim", "rope_theta", "rms_norm_eps"):
        bare.pop(name)
    config = parse_config(bare)
    assert (config.num_kv_heads, config.head_dim) == (4, 24)
    assert (config.rope_theta, config.rms_norm_eps) == (10000.0, 1e-6)
    assert (config.dtype, config.llama3_rope, config.group_size) == ("float32", None, 1)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "architecture GPT2LMHeadModel is not supported"),
        ({"architectures": None}, "architecture none is not supported"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2}}, "rope type 'yarn'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2}}, "needs 'low_freq_factor'"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config given"),
        ({"use_sliding_window": True}, "use_sliding_window True"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer types"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"num_key_value_heads": 4}, "cannot share"),
        ({"hidden_size": "96"}, "hidden_size is '96'"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
    ],
)
def test_what_we_do_not_compute_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence) as refusal:
        parse_config(_raw(**changes))
    assert "\n" not in str(refusal.value)


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
        with pytest.raises(ModelError, match="neither a directory nor a hub id"):
            resolve_model(name)


def test_a_hub_id_without_the_hub_package_names_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingError, match="pip install huggingface_hub"):
        resolve_model("owner/name")


def test_length_and_dtype_follow_the_settings(tmp_path: Path) -> None:
    config = parse_config(_raw(dtype="bfloat16"))
    assert (max_model_len(config, 0), max_model_len(config, 100)) == (512, 100)
    with pytest.raises(SettingsError, match="max-model-len 513"):
        max_model_len(config, 513)
    assert resolve_dtype("auto", config, "cpu") == "float32"
    assert resolve_dtype("auto", config, "cuda") == "bfloat16"
    assert resolve_dtype("float16", config, "cpu") == "float16"


def test_reading_a_checkpoint_imports_no_torch(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY)
    program = (
        "import sys; from shared.checkpoint import load_checkpoint; "
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
