"""A Hugging Face checkpoint as it lies on disk: where it is, what its config says, what it is.

Reads config.json in the form transformers 4 wrote (`rope_theta`, `rope_scaling`, `torch_dtype`)
and in the form 5 writes (`rope_parameters`, `dtype`). Needs no torch, so a gateway may use it.
Whatever we cannot serve exactly is one ModelError sentence, never a guess.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import MissingError, ModelError, SettingsError
from shared.kv_layout import DTYPE_BYTES, KVLayout

ARCHITECTURES = {
    "LlamaForCausalLM": "shared.engine.models.llama",
    "Qwen3ForCausalLM": "shared.engine.models.qwen3",
}
"""architecture named by config.json -> the module that computes it; a new family is one line
here and one file there"""

DEMO = "demo"
HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]
WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
SAMPLES_PER_FILE = 32
SAMPLE_BYTES = 4096


@dataclass(frozen=True)
class Llama3Rope:
    """Llama 3.1's change to the rotary frequencies (arXiv 2407.21783, and its reference code)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder-only model, in one form whatever wrote the file."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    llama3_rope: Llama3Rope | None
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    max_position_embeddings: int
    dtype: str
    """type the weights were saved for; float32 when the file does not say"""

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True)
class Checkpoint:
    """A directory we can serve."""

    path: Path
    name: str
    """what the user called it: hub id or directory name"""
    config: ModelConfig
    eos_token_ids: tuple[int, ...]
    identity: str
    """hex digest over the config and a sample of the weights; two workers that agree on it
    hold the same model"""


def load_checkpoint(model: str, cache_dir: Path | None = None) -> Checkpoint:
    """Resolve `model` and read everything but the weights.

    `cache_dir` is where a random demo model is kept while no trained one exists; default
    ~/.cache/baton. MissingError without huggingface_hub, ModelError for all that is wrong with
    the checkpoint.
    """
    path = resolve_model(model, cache_dir)
    raw = _read_json(path / "config.json")
    config = parse_config(raw)
    name = model if model == DEMO or not Path(model).is_dir() else path.resolve().name
    return Checkpoint(path, name, config, _eos_token_ids(path, raw), _identity(path))


def resolve_model(model: str, cache_dir: Path | None = None) -> Path:
    """The directory of `model`: a directory, a hub id, or "demo"."""
    if model == DEMO:
        return _demo_model(cache_dir)
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.exists() or not HUB_ID.fullmatch(model):
        raise ModelError(f"model {model!r} is neither a directory nor a hub id (owner/name)")
    return _download(model)


def parse_config(raw: dict[str, Any]) -> ModelConfig:
    """A config.json's content; ModelError if it asks for what no file in models/ computes."""
    architecture = _architecture(raw)
    _refuse_variants(raw)
    rope_theta, llama3_rope = _rope(raw)
    num_heads = _count(raw, "num_attention_heads")
    hidden_size = _count(raw, "hidden_size")
    config = ModelConfig(
        architecture=architecture,
        vocab_size=_count(raw, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_count(raw, "intermediate_size"),
        num_layers=_count(raw, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=_count(raw, "num_key_value_heads", num_heads),
        head_dim=_count(raw, "head_dim", hidden_size // num_heads),
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope_theta=rope_theta,
        llama3_rope=llama3_rope,
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        attention_bias=bool(raw.get("attention_bias", False)),
        mlp_bias=bool(raw.get("mlp_bias", False)),
        max_position_embeddings=_count(raw, "max_position_embeddings", 2048),
        dtype=_saved_dtype(raw),
    )
    if config.num_heads % config.num_kv_heads:
        raise ModelError(
            f"config.json: {config.num_heads} attention heads cannot share "
            f"{config.num_kv_heads} KV heads evenly"
        )
    if config.head_dim % 2:
        raise ModelError(f"config.json: head_dim {config.head_dim} is odd; rotary needs pairs")
    return config


def weight_files(path: Path) -> tuple[Path, ...]:
    """The safetensors files of a checkpoint; ModelError names the first that is missing."""
    index = path / WEIGHTS_INDEX
    if index.is_file():
        weight_map = _read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelError(f"{index}: no weight_map")
        files = tuple(path / name for name in sorted({str(name) for name in weight_map.values()}))
    else:
        files = (path / WEIGHTS,)
    for file in files:
        if not file.is_file():
            raise ModelError(f"{file}: missing (Baton reads safetensors weights only)")
    return files


def resolve_dtype(wanted: str, config: ModelConfig, device_type: str) -> str:
    """The type of weights and KV: as told, or float32 on a CPU and the checkpoint's elsewhere."""
    if wanted != "auto":
        return wanted
    return "float32" if device_type == "cpu" else config.dtype


def kv_layout(checkpoint: Checkpoint, dtype: str, block_size: int) -> KVLayout:
    """What one KV block of this model's bytes means."""
    config = checkpoint.config
    return KVLayout(
        model=checkpoint.identity,
        dtype=dtype,
        num_layers=config.num_layers,
        planes=2,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        block_size=block_size,
    )


def max_model_len(config: ModelConfig, wanted: int) -> int:
    """Longest sequence in tokens; `wanted` 0 is the model's own limit."""
    if wanted > config.max_position_embeddings:
        raise SettingsError(
            f"--max-model-len {wanted} is above the model's {config.max_position_embeddings}"
        )
    return wanted or config.max_position_embeddings


def _demo_model(cache_dir: Path | None) -> Path:
    from shared import demo_model  # noqa: PLC0415  (its folder says where the trained one lies)

    trained = Path(demo_model.__path__[0]) / "checkpoint"
    if (trained / WEIGHTS).is_file():
        return trained
    from shared.demo_model.random_model import random_model  # noqa: PLC0415

    return random_model(cache_dir or Path.home() / ".cache" / "baton")


def _download(hub_id: str) -> Path:
    try:
        from huggingface_hub import snapshot_download  # noqa: PLC0415
    except ImportError:
        raise MissingError(
            f"{hub_id}: loading from the hub needs `pip install huggingface_hub`; "
            "or give --model a directory"
        ) from None
    try:
        return Path(snapshot_download(hub_id, allow_patterns=HUB_FILES))
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"{hub_id}: cannot fetch it from the hub: {reason[0]}") from error


def _architecture(raw: dict[str, Any]) -> str:
    names = raw.get("architectures") or []
    for name in names:
        if name in ARCHITECTURES:
            return str(name)
    found = ", ".join(map(str, names)) or "none"
    raise ModelError(
        f"config.json: architecture {found} is not supported (have {', '.join(ARCHITECTURES)})"
    )


def _refuse_variants(raw: dict[str, Any]) -> None:
    """Fields that change the arithmetic in ways no model file here computes."""
    expected: dict[str, tuple[Any, ...]] = {
        "hidden_act": ("silu",),
        "quantization_config": (None,),
        "use_sliding_window": (False, None),
        "partial_rotary_factor": (1, 1.0, None),
    }
    for name, allowed in expected.items():
        if name in raw and raw[name] not in allowed:
            shown = "given" if isinstance(raw[name], dict) else repr(raw[name])
            raise ModelError(f"config.json: {name} {shown} is not supported")
    layer_types = set(raw.get("layer_types") or ["full_attention"])
    if layer_types != {"full_attention"}:
        raise ModelError(f"config.json: layer types {sorted(layer_types)} are not supported")


def _rope(raw: dict[str, Any]) -> tuple[float, Llama3Rope | None]:
    """Base and scaling from v5's `rope_parameters` or v4's `rope_theta` and `rope_scaling`."""
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = scaling.get("rope_theta", raw.get("rope_theta", 10000.0))
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if scaling.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError("config.json: partial_rotary_factor is not supported")
    if kind == "default":
        return float(theta), None
    if kind != "llama3":
        raise ModelError(f"config.json: rope type {kind!r} is not supported (default, llama3)")
    try:
        return float(theta), Llama3Rope(
            factor=float(scaling["factor"]),
            low_freq_factor=float(scaling["low_freq_factor"]),
            high_freq_factor=float(scaling["high_freq_factor"]),
            original_max_position_embeddings=int(scaling["original_max_position_embeddings"]),
        )
    except KeyError as missing:
        raise ModelError(f"config.json: rope type llama3 needs {missing.args[0]!r}") from None


def _saved_dtype(raw: dict[str, Any]) -> str:
    name = str(raw.get("dtype") or raw.get("torch_dtype") or "float32").removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise ModelError(f"config.json: dtype {name!r} is not supported ({', '.join(DTYPE_BYTES)})")
    return name


def _count(raw: dict[str, Any], name: str, default: int | None = None) -> int:
    value = raw.get(name)
    if value is None:
        value = default
    if type(value) is not int or value < 1:
        raise ModelError(f"config.json: {name} is {value!r}, needs a positive integer")
    return value


def _eos_token_ids(path: Path, raw: dict[str, Any]) -> tuple[int, ...]:
    """End-of-sequence ids: generation_config.json is what the authors generate with."""
    value = None
    if (path / "generation_config.json").is_file():
        value = _read_json(path / "generation_config.json").get("eos_token_id")
    value = raw.get("eos_token_id") if value is None else value
    if value is None:
        return ()
    return tuple(int(item) for item in (value if isinstance(value, list) else [value]))


def _identity(path: Path) -> str:
    """Digest of config.json, of every weights file's size and header, and of samples of its
    content, so that two fine-tunes of one model differ. Reading all of it would take minutes."""
    digest = hashlib.sha256((path / "config.json").read_bytes())
    for file in weight_files(path):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}".encode())
        with file.open("rb") as stream:
            header_bytes = int.from_bytes(stream.read(8), "little")
            if not 2 <= header_bytes <= size - 8:
                raise ModelError(f"{file}: not a complete safetensors file")
            digest.update(stream.read(header_bytes))
            for number in range(SAMPLES_PER_FILE):
                stream.seek(size * number // SAMPLES_PER_FILE)
                digest.update(stream.read(SAMPLE_BYTES))
    return digest.hexdigest()[:32]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path}: missing") from None
    except (ValueError, OSError) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise ModelError(f"{path}: not a JSON object")
    return content
