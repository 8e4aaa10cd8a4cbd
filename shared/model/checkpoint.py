"""A Hugging Face checkpoint as it lies on disk: where it is, which files, what it is.

Needs no torch, so a gateway may use it. Whatever we cannot serve exactly is one ModelError
sentence, never a guess.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import MissingError, ModelError, SettingsError
from shared.kv.layout import KVLayout
from shared.model.config import ModelConfig, parse_config
from shared.model.files import WEIGHTS, WEIGHTS_INDEX
from shared.model.rope import DynamicRope
from shared.model.shape_folder import shape_folder
from shared.model.shapes import SHAPES

DEMO = "demo"
HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
HUB_TEXTS = ["*.json", "*.jinja"]
HUB_FILES = [*HUB_TEXTS, "*.safetensors"]
SAMPLES_PER_FILE = 32
SAMPLE_BYTES = 4096


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
    hold the same model. Empty where only texts were read"""


def load_checkpoint(
    model: str,
    cache_dir: Path | None = None,
    *,
    random_weights: bool = False,
    texts_only: bool = False,
) -> Checkpoint:
    """Resolve `model` and read everything but the weights.

    `random_weights`: `model` is a shape, whose weights every engine draws for itself.
    `texts_only`: nobody looks at the weights, which need not be there; those of a hub id are not
    fetched. `cache_dir` is for what is made here (a shape's text files, a random demo model while
    no trained one exists); default ~/.cache/baton. MissingError without huggingface_hub, ModelError
    for all that is wrong with the checkpoint.
    """
    if random_weights:
        return _shape(model, cache_dir)
    path = resolve_model(model, cache_dir, texts_only=texts_only)
    raw = _read_json(path / "config.json")
    config = parse_config(raw)
    name = model if model == DEMO or not Path(model).is_dir() else path.resolve().name
    identity = "" if texts_only else _identity(path)
    return Checkpoint(path, name, config, _eos_token_ids(path, raw), identity)


def random_checkpoint(path: Path, name: str, raw: Mapping[str, Any]) -> Checkpoint:
    """A checkpoint of a config alone, whose weights are drawn rather than read (see
    shared.engine.layers.random_weights). ModelError for a config that cannot be served."""
    return Checkpoint(path, name, parse_config(raw), (), f"random-{name}")


def config_checkpoint(path: Path, name: str) -> Checkpoint:
    """A directory whose weights nobody has read, or which has none yet. ModelError for a config
    that cannot be served."""
    return random_checkpoint(path, name, _read_json(path / "config.json"))


def resolve_model(model: str, cache_dir: Path | None = None, *, texts_only: bool = False) -> Path:
    """The directory of `model`: a directory, a hub id, or "demo". `texts_only`: the weights of a
    hub id are not fetched."""
    if model == DEMO:
        return _demo_model(cache_dir)
    if not model:
        raise ModelError("no model is named: a directory, a hub id (owner/name) or demo")
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if model in SHAPES:
        raise ModelError(
            f"--model {model} is a shape without weights: add --random-weights, "
            "or name a checkpoint directory"
        )
    if path.exists() or not HUB_ID.fullmatch(model):
        raise ModelError(
            f"model {model!r} is neither a directory nor a hub id (owner/name) here; name a "
            "checkpoint's directory, a hub id, or demo"
        )
    return _download(model, HUB_TEXTS if texts_only else HUB_FILES)


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


def kv_layout(checkpoint: Checkpoint, dtype: str, block_size: int, wanted_len: int = 0) -> KVLayout:
    """What the bytes of a whole KV block of this model mean. `wanted_len` is --max-model-len: with
    a dynamic rope it changes the keys themselves, so it becomes part of the model's identity."""
    config = checkpoint.config
    identity = checkpoint.identity
    if config.rope is not None and isinstance(config.rope.scaling, DynamicRope):
        length = max_model_len(config, wanted_len)
        if length > config.rope.scaling.original_max_position_embeddings:
            identity += f"-rope-{length}"
    return KVLayout(
        model=identity,
        dtype=dtype,
        num_layers=config.num_layers,
        planes=2,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        block_size=block_size,
    )


def max_model_len(config: ModelConfig, wanted: int) -> int:
    """Longest sequence in tokens; `wanted` 0 is the model's own. shared.model.rope says how far a
    scaled rope goes; learned positions end where they end."""
    if wanted > config.longest_len:
        raise SettingsError(f"--max-model-len {wanted} is above the model's {config.longest_len}")
    return wanted or config.default_len


def _shape(name: str, cache_dir: Path | None) -> Checkpoint:
    if name not in SHAPES:
        raise ModelError(
            f"--random-weights: {name!r} is not a shape; shapes are {', '.join(SHAPES)}; "
            "a checkpoint has weights of its own, leave --random-weights out for it"
        )
    try:
        path = shape_folder(name, _cache(cache_dir), _demo_model(cache_dir))
    except OSError as error:
        raise ModelError(f"{name}: its text files cannot be written: {error}") from None
    return random_checkpoint(path, name, SHAPES[name])


def _demo_model(cache_dir: Path | None) -> Path:
    from shared import demo_model  # noqa: PLC0415  (its folder says where the trained one lies)

    trained = Path(demo_model.__path__[0]) / "checkpoint"
    if (trained / WEIGHTS).is_file():
        return trained
    from shared.demo_model.random_model import random_model  # noqa: PLC0415

    return random_model(_cache(cache_dir))


def _cache(given: Path | None) -> Path:
    return given or Path.home() / ".cache" / "baton"


def _download(hub_id: str, patterns: list[str]) -> Path:
    try:
        from huggingface_hub import snapshot_download  # noqa: PLC0415
    except ImportError:
        raise MissingError(
            f"{hub_id}: loading from the hub needs `pip install huggingface_hub`; "
            "or give --model a directory"
        ) from None
    try:
        return Path(snapshot_download(hub_id, allow_patterns=patterns))
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(
            f"{hub_id}: cannot fetch it from the hub: {reason[0]}; if this machine reaches no "
            f"hub, run `hf download {hub_id}` on one that does and give --model the directory, or "
            "copy that machine's HF_HOME"
        ) from error


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
