"""What the API takes, for tools and for people: /openapi.json, and /docs made from it.

The page loads nothing and runs nothing. What a field may hold is in `FIELDS`; a test holds it
against the readers.
"""

from collections.abc import Collection, Iterable, Mapping
from html import escape
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from services.gateway.answer import receipt_field
from services.gateway.http import idempotency, priority
from services.gateway.http.errors import json_response
from services.gateway.http.headers import TIMEOUT_HEADER
from services.gateway.http.message_errors import MESSAGES_PATH, is_for_messages
from services.gateway.http.request_id import request_id
from services.gateway.owner.records.receipts import MAX_RECEIPTS
from services.gateway.prompt.field_tables import TABLES, FieldTable
from services.gateway.prompt.shapes.messages import COUNTED_TABLE, MESSAGES_TABLE
from services.gateway.prompt.shapes.responses import RESPONSES_TABLE
from services.gateway.routes.message_schema import MESSAGE_FIELDS
from services.gateway.routes.price import MAX_USD, PRICE
from services.gateway.routes.response_schema import RESPONSE_FIELDS
from services.gateway.routes.row_query import MARKS
from shared.fields.readers import (
    MAX_BIAS,
    MAX_BIASES,
    MAX_STOP_CHARS,
    MAX_STOP_TOKEN_IDS,
    MAX_STOPS,
)
from shared.queue.backlog import MAX_PRIORITY
from shared.text.sampling_fields import (
    MAX_LOGPROBS,
    MAX_N,
    MAX_REPETITION_PENALTY,
    MAX_TOKENS,
    MIN_REPETITION_PENALTY,
)
from shared.text.template_values import EFFORTS, MAX_VALUES

Schema = dict[str, Any]
ANSWERED = ("/v1/chat/completions", "/v1/completions", "/v1/responses", MESSAGES_PATH)
"""by the model"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
TYPE_NAMES: dict[type, str] = {dict: "object", str: "string"}


def _integer(low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def _number(low: float, high: float) -> Schema:
    return {"type": "number", "minimum": low, "maximum": high}


TEXT: Schema = {"type": "string"}
SOME_TEXT: Schema = {"type": "string", "minLength": 1}
FLAG: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
IDS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}}
STOP: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}
BIAS = _number(-MAX_BIAS, MAX_BIAS)
FIELDS: dict[str, Schema] = {
    "chat_template_kwargs": {**OBJECT, "maxProperties": MAX_VALUES},
    "ebnf": SOME_TEXT,
    "echo": FLAG,
    "frequency_penalty": _number(-2, 2),
    "guided_choice": {"type": "array", "items": SOME_TEXT, "minItems": 1},
    "guided_grammar": SOME_TEXT,
    "guided_json": {"type": ["object", "string"]},
    "guided_regex": SOME_TEXT,
    "ignore_eos": FLAG,
    "logit_bias": {**OBJECT, "additionalProperties": BIAS, "maxProperties": MAX_BIASES},
    "logprobs": {"anyOf": [FLAG, _integer(0, MAX_LOGPROBS)]},
    "max_completion_tokens": _integer(1, MAX_TOKENS),
    "max_tokens": _integer(1, MAX_TOKENS),
    "messages": {"type": "array", "items": OBJECT, "minItems": 1},
    "min_p": _number(0, 1),
    "min_tokens": _integer(0, MAX_TOKENS),
    "model": TEXT,
    "n": _integer(1, MAX_N),
    "parallel_tool_calls": FLAG,
    "presence_penalty": _number(-2, 2),
    "priority": _integer(0, MAX_PRIORITY),
    "prompt_logprobs": _integer(0, MAX_LOGPROBS),
    "prompt": {"anyOf": [SOME_TEXT, {"type": "array", "minItems": 1}]},
    "reasoning_effort": {"enum": list(EFFORTS)},
    "regex": SOME_TEXT,
    "repetition_penalty": _number(MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY),
    "response_format": {**OBJECT, "required": ["type"]},
    "return_token_ids": FLAG,
    "return_tokens_as_token_ids": FLAG,
    "seed": _integer(-(2**63), 2**63 - 1),
    "stop": {"anyOf": [STOP, {"type": "array", "items": STOP, "maxItems": MAX_STOPS}]},
    "stop_token_ids": {**IDS, "maxItems": MAX_STOP_TOKEN_IDS},
    "stream": FLAG,
    "stream_options": OBJECT,
    "structured_outputs": OBJECT,
    "temperature": _number(0, 2),
    "tool_choice": {"type": ["object", "string"]},
    "tools": {"type": "array", "items": OBJECT},
    "top_k": _integer(-1, MAX_TOKENS),
    "top_logprobs": _integer(0, MAX_LOGPROBS),
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "truncate_prompt_tokens": {"anyOf": [{"const": -1}, _integer(1, MAX_TOKENS)]},
    "user": TEXT,
}
TOKENIZE: Schema = {
    **{name: FIELDS[name] for name in ("messages", "model", "tools", "chat_template_kwargs")},
    "prompt": TEXT,
    **dict.fromkeys(("add_special_tokens", "add_generation_prompt", "return_token_strs"), FLAG),
}
GETS = {
    "/v1/models": "The model that is served",
    "/v1/models/{name}": "One model",
    "/health": "The process lives",
    "/ping": "The same",
    "/ready": "Clients should come here; `serves`: workers would serve a request now",
    "/version": "The release",
    "/metrics": "Prometheus metrics",
    "/v1/capacity": "What the workers hold, and what a million tokens cost",
    "/v1/baton/status": "The workers",
    "/v1/baton/live": "The gateway and its workers, now and in the last minute",
    "/v1/baton/watch": "The same once a second, as server-sent events",
    "/v1/baton/requests": "The last requests, the newest first",
    "/v1/baton/requests/{rid}": "What happened to one of the last requests",
    "/openapi.json": "This description",
    "/docs": "This description, to read",
}

HEADERS: dict[str, Schema] = {
    idempotency.HEADER: {**SOME_TEXT, "maxLength": idempotency.MAX_CHARACTERS},
    priority.HEADER: {"enum": list(priority.CLASSES)},
    receipt_field.HEADER: {"enum": [0, 1]},
    TIMEOUT_HEADER: {"type": "number", "exclusiveMinimum": 0},
    "traceparent": TEXT,
}
"""of what is answered by the model"""
QUERIES: dict[str, dict[str, Schema]] = {
    "/v1/baton/requests": {
        "limit": _integer(1, MAX_RECEIPTS),
        **{name: {"enum": [0, 1]} for name in MARKS},
    },
    "/v1/baton/requests/{rid}": {
        PRICE: {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_USD}
    },
}


def chat_schema() -> Schema:
    """Of a body for /v1/chat/completions."""
    flag, _ = FIELDS["logprobs"]["anyOf"]
    return body_schema(TABLES["chat"], FIELDS | {"logprobs": flag})


def text_schema() -> Schema:
    """Of a body for /v1/completions."""
    _, number = FIELDS["logprobs"]["anyOf"]
    own = {"logprobs": number, "max_tokens": _integer(0, MAX_TOKENS)}
    return body_schema(TABLES["text"], FIELDS | own)


def body_schema(table: FieldTable, fields: Mapping[str, Schema]) -> Schema:
    """Of a request with these fields."""
    properties = {
        name: fields[name] if name in table.required else _or_null(fields[name])
        for name in table.readers
    }
    for name, values in table.neutral.items():
        properties[name] = {"enum": [*values, None], "description": "only where it changes nothing"}
    for name, kind in table.ignored.items():
        properties[name] = {"type": [TYPE_NAMES[kind], "null"], "description": "changes nothing"}
    return {**OBJECT, "properties": properties, "required": list(table.required)}


def openapi(version: str, hidden: Collection[str] = ()) -> Schema:
    """The whole description, but for the paths that are not served here."""
    detokenize = {"model": _or_null(TEXT), "tokens": IDS}
    posts = {
        "/v1/chat/completions": ("The next message of a chat", chat_schema()),
        "/v1/completions": ("The continuation of a prompt", text_schema()),
        "/v1/responses": (
            "The answer to a conversation",
            body_schema(RESPONSES_TABLE, FIELDS | RESPONSE_FIELDS),
        ),
        MESSAGES_PATH: (
            "The next message of a chat, in Anthropic's shape",
            body_schema(MESSAGES_TABLE, FIELDS | MESSAGE_FIELDS),
        ),
        f"{MESSAGES_PATH}/count_tokens": (
            "The tokens of such a chat",
            body_schema(COUNTED_TABLE, FIELDS | MESSAGE_FIELDS),
        ),
        "/tokenize": ("A text's or a chat's tokens", {**OBJECT, "properties": TOKENIZE}),
        "/detokenize": (
            "The text of tokens",
            {**OBJECT, "properties": detokenize, "required": ["tokens"]},
        ),
    }
    paths = {path: {"post": _post(path, *told)} for path, told in posts.items()}
    gets = {path: summary for path, summary in GETS.items() if path not in hidden}
    paths |= {path: {"get": _get(path, summary)} for path, summary in gets.items()}
    about = {"title": "Baton", "version": version}
    return {"openapi": "3.1.0", "info": about, "paths": paths}


def page(description: Schema) -> str:
    """The description as HTML."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>Baton API</title>",
        "<style>body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
        "td{border-top:1px solid #ccc;padding:.2em .8em .2em 0;vertical-align:top}</style>",
        f"<h1>Baton {escape(description['info']['version'])}</h1>",
    ]
    for path, methods in description["paths"].items():
        for method, told in methods.items():
            parts.append(f"<h2>{method.upper()} {escape(path)}</h2><p>{escape(told['summary'])}.")
            if "parameters" in told:
                parts.append(_parameters(told["parameters"]))
            if "requestBody" in told:
                parts.append(_table(told["requestBody"]["content"]["application/json"]["schema"]))
    return "\n".join(parts)


class DocsRoutes:
    """GET /openapi.json and /docs."""

    def __init__(self, version: str, hidden: Collection[str] = ()) -> None:
        self._description = openapi(version, hidden)
        self._page = page(self._description).encode()

    async def openapi(self, request: Request) -> Response:
        return json_response(request, self._description)

    async def docs(self, request: Request) -> Response:
        headers = {
            "x-request-id": request_id(request.scope),
            "content-security-policy": POLICY,
        }
        return Response(self._page, headers=headers, media_type="text/html")


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _post(path: str, summary: str, schema: Schema) -> Schema:
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    told: Schema = {"summary": summary, "requestBody": body, "responses": _responses(path)}
    headers = [{"name": name, "in": "header", "schema": each} for name, each in HEADERS.items()]
    return told | {"parameters": headers} if path in ANSWERED else told


def _get(path: str, summary: str) -> Schema:
    parameters: list[Schema] = [
        {"name": name, "in": "query", "schema": schema}
        for name, schema in QUERIES.get(path, {}).items()
    ]
    if "{" in path:
        name = path.partition("{")[2].removesuffix("}")
        parameters.append({"name": name, "in": "path", "required": True, "schema": TEXT})
    told: Schema = {"summary": summary, "responses": _responses(path)}
    return told | {"parameters": parameters} if parameters else told


def _parameters(told: Iterable[Schema]) -> str:
    rows = []
    for each in told:
        name, where, shown = escape(each["name"]), each["in"], escape(_told(each["schema"]))
        rows.append(f"<tr><td><code>{name}</code> ({where})<td>{shown}")
    return f"<table>{''.join(rows)}</table>"


def _table(schema: Schema) -> str:
    required = schema.get("required", ())
    rows = []
    for name, field in schema["properties"].items():
        kinds = [kind for kind in field.get("anyOf", [field]) if kind != {"type": "null"}]
        shown = "; ".join(_told(kind) for kind in kinds)
        mark = " (required)" if name in required else ""
        rows.append(f"<tr><td><code>{escape(name)}</code>{mark}<td>{escape(shown)}")
    return f"<table>{''.join(rows)}</table>"


def _told(schema: Schema) -> str:
    """A schema in a few words."""
    return ", ".join(f"{name} {value}" for name, value in schema.items())


def _responses(path: str) -> Schema:
    error = '{"error": {"message", "type", "param", "code"}}'
    if is_for_messages(path):
        error = '{"type": "error", "error": {"type", "message"}, "request_id"}'
    return {
        "200": {"description": "The answer"},
        "default": {"description": f"An error: {error}"},
    }
