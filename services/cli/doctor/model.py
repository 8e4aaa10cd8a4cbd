"""Whether the model is there, is of a family that is served, fits, and its text files load."""

import importlib
from dataclasses import dataclass
from pathlib import Path

from services.cli.byte_size import shown
from services.cli.doctor.finding import Finding, failed, ok, warn
from services.cli.doctor.model_size import Memory, judge_memory
from shared.engine.loading.host_room import RankNeed, need_of
from shared.errors import BatonError
from shared.model.checkpoint import (
    DEMO,
    Checkpoint,
    config_checkpoint,
    load_checkpoint,
    max_model_len,
    resolve_model,
    weight_files,
)
from shared.settings.groups import ModelSettings, Settings

FAMILIES = "serve one of a family that is (shared/README.md#models has them)"
WHOLE = "fetch the whole checkpoint again: `hf download ID`, or copy the folder"


@dataclass(frozen=True)
class ModelFacts:
    checkpoint: Checkpoint
    is_here: bool
    """its weights are on this disk, or are drawn"""


def check_model(
    settings: Settings, device_type: str, memory: Memory | None, *, for_gateway: bool = True
) -> list[Finding]:
    """Fetches no weights: of a hub id that is not here only the files of its text. `memory`: of
    the device; None where nobody knows. `for_gateway`: whether one shall read its texts here."""
    model = settings.model
    try:
        facts = gather_model(model)
        length = max_model_len(facts.checkpoint.config, settings.compute.max_model_len)
        need = need_of(facts.checkpoint, settings.compute, settings.kv.block_size, device_type)
    except BatonError as error:
        return [failed("model", error, FAMILIES)]
    found = [judge_model(facts, need, length)]
    if memory is not None:
        found.append(judge_memory(need, memory, settings.kv))
    if for_gateway:
        found.append(check_text(facts.checkpoint, settings))
    return found


def gather_model(model: ModelSettings) -> ModelFacts:
    """ModelError or MissingError for one that cannot be found, read or served."""
    if model.random_weights:
        return ModelFacts(load_checkpoint(model.name, random_weights=True), is_here=True)
    path = resolve_model(model.name, texts_only=True)
    of_hub = model.name != DEMO and not Path(model.name).expanduser().is_dir()
    if of_hub and not _is_whole(path):
        return ModelFacts(config_checkpoint(path, model.name), is_here=False)
    return ModelFacts(load_checkpoint(str(path)), is_here=True)


def judge_model(facts: ModelFacts, need: RankNeed, length: int) -> Finding:
    weights = shown(need.weights_bytes)
    seen = f"{facts.checkpoint.config.architecture}, {weights} of weights, {length:,} tokens"
    if not facts.is_here:
        return ok("model", f"{seen}; on the hub, and fetched when a process first starts")
    return ok("model", seen)


def check_text(checkpoint: Checkpoint, settings: Settings) -> Finding:
    """Loads tokenizer and chat template as a gateway does."""
    try:
        reader = importlib.import_module("services.gateway.prompt.prompt_reader").PromptReader
        served = importlib.import_module("services.gateway.prompt.served_model").served_model(
            checkpoint, settings.model, settings.compute.max_model_len, "ignore"
        )
        loaded = reader.load(checkpoint.path, served, settings.kv.block_size)
    except ModuleNotFoundError as error:
        missing = f"not looked at: {error.name} is not installed"
        return warn("tokenizer", missing, "`pip install '.[gateway]'`, where a gateway shall run")
    except BatonError as error:
        return failed("tokenizer", error, WHOLE)
    if not loaded.can_chat:
        seen = "loads; there is no chat template, so /v1/chat/completions answers 400"
        return warn("tokenizer", seen, "add chat_template.jinja, or use /v1/completions")
    return ok("tokenizer", "it and the chat template load")


def _is_whole(path: Path) -> bool:
    try:
        weight_files(path)
    except BatonError:
        return False
    return True
