"""`LLM`: one model in this process, asked by function calls."""

import gc
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, Self, cast

import torch

from services.offline.answer import Answer
from services.offline.answer_stream import AnswerStream
from services.offline.generation import Generation
from services.offline.progress import Progress
from services.offline.prompt import Prompt
from services.offline.prompt_reader import BYTES, Conversation, PromptReader, TextOrIds
from services.offline.sampling_params import SamplingParams, one_for_each
from services.offline.setting_errors import by_keyword
from services.offline.step_loop import StepLoop
from shared.engine.build import build_engine
from shared.engine.engine import Engine
from shared.engine.layers.random_weights import RandomWeights
from shared.engine.layers.weights import WeightReader
from shared.errors import RequestError, SettingsError
from shared.fields.readers import invalid
from shared.model.checkpoint import Checkpoint, load_checkpoint
from shared.model.checkpoint import max_model_len as longest
from shared.settings.groups import ComputeSettings, EngineSettings, KVSettings, Settings
from shared.settings.load import load_settings
from shared.settings.setting import settings_in

OF_ENGINE = (ComputeSettings, KVSettings, EngineSettings)
SETTINGS = {"random_weights", "thinking"} | {
    item.name for group in OF_ENGINE for item in settings_in(group)
} - {"kv_secret", "engine_silence_s"}
"""names of the settings that mean something without a server"""

PROFILE = "high_throughput"
"""unless another is asked for: nobody reads along"""

Params = SamplingParams | Sequence[SamplingParams]


class LLM:
    """One engine in this process: no gateway, no Redis, no socket. Use it in a `with`, or `close`
    it.

    Several threads may call it; their prompts share the steps. What is refused is a RequestError
    that names the prompt, before anything is computed. An exception in the middle, Ctrl-C too, ends
    what the call had begun and leaves the rest as it was."""

    def __init__(
        self,
        model: str = "demo",
        *,
        device: str = "auto",
        dtype: str = "auto",
        tp: int = 1,
        max_model_len: int = 0,
        **settings: Any,
    ) -> None:
        """`model`: a checkpoint's directory, a hub id, or demo. `settings`: others of an engine by
        their names, such as threads=4 or kv_memory_mib=2048; variables are not read. SettingsError,
        ModelError or MissingError say why it cannot be."""
        given = {"device": device, "dtype": dtype, "tp": tp, "max_model_len": max_model_len}
        settings = {"profile": PROFILE, **settings}
        with by_keyword():
            chosen = _chosen({"model": model, **given, **settings})
            checkpoint, engine = _built(chosen)
            own_length = longest(checkpoint.config, chosen.compute.max_model_len)
            engine.try_out()  # as a worker does before its first request
            engine.rehearse()
        self._reader = PromptReader(
            checkpoint,
            own_length,
            engine.max_model_len,
            engine.grammars.vocabulary,
            thinking=chosen.model.thinking,
        )
        hash_root = chosen.kv.hashing("").root("")
        block_size, tokenizer = chosen.kv.block_size, self._reader.tokenizer
        num_running = engine.step_size.num_seqs
        self._loop = StepLoop(engine, num_running, tokenizer, block_size, hash_root)
        self.max_model_len = engine.max_model_len
        """tokens of the longest prompt with its answer"""

    def generate(
        self,
        prompts: TextOrIds | Sequence[TextOrIds],
        sampling_params: Params | None = None,
        *,
        progress: bool | None = None,
    ) -> list[Answer]:
        """Completes texts or lists of token ids: one answer for each, in their order. `progress`:
        a line on the error output; None where that is a terminal."""
        given = _several(prompts)
        params = one_for_each(sampling_params, len(given))
        read = [
            self._reader.read(prompt, each, f"prompts[{at}]")
            for at, (prompt, each) in enumerate(zip(given, params, strict=True))
        ]
        return self._run(read, progress)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: Params | None = None,
        *,
        template_kwargs: Mapping[str, Any] | None = None,
        progress: bool | None = None,
    ) -> list[Answer]:
        """Answers one conversation or several, each a list of messages as a chat request has them.
        `template_kwargs`: what else the chat template gets to see, such as enable_thinking."""
        given = _conversations(messages)
        params = one_for_each(sampling_params, len(given))
        read = [
            self._reader.read_chat(conversation, each, name, template_kwargs or {})
            for (name, conversation), each in zip(given.items(), params, strict=True)
        ]
        return self._run(read, progress)

    def stream(
        self, prompt: TextOrIds | Conversation, sampling_params: SamplingParams | None = None
    ) -> AnswerStream:
        """The text of one answer as it comes, to a prompt or to a conversation; n must be 1."""
        params = sampling_params or SamplingParams()
        if params.n != 1:
            raise RequestError("n: a stream has one choice", code="invalid_value", param="n")
        if not isinstance(prompt, Sequence):
            raise invalid("prompt", "a text, a list of token ids, or a list of messages")
        if prompt and not isinstance(prompt, str) and isinstance(prompt[0], Mapping):
            conversation = cast(Conversation, prompt)
            read = self._reader.read_chat(conversation, params, "messages", {})
        else:
            read = self._reader.read(cast(TextOrIds, prompt), params, "prompt")
        return AnswerStream(self._loop, read)

    def close(self) -> None:
        """Gives the memory back; nothing can be asked after it."""
        engine = self._loop.close()
        if engine is None:
            return
        engine.grammars.close()
        del engine
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(self, prompts: Sequence[Prompt], progress: bool | None) -> list[Answer]:
        return Generation(self._loop, prompts, Progress(len(prompts), progress)).run()


def _chosen(given: Mapping[str, Any]) -> Settings:
    """SettingsError names what is no setting of an engine."""
    unknown = sorted(given.keys() - SETTINGS - {"model"})
    if unknown:
        names = ", ".join(sorted(SETTINGS))
        raise SettingsError(f"{unknown[0]}: no setting of an LLM; these are: {names}")
    return load_settings(given, environ={})


def _built(chosen: Settings) -> tuple[Checkpoint, Engine]:
    """The model, and an engine that computes it."""
    drawn = chosen.model.random_weights
    checkpoint = load_checkpoint(chosen.model.name, random_weights=drawn)
    weights = RandomWeights if drawn else WeightReader
    return checkpoint, build_engine(*chosen.of_engine, "decode", checkpoint, weights)


def _several(prompts: TextOrIds | Sequence[TextOrIds]) -> Sequence[TextOrIds]:
    """A text, or a list of token ids, is one prompt. RequestError for what is no list."""
    if not isinstance(prompts, Sequence) or isinstance(prompts, BYTES):
        raise invalid("prompts", "a text, a list of token ids, or a list of these")
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], Integral)):
        return [cast(TextOrIds, prompts)]
    return cast(Sequence[TextOrIds], prompts)


def _conversations(messages: Conversation | Sequence[Conversation]) -> dict[str, Conversation]:
    """What the caller calls each. RequestError for what is none, nor a list of some."""
    if isinstance(messages, (str, *BYTES)) or not isinstance(messages, Sequence):
        raise invalid("messages", 'a list such as [{"role": "user", "content": "hi"}]')
    if messages and isinstance(messages[0], Mapping):
        return {"messages": cast(Conversation, messages)}
    several = cast(Sequence[Conversation], messages)
    return {f"messages[{at}]": conversation for at, conversation in enumerate(several)}
