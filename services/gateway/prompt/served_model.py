"""What the gateway knows of the model it serves: facts only, no weights."""

from dataclasses import dataclass

from shared.model.checkpoint import Checkpoint, max_model_len
from shared.settings.groups import ModelSettings


@dataclass(frozen=True)
class ServedModel:
    """The one model behind this gateway."""

    name: str
    """what clients call it"""
    max_model_len: int
    """longest sequence, prompt and answer, in tokens"""
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    root: str = ""
    """the model's own name, where clients call it by another"""
    created_s: int = 0
    """Unix time that /v1/models shows"""
    tool_parser: str = "auto"
    reasoning_parser: str = "auto"
    thinking: str = "auto"
    unknown_fields: str = "ignore"
    """the settings of these names"""


def served_model(
    checkpoint: Checkpoint,
    model: ModelSettings,
    max_len: int,
    unknown_fields: str,
    created_s: int = 0,
) -> ServedModel:
    """`max_len`: --max-model-len."""
    return ServedModel(
        name=model.served_name or checkpoint.name,
        max_model_len=max_model_len(checkpoint.config, max_len),
        vocab_size=checkpoint.config.vocab_size,
        eos_token_ids=checkpoint.eos_token_ids,
        root=checkpoint.name,
        created_s=created_s,
        tool_parser=model.tool_parser,
        reasoning_parser=model.reasoning_parser,
        thinking=model.thinking,
        unknown_fields=unknown_fields,
    )
