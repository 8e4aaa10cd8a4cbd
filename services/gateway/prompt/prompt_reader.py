"""From the bytes of a request body to prompt ids: all text work on the way in.

Pure and without I/O; `TextPool` runs it in a thread or, for large bodies, in another process.
"""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from services.gateway.fields.json_body import load_object
from services.gateway.fields.readers import flag, invalid, text, token_ids, unsupported
from services.gateway.owner.generation import Endpoint
from services.gateway.parts.parser import PLAIN, AnswerForm
from services.gateway.prompt.answer_syntax import AnswerSyntax
from services.gateway.prompt.chat_prompt import ChatPrompt, RenderedChat
from services.gateway.prompt.chat_template import ChatTemplate
from services.gateway.prompt.messages import Message, read_messages
from services.gateway.prompt.request_fields import (
    ParsedRequest,
    check_model,
    parse_request,
    prompt_names,
)
from services.gateway.prompt.served_model import ServedModel
from services.gateway.prompt.tools import ToolUse, read_tools
from services.gateway.text.tokenizer import TextTokenizer
from shared.block_hash import chain_hashes
from shared.errors import RequestError
from shared.protocol import Sampling


@dataclass(frozen=True)
class PreparedPrompt:
    """One of a request's prompts."""

    token_ids: tuple[int, ...]
    block_hashes: tuple[bytes, ...]
    max_tokens: int


@dataclass(frozen=True)
class PreparedRequest:
    """One generation request as far as text goes: what to compute, how to show it."""

    endpoint: Endpoint
    stream: bool
    include_usage: bool
    continuous_usage: bool
    stop: tuple[str, ...]
    sampling: Sampling
    """of the first prompt's first choice"""
    prompts: tuple[PreparedPrompt, ...]
    num_choices: int
    """of each prompt"""
    grammar_param: str = "response_format"
    """the field that the sampling's grammar comes from"""
    form: AnswerForm = PLAIN
    """what the answers' texts are split into"""


@dataclass(frozen=True)
class TokenList:
    """Answer of /tokenize."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class PlainText:
    """Answer of /detokenize."""

    text: str


class PromptReader:
    """Reads request bodies for one model."""

    def __init__(
        self,
        model: ServedModel,
        tokenizer: TextTokenizer,
        template: ChatTemplate | None,
        *,
        hash_root: bytes,
        block_size: int,
    ) -> None:
        self._model = model
        self._own_len = model.max_model_len
        self._tokenizer = tokenizer
        self._chat = None if template is None else ChatPrompt(template, tokenizer)
        self._syntax = None if template is None else _syntax(template, tokenizer, model)
        self._hash_root = hash_root
        self._block_size = block_size

    @classmethod
    def load(
        cls, directory: Path, model: ServedModel, hash_root: bytes, block_size: int
    ) -> "PromptReader":
        """From a checkpoint directory; ModelError if its text files are unusable."""
        return cls(
            model,
            TextTokenizer.load(directory),
            ChatTemplate.load(directory),
            hash_root=hash_root,
            block_size=block_size,
        )

    def limited(self, max_model_len: int) -> "PromptReader":
        """The same, for workers that hold no longer sequences than this."""
        if max_model_len >= self._model.max_model_len:
            return self
        reader = copy(self)
        reader._model = replace(self._model, max_model_len=max_model_len)
        return reader

    @property
    def tokenizer(self) -> TextTokenizer:
        return self._tokenizer

    @property
    def can_chat(self) -> bool:
        """Whether the model has a chat template."""
        return self._chat is not None

    def prepare(self, endpoint: Endpoint, body: bytes) -> PreparedRequest:
        """Parse, template, tokenize, check against the model, hash. RequestError otherwise."""
        parsed = parse_request(load_object(body), endpoint)
        check_model(parsed.model, self._model.name)
        form, grammar = PLAIN, parsed.grammar
        if endpoint == "chat":
            chat = self._render(parsed.messages, parsed.tool_use)
            self._check_fits(chat.text, "messages")
            prompts = [self._prepared(parsed, self._chat_prompt.encode(chat), "messages")]
            assert self._syntax is not None
            form = self._syntax.form(chat.text, parsed.tool_use)
            grammar = self._syntax.grammar(parsed.tool_use, form.reasoning, grammar)
        else:
            names = prompt_names(len(parsed.prompts))
            prompts = [
                self._prepared(parsed, self._encode_prompt(prompt, name), name)
                for prompt, name in zip(parsed.prompts, names, strict=True)
            ]
        self._check_ids(parsed.stop_token_ids, "stop_token_ids")
        self._check_ids(tuple(token_id for token_id, _ in parsed.logit_bias), "logit_bias")
        return PreparedRequest(
            endpoint=endpoint,
            stream=parsed.stream,
            include_usage=parsed.include_usage,
            continuous_usage=parsed.continuous_usage,
            stop=parsed.stop,
            sampling=replace(self._sampling(parsed, prompts[0].max_tokens), grammar=grammar),
            prompts=tuple(prompts),
            num_choices=parsed.num_choices,
            grammar_param="tools" if parsed.tool_use.offered else "response_format",
            form=form,
        )

    def tokenize(self, body: bytes) -> TokenList:
        """{"prompt", "add_special_tokens"} or {"messages", "tools", "add_generation_prompt"}.

        Texts longer than the model's context are counted too, as long as their bytes do not say
        that they are."""
        fields = load_object(body)
        self._check_names(fields, _TOKENIZE_READERS)
        if ("prompt" in fields) == ("messages" in fields):
            raise RequestError(
                "give either prompt or messages", code="missing_parameter", param="prompt"
            )
        if "messages" in fields:
            messages = read_messages(fields["messages"], "messages")
            generate = fields.get("add_generation_prompt", True)
            use = ToolUse(read_tools(fields.get("tools") or [], "tools"))
            chat = self._render(messages, use, add_generation_prompt=generate)
            self._check_fits(chat.text, "messages")
            return TokenList(tuple(self._chat_prompt.encode(chat)))
        content = text(fields["prompt"], "prompt")
        self._check_fits(content, "prompt")
        add_special = fields.get("add_special_tokens", True)
        encode = self._tokenizer.encode_prompt if add_special else self._tokenizer.encode
        return TokenList(tuple(encode(content)))

    def detokenize(self, body: bytes) -> PlainText:
        """{"tokens"} -> the text they make, special tokens left out."""
        fields = load_object(body)
        self._check_names(fields, _DETOKENIZE_READERS)
        if "tokens" not in fields:
            raise RequestError("tokens: missing", code="missing_parameter", param="tokens")
        ids = token_ids(fields["tokens"], "tokens")
        self._check_ids(ids, "tokens")
        if len(ids) > self._model.max_model_len:
            raise self._too_long(f"{len(ids)}", "tokens")
        detokenizer = self._tokenizer.detokenizer()
        return PlainText(detokenizer.push(ids) + detokenizer.end())

    @property
    def _chat_prompt(self) -> ChatPrompt:
        if self._chat is None:
            raise RequestError(
                "this model has no chat template; use /v1/completions",
                code="no_chat_template",
                param="messages",
            )
        return self._chat

    def _render(
        self, messages: tuple[Message, ...], use: ToolUse, *, add_generation_prompt: bool = True
    ) -> RenderedChat:
        prompt = self._chat_prompt
        assert self._syntax is not None
        self._syntax.check(use)
        return prompt.render(
            self._syntax.messages(messages, "messages"),
            tools=[tool.shown for tool in use.offered],
            add_generation_prompt=add_generation_prompt,
        )

    def _encode_prompt(self, prompt: str | tuple[int, ...], param: str) -> list[int]:
        if isinstance(prompt, str):
            self._check_fits(prompt, param)
            return self._tokenizer.encode_prompt(prompt)
        self._check_ids(prompt, param)
        return list(prompt)

    def _prepared(self, parsed: ParsedRequest, ids: list[int], param: str) -> PreparedPrompt:
        hashes = chain_hashes(self._hash_root, ids, self._block_size)
        max_tokens = self._max_tokens(parsed, len(ids), param)
        return PreparedPrompt(tuple(ids), tuple(hashes), max_tokens)

    def _check_fits(self, content: str, param: str) -> None:
        """Refuses what is too long in any encoding, before time is spent on encoding it."""
        shortest = self._tokenizer.shortest_encoding(len(content.encode()))
        if shortest > self._model.max_model_len:
            raise self._too_long(f"at least {shortest}", param)

    def _check_ids(self, ids: tuple[int, ...], param: str) -> None:
        if ids and max(ids) >= self._model.vocab_size:
            raise invalid(param, f"made of token ids below {self._model.vocab_size}")

    def _max_tokens(self, parsed: ParsedRequest, num_prompt_tokens: int, param: str) -> int:
        if num_prompt_tokens == 0:
            raise invalid(param, "at least one token long")
        left = self._model.max_model_len - num_prompt_tokens
        wanted = left if parsed.max_tokens is None else parsed.max_tokens
        if left < 1:
            raise self._too_long(f"{num_prompt_tokens}", param, " + 1 to generate")
        if wanted > left:
            raise RequestError(
                f"{parsed.max_tokens_param}: at most {left} fit behind the "
                f"{num_prompt_tokens} tokens of the prompt; {self._context}",
                code="context_length_exceeded",
                param=parsed.max_tokens_param,
            )
        if parsed.min_tokens > wanted:
            raise invalid("min_tokens", f"at most {wanted}, the tokens that can be generated")
        return wanted

    @property
    def _context(self) -> str:
        length = self._model.max_model_len
        if length == self._own_len:
            return f"the model's context is {length} tokens"
        return (
            f"the context is {length} tokens, all that the workers' KV pools hold "
            f"(the model's is {self._own_len})"
        )

    def _too_long(self, num_tokens: str, param: str, more: str = "") -> RequestError:
        return RequestError(
            f"{self._context}; this request needs {num_tokens} for the prompt{more}; shorten it",
            code="context_length_exceeded",
            param=param,
        )

    def _sampling(self, parsed: ParsedRequest, max_tokens: int) -> Sampling:
        return Sampling(
            max_tokens=max_tokens,
            temperature=parsed.temperature,
            top_k=parsed.top_k,
            top_p=parsed.top_p,
            seed=parsed.seed,
            min_tokens=parsed.min_tokens,
            ignore_eos=parsed.ignore_eos,
            stop_token_ids=parsed.stop_token_ids,
            eos_token_ids=self._model.eos_token_ids,
            logprobs=parsed.logprobs,
            min_p=parsed.min_p,
            presence_penalty=parsed.presence_penalty,
            frequency_penalty=parsed.frequency_penalty,
            repetition_penalty=parsed.repetition_penalty,
            logit_bias=parsed.logit_bias,
            grammar=parsed.grammar,
        )

    def _check_names(self, fields: Mapping[str, Any], readers: Mapping[str, Any]) -> None:
        for name, value in fields.items():
            if name not in readers:
                raise unsupported(name)
            if readers[name] is not None:
                readers[name](value, name)
        if "model" in fields:
            check_model(fields["model"], self._model.name)


def _syntax(template: ChatTemplate, tokenizer: TextTokenizer, model: ServedModel) -> AnswerSyntax:
    return AnswerSyntax(
        template,
        tokenizer,
        tool_parser=model.tool_parser,
        reasoning_parser=model.reasoning_parser,
    )


_TOKENIZE_READERS = {
    "model": text,
    "prompt": None,
    "messages": None,
    "tools": None,
    "add_special_tokens": flag,
    "add_generation_prompt": flag,
}
_DETOKENIZE_READERS = {"model": text, "tokens": None}
