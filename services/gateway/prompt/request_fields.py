"""One generation request's fields: read one by one by the tables, then checked against each other.

Null means absent, except where a value is required. A field of no table is unknown: it is left
out and named, or refused under `--unknown-fields refuse`.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.gateway.owner.generation import Endpoint
from services.gateway.prompt import guided
from services.gateway.prompt.field_tables import (
    MAX_CHOICES,
    NUM_COMPLETED,
    TABLES,
    FieldTable,
)
from services.gateway.prompt.tools import ToolUse, tool_use
from shared.errors import RequestError
from shared.fields.client_text import listed, shown
from shared.fields.readers import invalid, same, unknown, unsupported
from shared.protocol import GREEDY_BELOW, Sampling
from shared.text.messages import Message
from shared.text.template_values import shows_effort, shows_thinking

MAX_NAMED = 9
"""refused fields that one error names"""
MAX_TEXT_CHARS = 240
"""of an error that says what is wrong with several fields; what has no place is named"""
GRAMMAR_FIELDS = ("response_format", *guided.READERS)
TYPE_WORDS: dict[type, str] = {str: "a string", dict: "an object"}
"""of fields that are ignored"""


@dataclass(frozen=True)
class ClientNames:
    """What the client calls what is refused or left out after its fields were read."""

    messages: str = "messages"
    max_tokens: str = "max_tokens"
    grammar: str = "response_format"
    """the field that asks for it"""
    effort: str = "reasoning_effort"
    thinking: str = "thinking"
    places: tuple[str, ...] = ()
    """of the messages, where they are not those of a chat"""


@dataclass(frozen=True)
class ParsedRequest:
    """The fields of one request, checked one by one and against each other."""

    endpoint: Endpoint
    messages: tuple[Message, ...]
    """chat only"""
    prompts: tuple[str | tuple[int, ...], ...]
    """text only"""
    num_choices: int
    """of each prompt"""
    model: str
    stream: bool
    include_usage: bool
    continuous_usage: bool
    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: tuple[tuple[int, float], ...]
    """(token id, what is added to its logit)"""
    seed: int
    """63 bits; drawn when the client gave none"""
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    min_tokens: int
    keep_tokens: int
    """of each prompt, its last ones; -1: as many as fit next to the answer; 0: it must fit"""
    ignore_eos: bool
    logprobs: int
    """-1 none; 0 the chosen token's; k also the k most likely"""
    grammar: str
    """what the answer must match; empty is any text"""
    tool_use: ToolUse
    """chat only"""
    template_kwargs: dict[str, Any]
    """chat only: what the client wants the template to see"""
    reasoning_effort: str | None
    """chat only"""
    thinks: bool | None
    """chat only: whether the model is to think first; None: as effort and server have it"""
    return_token_ids: bool
    tokens_as_ids: bool
    """logprobs name tokens by their ids"""
    ignored: tuple[str, ...]
    """fields that nobody here knows"""
    names: ClientNames
    echo: str = ""
    """JSON of the fields that the answer repeats, where its shape has them"""
    priority: int | None = None
    """None: the client does not say"""
    shows_prompt: bool = False
    """text only"""
    answers: bool = True
    """False: only the prompt is wanted. One token is computed all the same, and none ends it"""
    prompt_logprobs: int = -1
    """-1 none; 0 the prompt's tokens; k also the k most likely in their places"""

    @property
    def grammar_param(self) -> str:
        """What the client calls what its answer's grammar is made of."""
        return "tools" if self.tool_use.offered else self.names.grammar

    def unseen(self, looked_at: frozenset[str]) -> tuple[str, ...]:
        """Fields that change nothing with a template which looks at these names."""
        kwargs = [name for name in self.template_kwargs if name not in looked_at]
        fields = [f"chat_template_kwargs.{name}" for name in kwargs]
        if self.reasoning_effort is not None and not shows_effort(looked_at):
            fields.append(self.names.effort)
        if self.thinks is not None and not shows_thinking(looked_at):
            fields.append(self.names.thinking)
        return tuple(fields)

    def sampling(self, max_tokens: int, eos_token_ids: tuple[int, ...], grammar: str) -> Sampling:
        """How its tokens are chosen, `max_tokens` of them at most."""
        return Sampling(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=self.seed,
            min_tokens=self.min_tokens,
            ignore_eos=self.ignore_eos or not self.answers,
            stop_token_ids=self.stop_token_ids if self.answers else (),
            eos_token_ids=eos_token_ids,
            logprobs=self.logprobs,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=self.logit_bias,
            grammar=grammar,
        )


def parse_request(
    body: Mapping[str, Any], endpoint: Endpoint, *, refuse_unknown: bool = False
) -> ParsedRequest:
    """The request in a JSON object; RequestError names every bad field."""
    fields, ignored = read_fields(body, TABLES[endpoint], refuse_unknown)
    max_tokens = "max_tokens" if "max_tokens" in fields else "max_completion_tokens"
    names = ClientNames(max_tokens=max_tokens, grammar=_grammar_param(fields))
    return parsed_request(fields, endpoint, names, ignored)


def parsed_request(
    fields: Mapping[str, Any], endpoint: Endpoint, names: ClientNames, ignored: tuple[str, ...]
) -> ParsedRequest:
    """The fields, as their readers made them, checked against each other."""
    temperature = fields.get("temperature", 1.0)
    options, answers = _stream_options(fields), _answers(fields)
    return ParsedRequest(
        endpoint=endpoint,
        messages=fields.get("messages", ()),
        prompts=fields.get("prompt", ()),
        num_choices=_num_choices(fields),
        model=fields["model"],
        stream=fields.get("stream", False),
        include_usage=options.get("include_usage", False),
        continuous_usage=options.get("continuous_usage_stats", False)
        and options.get("include_usage", True),
        max_tokens=_max_tokens(fields) if answers else 1,
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_p=fields.get("top_p", 1.0),
        top_k=max(0, fields.get("top_k", 0)),
        min_p=fields.get("min_p", 0.0),
        presence_penalty=fields.get("presence_penalty", 0.0),
        frequency_penalty=fields.get("frequency_penalty", 0.0),
        repetition_penalty=fields.get("repetition_penalty", 1.0),
        logit_bias=fields.get("logit_bias", ()),
        seed=fields.get("seed", secrets.randbits(63)) & (2**63 - 1),
        stop=fields.get("stop", ()),
        stop_token_ids=fields.get("stop_token_ids", ()),
        min_tokens=_min_tokens(fields),
        keep_tokens=fields.get("truncate_prompt_tokens", 0),
        ignore_eos=fields.get("ignore_eos", False),
        logprobs=_logprobs(fields, endpoint),
        grammar=fields.get(names.grammar, ""),
        tool_use=_tool_use(fields, endpoint),
        template_kwargs=fields.get("chat_template_kwargs", {}),
        reasoning_effort=fields.get("reasoning_effort"),
        thinks=fields.get("thinks"),
        return_token_ids=fields.get("return_token_ids", False),
        tokens_as_ids=fields.get("return_tokens_as_token_ids", False),
        ignored=ignored,
        names=names,
        priority=fields.get("priority"),
        shows_prompt=fields.get("echo", False),
        answers=answers,
        prompt_logprobs=_prompt_logprobs(fields),
    )


def read_fields(
    body: Mapping[str, Any], table: FieldTable, refuse_unknown: bool
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The fields with a reader, read, and the names of those that nobody knows. RequestError
    names every bad one."""
    for name in table.required:
        if name not in body:
            raise RequestError(f"{name}: is required", code="missing_parameter", param=name)
    fields: dict[str, Any] = {}
    ignored: list[str] = []
    refusals: list[RequestError] = []
    for name, value in body.items():
        try:
            if name in table.readers:
                if value is not None or name in table.required:
                    fields[name] = table.readers[name](value, name)
            elif refuse_unknown or table.knows(name):
                # a search for what was meant takes time: not for all of many
                _check_neutral(name, value, table, search=len(refusals) < MAX_NAMED)
            elif value is not None:
                ignored.append(name)
        except RequestError as error:
            refusals.append(error)
    if refusals:
        raise _together(refusals)
    return fields, tuple(ignored)


def _check_neutral(name: str, value: Any, table: FieldTable, *, search: bool) -> None:
    """RequestError if the field would change the answer, were it implemented, or if nobody knows
    it; with `search` it names a field that may have been meant."""
    if not table.knows(name):
        raise unknown(name, table.readers if search else ())
    if value is None or type(value) is table.ignored.get(name):
        return
    if name in table.ignored:
        raise invalid(name, TYPE_WORDS[table.ignored[name]])
    neutral = table.neutral.get(name, ())
    if not any(same(value, item) for item in neutral):
        raise unsupported(name, neutral)


def _together(refusals: list[RequestError]) -> RequestError:
    """The first refusal with the texts of the others, or their fields' names where those are
    too long."""
    first, *others = refusals
    text, num_told = first.message, 1
    while others and len(text) + len(others[0].message) + 2 <= MAX_TEXT_CHARS:
        text += f"; {others.pop(0).message}"
        num_told += 1
    if others:
        names = [shown(error.param or "") for error in others]
        text += f"; refused too: {listed(names, MAX_NAMED - num_told)}"
    return RequestError(text, code=first.code, param=first.param)


def _tool_use(fields: Mapping[str, Any], endpoint: Endpoint) -> ToolUse:
    if endpoint == "text" and fields.get("tools"):
        raise unsupported("tools")
    return tool_use(fields)


def _stream_options(fields: Mapping[str, Any]) -> dict[str, bool]:
    options: dict[str, bool] = fields.get("stream_options", {})
    if "stream_options" in fields and not fields.get("stream", False):
        raise RequestError(
            "stream_options: only with stream: true", code="invalid_value", param="stream_options"
        )
    return options


def _grammar_param(fields: Mapping[str, Any]) -> str:
    """The one field that says what an answer must match."""
    first, *others = [name for name in GRAMMAR_FIELDS if fields.get(name)] or ["response_format"]
    if others:
        raise invalid(others[0], f"left out when {first} is given")
    return first


def _max_tokens(fields: Mapping[str, Any]) -> int | None:
    old, new = fields.get("max_tokens"), fields.get("max_completion_tokens")
    if old is not None and new is not None and old != new:
        raise invalid("max_completion_tokens", "equal to max_tokens, or one of them left out")
    return new if old is None else old


def _answers(fields: Mapping[str, Any]) -> bool:
    """Whether more than the prompt is wanted."""
    answers = _max_tokens(fields) != 0
    if not answers and not fields.get("echo", False):
        raise invalid("max_tokens", NUM_COMPLETED)
    return answers


def _prompt_logprobs(fields: Mapping[str, Any]) -> int:
    """A stream has no place for them: it shows a prompt's by `echo`."""
    if "prompt_logprobs" in fields and fields.get("stream", False):
        raise invalid("prompt_logprobs", "left out when stream is true")
    return int(fields.get("prompt_logprobs", -1))


def _num_choices(fields: Mapping[str, Any]) -> int:
    num_choices: int = fields.get("n", 1)
    num_prompts = len(fields.get("prompt", ("messages",)))
    if num_choices * num_prompts > MAX_CHOICES:
        raise invalid("n", f"at most {MAX_CHOICES // num_prompts} with {num_prompts} prompts")
    return num_choices


def _min_tokens(fields: Mapping[str, Any]) -> int:
    least: int = fields.get("min_tokens", 0)
    most = _max_tokens(fields)
    if most is not None and least > most:
        raise invalid("min_tokens", f"at most max_tokens ({most})")
    return least


def _logprobs(fields: Mapping[str, Any], endpoint: Endpoint) -> int:
    if endpoint == "text":
        return int(fields.get("logprobs", -1))
    top = fields.get("top_logprobs")
    if not fields.get("logprobs", False):
        if top:
            raise invalid("top_logprobs", "given together with logprobs: true")
        return -1
    return top or 0


def check_model(name: str, served: str) -> None:
    """RequestError 404 unless `name` is the model served here."""
    if name != served:
        raise no_such_model((served,))


def no_such_model(served: Sequence[str]) -> RequestError:
    """404, with the names that there are."""
    return RequestError(
        f"model: no such model here; use {' or '.join(map(repr, served))}",
        status=404,
        code="model_not_found",
        param="model",
        kind="not_found_error",
    )
