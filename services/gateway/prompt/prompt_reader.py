"""From the bytes of a request body to prompt ids: all text work on the way in.

Pure and without I/O; `TextPool` runs it at once, in a thread or, for large bodies, in a process.
"""

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from services.gateway.parts.parser import PLAIN, AnswerForm
from services.gateway.prompt.answer_syntax import AnswerSyntax
from services.gateway.prompt.field_tables import prompt_names
from services.gateway.prompt.prepared import PlainText, PreparedPrompt, PreparedRequest, TokenList
from services.gateway.prompt.request_fields import ClientNames, ParsedRequest, check_model
from services.gateway.prompt.served_model import ServedModel
from services.gateway.prompt.shapes.messages import parse_counted
from services.gateway.prompt.shapes.parsers import PARSERS, Api
from services.gateway.prompt.shown_prompt import Prompt, checked, prompt_text
from services.gateway.prompt.tools import ToolUse, read_tools
from shared.errors import RequestError
from shared.fields.json_body import load_object
from shared.fields.readers import Reader, flag, invalid, text, token_ids, unknown
from shared.kv.block_hash import chain_hashes
from shared.text.chat_prompt import ChatPrompt, RenderedChat
from shared.text.chat_template import ChatTemplate
from shared.text.context import COUNTED_CONTEXTS, Context
from shared.text.messages import Message, read_messages
from shared.text.template_values import Values, read_template_kwargs, template_values
from shared.text.tokenizer import TextTokenizer

CHAT_NAMES = ClientNames()


class PromptReader:
    """Reads request bodies for one model."""

    def __init__(
        self,
        model: ServedModel,
        tokenizer: TextTokenizer,
        template: ChatTemplate | None,
        block_size: int,
    ) -> None:
        self._model = model
        self._context = Context(model.max_model_len, model.max_model_len, tokenizer)
        self._tokenizer = tokenizer
        self._chat = None if template is None else ChatPrompt(template, tokenizer)
        self._syntax = None if template is None else _syntax(template, tokenizer, model)
        self._hash_root = b""
        self._block_size = block_size

    @classmethod
    def load(cls, directory: Path, model: ServedModel, block_size: int) -> "PromptReader":
        """From a checkpoint directory; ModelError if its text files are unusable."""
        return cls(model, TextTokenizer.load(directory), ChatTemplate.load(directory), block_size)

    def serving(self, max_model_len: int, hash_root: bytes) -> "PromptReader":
        """The same, for workers that hold no longer sequences than this, and for the tenant whose
        blocks have this root."""
        reader = copy(self)
        reader._hash_root = hash_root
        if max_model_len < self._context.length:
            reader._context = replace(self._context, length=max_model_len)
        return reader

    @property
    def tokenizer(self) -> TextTokenizer:
        return self._tokenizer

    @property
    def can_chat(self) -> bool:
        """Whether the model has a chat template."""
        return self._chat is not None

    def prepare(self, api: Api, body: bytes) -> PreparedRequest:
        """Parse, template, tokenize, check against the model, hash. RequestError otherwise."""
        parsed = PARSERS[api](load_object(body), refuse_unknown=self._refuses_unknown)
        check_model(parsed.model, self._model.name)
        ignored = parsed.ignored
        form, grammar = PLAIN, parsed.grammar
        if parsed.endpoint == "chat":
            name = parsed.names.messages
            chat = self._rendered(parsed)
            ignored += self._unseen(parsed)
            self._context.check_prompt(chat.text, parsed, name)
            prompts = [self._prepared(parsed, self._chat_prompt.encode(chat), name)]
            form, grammar = self._answer(chat, parsed)
        else:
            names = prompt_names(len(parsed.prompts))
            prompts = [
                self._prepared(parsed, self._encode_prompt(parsed, prompt, name), name, prompt)
                for prompt, name in zip(parsed.prompts, names, strict=True)
            ]
        self._check_ids(parsed.stop_token_ids, "stop_token_ids")
        self._check_ids(tuple(token_id for token_id, _ in parsed.logit_bias), "logit_bias")
        shortest = min(prompt.max_tokens for prompt in prompts)
        is_clamped = parsed.max_tokens is not None and shortest < parsed.max_tokens
        prepared = PreparedRequest(
            endpoint=parsed.endpoint,
            stream=parsed.stream,
            include_usage=parsed.include_usage,
            continuous_usage=parsed.continuous_usage,
            stop=parsed.stop,
            sampling=parsed.sampling(prompts[0].max_tokens, self._model.eos_token_ids, grammar),
            prompts=tuple(prompts),
            num_choices=parsed.num_choices,
            grammar_param=parsed.grammar_param,
            form=form,
            return_token_ids=parsed.return_token_ids,
            priority=parsed.priority,
            tokens_as_ids=parsed.tokens_as_ids,
            ignored=ignored,
            clamped=f"{parsed.names.max_tokens}={shortest}" if is_clamped else "",
            echo=parsed.echo,
            shows_prompt=parsed.shows_prompt,
            answers=parsed.answers,
            prompt_logprobs=parsed.prompt_logprobs,
        )
        return checked(prepared)

    def count(self, body: bytes) -> TokenList:
        """The tokens of the prompt that a body for /v1/messages makes; `max_tokens` may be left
        out. Within COUNTED_CONTEXTS of them, as in `tokenize`. With the grammar of its answer."""
        parsed = parse_counted(load_object(body), refuse_unknown=self._refuses_unknown)
        check_model(parsed.model, self._model.name)
        chat = self._rendered(parsed)
        self._context.check_text(chat.text, parsed.names.messages, COUNTED_CONTEXTS)
        ids = tuple(self._chat_prompt.encode(chat))
        _, grammar = self._answer(chat, parsed)
        ignored = parsed.ignored + self._unseen(parsed)
        return TokenList(ids, ignored=ignored, grammar=grammar, grammar_param=parsed.grammar_param)

    def tokenize(self, body: bytes) -> TokenList:
        """{"prompt", "add_special_tokens"} or {"messages", "tools", "add_generation_prompt",
        "chat_template_kwargs"}.

        Texts longer than the model's context are counted too, within COUNTED_CONTEXTS of them."""
        given = load_object(body)
        if ("prompt" in given) == ("messages" in given):
            raise RequestError(
                "give either prompt or messages", code="missing_parameter", param="prompt"
            )
        fields, ignored = self._text_fields(given, _TOKENIZE_READERS)
        ids = tuple(self._chat_ids(fields) if "messages" in fields else self._text_ids(fields))
        named = fields.get("return_token_strs", False)
        names = tuple(map(self._tokenizer.token_name, ids)) if named else None
        return TokenList(ids, names, ignored)

    def detokenize(self, body: bytes) -> PlainText:
        """{"tokens"} -> the text they make, special tokens left out."""
        fields, ignored = self._text_fields(load_object(body), _DETOKENIZE_READERS)
        if "tokens" not in fields:
            raise RequestError("tokens: missing", code="missing_parameter", param="tokens")
        self._check_ids(fields["tokens"], "tokens")
        if len(fields["tokens"]) > COUNTED_CONTEXTS * self._context.length:
            raise self._context.too_long(f"{len(fields['tokens'])}", "tokens")
        detokenizer = self._tokenizer.detokenizer()
        return PlainText(detokenizer.push(fields["tokens"]) + detokenizer.end(), ignored)

    def _chat_ids(self, fields: Mapping[str, Any]) -> list[int]:
        chat = self._render(
            fields["messages"],
            ToolUse(fields.get("tools", ())),
            values=template_values(
                self._model.thinking, None, fields.get("chat_template_kwargs", {})
            ),
            add_generation_prompt=fields.get("add_generation_prompt", True),
        )
        self._context.check_text(chat.text, "messages", COUNTED_CONTEXTS)
        return self._chat_prompt.encode(chat)

    def _text_ids(self, fields: Mapping[str, Any]) -> list[int]:
        self._context.check_text(fields["prompt"], "prompt", COUNTED_CONTEXTS)
        add_special = fields.get("add_special_tokens", True)
        encode = self._tokenizer.encode_prompt if add_special else self._tokenizer.encode
        return encode(fields["prompt"])

    @property
    def _chat_prompt(self) -> ChatPrompt:
        if self._chat is None:
            raise RequestError(
                "this model has no chat template; use /v1/completions",
                code="no_chat_template",
                param="messages",
            )
        return self._chat

    @property
    def _refuses_unknown(self) -> bool:
        return self._model.unknown_fields == "refuse"

    def _rendered(self, parsed: ParsedRequest) -> RenderedChat:
        values = template_values(
            self._model.thinking,
            parsed.reasoning_effort,
            parsed.template_kwargs,
            thinks=parsed.thinks,
        )
        return self._render(parsed.messages, parsed.tool_use, values=values, names=parsed.names)

    def _answer(self, chat: RenderedChat, parsed: ParsedRequest) -> tuple[AnswerForm, str]:
        """What the answer is split into, and its grammar."""
        assert self._syntax is not None
        form = self._syntax.form(chat.text, parsed.tool_use)
        return form, self._syntax.grammar(parsed.tool_use, form.reasoning, parsed.grammar)

    def _unseen(self, parsed: ParsedRequest) -> tuple[str, ...]:
        return parsed.unseen(self._chat_prompt.names)

    def _render(
        self,
        messages: tuple[Message, ...],
        use: ToolUse,
        *,
        values: Values,
        add_generation_prompt: bool = True,
        names: ClientNames = CHAT_NAMES,
    ) -> RenderedChat:
        prompt = self._chat_prompt
        assert self._syntax is not None
        self._syntax.check(use)
        return prompt.render(
            self._syntax.messages(messages, names.messages, names.places),
            tools=[tool.shown for tool in use.offered],
            add_generation_prompt=add_generation_prompt,
            values=values,
            param=names.messages,
        )

    def _encode_prompt(self, parsed: ParsedRequest, prompt: Prompt, param: str) -> list[int]:
        if isinstance(prompt, str):
            self._context.check_prompt(prompt, parsed, param)
            return self._tokenizer.encode_prompt(prompt)
        self._check_ids(prompt, param)
        return list(prompt)

    def _prepared(
        self,
        parsed: ParsedRequest,
        given: list[int],
        param: str,
        prompt: Prompt = "",
    ) -> PreparedPrompt:
        ids = self._context.shortened(parsed, given)
        hashes = chain_hashes(self._hash_root, ids, self._block_size)
        max_tokens = self._context.max_tokens(parsed, len(ids), param)
        whole = len(ids) == len(given)
        text = prompt_text(prompt, ids, self._tokenizer, whole=whole) if parsed.shows_prompt else ""
        return PreparedPrompt(tuple(ids), tuple(hashes), max_tokens, text)

    def _check_ids(self, ids: tuple[int, ...], param: str) -> None:
        if ids and (largest := max(ids)) >= self._model.vocab_size:
            size = self._model.vocab_size
            raise invalid(param, f"made of token ids below {size}, and {largest} is not")

    def _text_fields(
        self, body: Mapping[str, Any], readers: Mapping[str, Reader]
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """What the readers make of a body, and the names of the fields that have none."""
        fields = {
            name: readers[name](value, name)
            for name, value in body.items()
            if name in readers and (value is not None or name in _TEXTS)
        }
        others = tuple(name for name in body if name not in readers)
        if others and self._refuses_unknown:
            raise unknown(others[0], readers)
        if "model" in fields:
            check_model(fields["model"], self._model.name)
        return fields, tuple(name for name in others if body[name] is not None)


def _syntax(template: ChatTemplate, tokenizer: TextTokenizer, model: ServedModel) -> AnswerSyntax:
    return AnswerSyntax(
        template,
        tokenizer,
        tool_parser=model.tool_parser,
        reasoning_parser=model.reasoning_parser,
    )


_TEXTS = ("prompt", "messages", "tokens")
"""fields whose null is an error"""
_TOKENIZE_READERS: dict[str, Reader] = {
    "model": text,
    "prompt": text,
    "messages": read_messages,
    "tools": read_tools,
    "add_special_tokens": flag,
    "add_generation_prompt": flag,
    "chat_template_kwargs": read_template_kwargs,
    "return_token_strs": flag,
}
_DETOKENIZE_READERS: dict[str, Reader] = {"model": text, "tokens": token_ids}
