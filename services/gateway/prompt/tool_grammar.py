"""The grammar of an answer that must be, or may hold, tool calls; with reasoning before it.

    required      reasoning, then one call or more, nothing else
    auto, strict  any text; behind the tag that begins a call only a call
    auto          no grammar: what comes is parsed as far as it is a call

`response_format` allows its own text and, where tools are offered, calls in its place.
"""

from collections.abc import Mapping
from typing import Any

from services.gateway.parts.families import ToolFamily
from services.gateway.parts.tool_parsers import hermes, llama, mistral
from services.gateway.prompt.tools import Tool, ToolUse
from shared.grammar.source import json_term, literal
from shared.text.reasoning import ReasoningStart
from shared.text.reasoning_grammar import TEXT, ReasoningGrammar, joined

UNTIL_BRACE = r"PROSE: /[ \t\r\n]*[^{ \t\r\n](.|\n)*/"
"""text that does not begin as an object"""


class AnswerGrammar:
    """Writes the grammars of one model's answers."""

    def __init__(self, family: ToolFamily, single: Mapping[str, int]) -> None:
        """`single`: tags that are one token; all others are text."""
        self._family = family
        self._tags = ReasoningGrammar(single)

    def of(self, use: ToolUse, start: ReasoningStart, wanted: str) -> str:
        """The grammar of one answer; empty if it may be anything. `wanted`: what response_format
        asks for, a grammar of one rule."""
        if use.choice.mode == "required":
            return joined(self._tags.begin(start), "answer: calls", self._calls(use))
        answer = wanted.removeprefix("start: ")
        if answer and use.offered:
            rules = joined(self._tags.begin(start), self._calls(use))
            return f"{rules}\nanswer: ({answer}) | calls"
        if not answer and any(tool.strict for tool in use.offered):
            return joined(self._tags.begin(start), self._free_text(use), self._calls(use), TEXT)
        return self._tags.around(start, wanted)

    def _free_text(self, use: ToolUse) -> str:
        """The rule `answer`: any text, in which the family's tag can only begin calls."""
        if self._family.name == "llama":
            rules = joined("answer: calls | PROSE? | PROSE? tag calls", UNTIL_BRACE)
            return joined(rules, f"tag: {self._tags.term(llama.TAG)}")
        tag = hermes.OPEN if self._family.name == "hermes" else mistral.TAG
        rule = (
            "answer: TEXT | head call_rest"
            if not use.parallel
            else "answer: (head call_rest)* TEXT"
        )
        return joined(rule, self._tags.until("head", tag))

    def _calls(self, use: ToolUse) -> str:
        """The rules `calls` and `call_rest`, which is calls without the tag in front."""
        if self._family.name == "hermes":
            return self._hermes_calls(use)
        if self._family.name == "llama":
            return _list("calls", "object", "; ", use, _objects(use, "parameters"))
        return self._mistral_calls(use)

    def _hermes_calls(self, use: ToolUse) -> str:
        opening, closing = self._tags.term(hermes.OPEN), self._tags.term(hermes.CLOSE)
        return joined(
            _list("calls", "call", "\n", use, f"call: {opening} call_rest"),
            f"call_rest: {literal(chr(10))} object {literal(chr(10))} {closing}",
            _objects(use, "arguments"),
        )

    def _mistral_calls(self, use: ToolUse) -> str:
        tag = self._tags.term(mistral.TAG)
        if not self._family.named_arguments:
            items = _list("items", "object", ", ", use, _objects(use, "arguments"))
            rest = f"call_rest: {literal('[')} items {literal(']')}"
            return joined(f"calls: {tag} call_rest", rest, items)
        between = self._tags.term(mistral.ARGS)
        forms = [
            f"{literal(tool.name)} {between} {json_term(_schema(tool, use))}"
            for tool in use.callable
        ]
        many = "+" if use.parallel else ""
        return joined(f"calls: ({tag} call_rest){many}", f"call_rest: {' | '.join(forms)}")


def _objects(use: ToolUse, key: str) -> str:
    """The rule `object`: a call of one of the functions as a JSON object."""
    end = literal("}")
    forms = []
    for tool in use.callable:
        head = literal(f'{{"name": "{tool.name}", "{key}": ')
        forms.append(f"{head} {json_term(_schema(tool, use))} {end}")
    return f"object: {' | '.join(forms)}"


def _schema(tool: Tool, use: ToolUse) -> dict[str, Any]:
    """What the arguments must match: the schema, unless the model need neither call nor match."""
    if use.choice.mode == "auto" and not tool.strict:
        return {"type": "object"}
    return {**tool.parameters, "type": "object"}


def _list(name: str, item: str, between: str, use: ToolUse, item_rule: str) -> str:
    more = f" ({literal(between)} {item})*" if use.parallel else ""
    return joined(f"{name}: {item}{more}", item_rule)
