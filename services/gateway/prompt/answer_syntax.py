"""How one model writes reasoning and tool calls: what its requests may hold, what its answers
are split into, and which grammar keeps them in shape."""

from collections.abc import Sequence

from services.gateway.parts.families import choose_family
from services.gateway.parts.parser import AnswerForm
from services.gateway.prompt.call_ids import with_template_ids
from services.gateway.prompt.tool_grammar import AnswerGrammar
from services.gateway.prompt.tools import ToolUse
from shared.errors import RequestError
from shared.text.chat_template import ChatTemplate
from shared.text.messages import Message, check_usable
from shared.text.reasoning import (
    CLOSE,
    OPEN,
    ReasoningStart,
    choose_reasoning,
    reasoning_start,
)
from shared.text.reasoning_grammar import single_tokens
from shared.text.tokenizer import TextTokenizer

TOOL_WORD = "tool"
"""in a template that can show earlier calls and their results"""
REASONING_FIELD = "reasoning_content"


class AnswerSyntax:
    """One per model."""

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: TextTokenizer,
        *,
        tool_parser: str,
        reasoning_parser: str,
    ) -> None:
        """`tool_parser`, `reasoning_parser`: the settings of these names."""
        special = tokenizer.special_tokens
        self._takes_tools = template.takes_tools
        self._shows_tools = template.mentions(TOOL_WORD)
        self._family = choose_family(tool_parser, template.source, special)
        names = frozenset(tokenizer.added_tokens)
        self._reasoning = choose_reasoning(reasoning_parser, template.source, names)
        self._shows_reasoning = self._reasoning != "none" or template.mentions(REASONING_FIELD)
        self._reasoning_ids = tuple(special[tag] for tag in (OPEN, CLOSE) if tag in special)
        self._grammar = AnswerGrammar(
            self._family, single_tokens(tokenizer.added_tokens, frozenset(special))
        )

    def messages(
        self, messages: Sequence[Message], param: str, places: Sequence[str] = ()
    ) -> Sequence[Message]:
        """The messages as the template takes them; RequestError if it cannot show them."""
        tools, reasoning = self._shows_tools, self._shows_reasoning
        check_usable(messages, param, places, tools=tools, reasoning=reasoning)
        return with_template_ids(messages, self._family.name)

    def check(self, use: ToolUse) -> None:
        """RequestError if this model cannot be offered tools."""
        if not use.offered:
            return
        if not self._takes_tools:
            reason = (
                "the model's chat template does not mention tools; "
                "serve a model whose chat template takes them (see services/gateway/README.md)"
            )
        elif self._family.name == "none":
            reason = "the syntax of this model's tool calls is not known (--tool-parser)"
        else:
            return
        raise RequestError(f"tools: {reason}", code="unsupported_parameter", param="tools")

    def form(self, prompt: str, use: ToolUse) -> AnswerForm:
        """What the answer to a rendered prompt is split into."""
        visible: tuple[int, ...] = ()
        start: ReasoningStart = "none"
        if self._reasoning == "think":
            start = reasoning_start(prompt)
            visible += self._reasoning_ids
        if use.callable:
            visible += tuple(token_id for _, token_id in self._family.tag_ids)
        return AnswerForm(
            family=self._family.name,
            functions=tuple(tool.name for tool in use.callable),
            one_call=not use.parallel,
            reasoning=start,
            visible_ids=visible,
        )

    def grammar(self, use: ToolUse, start: ReasoningStart, wanted: str) -> str:
        """The answer's grammar, where `wanted` is what response_format asks for."""
        return self._grammar.of(use, start, wanted)
