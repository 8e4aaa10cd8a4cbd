"""The checkpoint's chat template, rendered as transformers renders it, in a sandbox.

The template comes from the model's directory, never from a request. It still gets limits,
because its loops run over what clients send: a budget of CPU time checked at each step of each
loop, and of output beyond the content that went in.
"""

import gc
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import pass_context
from jinja2.visitor import NodeTransformer

from shared.errors import ModelError, RequestError
from shared.model.files import TOKENIZER_CONFIG
from shared.text.messages import Message

TEMPLATE_FILE = "chat_template.jinja"
TIME_BUDGET_S = 0.1
MAX_RESTARTS = 3
"""of the time; collections that other threads cause count too"""
EXTRA_CHARS = 2**20
"""output allowed beyond the characters of the messages"""
MAX_REPEAT = 10_000
"""largest factor a template may repeat a string or list by"""


_FAILURES = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""what a template can raise over messages it was not written for"""


class TemplateBudgetError(TemplateError):
    """The template ran or wrote too long."""


class ChatTemplate:
    """One compiled template and the special tokens it may name."""

    def __init__(self, source: str, variables: dict[str, str], tool_source: str = "") -> None:
        """`variables`: bos_token, eos_token and the like; `tool_source`: a template of its own
        for requests with tools, if there is one. ModelError if one does not compile."""
        sandbox = _Sandbox()
        self.source = source + tool_source
        """what the model's syntax is recognised by"""
        self._template, self.names = _compiled(sandbox, source)
        self._tool_template, tool_names = self._template, self.names
        if tool_source:
            self._tool_template, tool_names = _compiled(sandbox, tool_source)
        self._takes_tools = "tools" in tool_names
        self.names |= tool_names
        """the variables that it looks at"""
        self._variables = variables

    @classmethod
    def load(cls, directory: Path) -> "ChatTemplate | None":
        """From chat_template.jinja, else tokenizer_config.json; None if the model has none."""
        config = _read_config(directory / TOKENIZER_CONFIG)
        file = directory / TEMPLATE_FILE
        if file.is_file():
            return cls(file.read_text(encoding="utf-8"), _special_tokens(config))
        named = _templates(config)
        if "default" not in named:
            return None
        return cls(named["default"], _special_tokens(config), named.get("tool_use", ""))

    @property
    def takes_tools(self) -> bool:
        """Whether it does anything with `tools`."""
        return self._takes_tools

    def mentions(self, text: str) -> bool:
        return text in self.source

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[dict[str, Any]] = (),
        add_generation_prompt: bool = True,
        values: Mapping[str, Any] | None = None,
        param: str = "messages",
    ) -> str:
        """The prompt text; RequestError with the template's words if it refuses. `values`: more
        variables; ours come before them. `param`: what the client calls the messages."""
        budget = _Budget(EXTRA_CHARS + _num_chars(messages) + _num_chars(tools))
        variables = {
            **(values or {}),
            **self._variables,
            "messages": list(messages),
            "tools": list(tools) or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            "baton_budget": budget,
        }
        template = self._tool_template if tools else self._template
        try:
            pieces = template.generate(variables)
            return "".join(budget.count(piece) for piece in pieces)
        except TemplateBudgetError as error:
            raise RequestError(str(error), code="template_budget", param=param) from None
        except _FAILURES as error:
            reason = str(error) if isinstance(error, TemplateError) else "it failed on them"
            raise RequestError(
                f"the model's chat template refuses these messages: {reason[:200]}",
                code="invalid_messages",
                param=param,
            ) from None


class _Budget:
    """CPU time of the rendering thread and characters, both counted down. Garbage may be collected
    in this thread too, for longer than the budget: time with a full collection in it starts again,
    up to MAX_RESTARTS times."""

    def __init__(self, num_chars: int) -> None:
        self._num_chars = num_chars
        self._num_collections = _num_full_collections()
        self._num_restarts = 0
        self._end_s = time.thread_time() + TIME_BUDGET_S

    def count(self, piece: str) -> str:
        self._num_chars -= len(piece)
        if self._num_chars < 0:
            raise TemplateBudgetError("the chat template writes too much")
        self.check_time()
        return piece

    def check_time(self) -> None:
        now_s = time.thread_time()
        if now_s <= self._end_s:
            return
        num_before, self._num_collections = self._num_collections, _num_full_collections()
        self._num_restarts += 1
        if self._num_collections == num_before or self._num_restarts > MAX_RESTARTS:
            raise TemplateBudgetError("the chat template runs too long")
        self._end_s = now_s + TIME_BUDGET_S


def _num_full_collections() -> int:
    number: int = gc.get_stats()[-1]["collections"]
    return number


class _BudgetedLoop:
    """An iterable that checks the budget at each step; as long as the one it wraps."""

    def __init__(self, items: Iterable[Any], budget: _Budget) -> None:
        self._items = items
        self._budget = budget

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            self._budget.check_time()
            yield item

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]


class _BudgetLoops(NodeTransformer):
    """Wraps what each `for` of a template iterates over in the filter `budgeted`."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        wrapped = nodes.Filter(node.iter, "budgeted", [], [], None, None, lineno=node.lineno)
        if node.environment is not None:
            wrapped.set_environment(node.environment)
        node.iter = wrapped
        return node


class _Sandbox(ImmutableSandboxedEnvironment):
    """The environment chat templates are written for, with our limits."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        self.filters["tojson"] = _to_json
        self.filters["budgeted"] = _budgeted
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _BudgetLoops().visit(tree)
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        sizes = [value for value in (left, right) if isinstance(value, int)]
        if operator == "**" or (len(sizes) < 2 and any(size > MAX_REPEAT for size in sizes)):
            raise SecurityError(f"the chat template may not use {operator} like this")
        return super().call_binop(context, operator, left, right)


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's part for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@pass_context
def _budgeted(context: Context, items: Iterable[Any]) -> _BudgetedLoop:
    return _BudgetedLoop(items, context["baton_budget"])


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _compiled(sandbox: _Sandbox, source: str) -> tuple[Template, frozenset[str]]:
    """The template, and the variables that it looks at."""
    try:
        names = meta.find_undeclared_variables(sandbox.parse(source))
        return sandbox.from_string(source), frozenset(names)
    except TemplateError as error:
        raise ModelError(f"the chat template does not compile: {error}") from None


def _num_chars(value: Any) -> int:
    """Characters of all strings in a JSON value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_num_chars, value)) + sum(map(_num_chars, value.values()))
    return sum(map(_num_chars, value)) if isinstance(value, list | tuple) else 0


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise ModelError(f"{path}: not a JSON object")
    return config


def _templates(config: dict[str, Any]) -> dict[str, str]:
    """The templates in tokenizer_config.json by name: a string is the default one."""
    found = config.get("chat_template")
    if isinstance(found, list):
        named = {item.get("name"): item.get("template") for item in found}
    else:
        named = {"default": found}
    return {name: source for name, source in named.items() if isinstance(source, str)}


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """bos_token, eos_token ...: plain strings, or the content of a described token."""
    tokens: dict[str, str] = {}
    for name, value in config.items():
        if name.endswith("_token"):
            content = value.get("content") if isinstance(value, dict) else value
            if isinstance(content, str):
                tokens[name] = content
    return tokens
