"""Grammars of tool calls: they let through what the parsers understand, and nothing else."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from services.gateway.parts.families import FamilyName, choose_family
from services.gateway.prompt.tool_grammar import AnswerGrammar
from services.gateway.prompt.tools import Mode, Tool, ToolChoice, ToolUse
from shared.errors import GrammarError
from shared.grammar.ebnf import to_lark
from shared.grammar.matcher import GrammarVocabulary
from shared.grammar.source import choice, json_schema, lark, regex
from shared.text.reasoning import ReasoningStart
from shared.text.reasoning_grammar import single_tokens
from tests.support.models.text_models import END, write_text_model
from tests.support.models.tool_models import tagged_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "integer"}},
    "required": ["x"],
    "additionalProperties": False,
}
NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
Accepts = Callable[[str, str], bool]


class Vocabulary:
    """A tokenizer with every family's tags, and the grammars over it."""

    def __init__(self, directory: Path, tokenizer: Tokenizer) -> None:
        write_text_model(directory, tokenizer)
        eos = tokenizer.token_to_id(END)
        self._tokenizer = tokenizer
        assert eos is not None
        self._grammars = GrammarVocabulary.load(directory, tokenizer.get_vocab_size(), [eos])
        added = tokenizer.get_added_tokens_decoder()
        self.special = {token.content: at for at, token in added.items() if token.special}
        names = {token.content: at for at, token in added.items()}
        self._single = single_tokens(names, frozenset(self.special))

    def grammar(self, family: FamilyName, source: str = "") -> AnswerGrammar:
        return AnswerGrammar(choose_family(family, source, self.special), self._single)

    def accepts(self, grammar: str, text: str) -> bool:
        """Whether `text` is a whole output."""
        matcher = self._grammars.compile(grammar)
        try:
            for token_id in self._tokenizer.encode(text, add_special_tokens=False).ids:
                matcher.accept(token_id)
        except GrammarError:
            return False
        return matcher.is_complete


@pytest.fixture(scope="module", params=[False, True], ids=["text", "special"])
def vocabulary(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Vocabulary:
    directory = tmp_path_factory.mktemp("grammar")
    return Vocabulary(directory, tagged_tokenizer(special=request.param))


def use(
    mode: Mode = "required", *, strict: bool = False, parallel: bool = True, name: str = ""
) -> ToolUse:
    tools = (Tool("f", None, SCHEMA, strict), Tool("g", "d", NO_ARGUMENTS, False))
    return ToolUse(tools, ToolChoice(mode, name), parallel)


F = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
G = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
BAD = F.replace("1", '"a"')
HERMES: list[tuple[ToolUse, ReasoningStart, str, bool]] = [
    (use(), "none", F, True),
    (use(), "none", f"{F}\n{G}", True),
    (use(parallel=False), "none", F, True),
    (use(parallel=False), "none", f"{F}\n{G}", False),
    (use(), "none", f"hi {F}", False),
    (use(), "none", BAD, False),
    (use(), "none", "", False),
    (use(name="g"), "none", F, False),
    (use(name="g"), "none", G, True),
    (use(), "open", f"hm</think>\n\n{F}", True),
    (use(), "open", F, False),
    (use(), "possible", f"<think>\nhm\n</think>\n\n{F}", True),
    (use(), "possible", F, True),
    (use("auto", strict=True), "none", "hello", True),
    (use("auto", strict=True), "none", f"hi\n{F}\n{G} ok", True),
    (use("auto", strict=True), "none", f"hi\n{BAD}", False),
    (use("auto", strict=True, parallel=False), "none", f"hi\n{F}", True),
    (use("auto", strict=True, parallel=False), "none", "hi", True),
    (use("auto", strict=True), "possible", f"<think>hm</think>hi{F}", True),
    (use("auto", strict=True), "possible", "hi", True),
]


@pytest.mark.parametrize(("tools", "start", "text", "expected"), HERMES)
def test_hermes(
    vocabulary: Vocabulary, tools: ToolUse, start: ReasoningStart, text: str, expected: bool
) -> None:
    grammar = vocabulary.grammar("hermes").of(tools, start, "")
    assert vocabulary.accepts(grammar, text) is expected


L = '{"name": "f", "parameters": {"x": 1}}'
LLAMA = [
    (use(), L, True),
    (use(), f"{L}; {L}", True),
    (use(parallel=False), f"{L}; {L}", False),
    (use("auto", strict=True), "hello {", True),
    (use("auto", strict=True), "", True),
    (use("auto", strict=True), L, True),
    (use("auto", strict=True), f"hi<|python_tag|>{L}", True),
    (use("auto", strict=True), f"<|python_tag|>{L}", True),
    (use("auto", strict=True), '{"name": "f", "parameters": {"x": "a"}}', False),
]


@pytest.mark.parametrize(("tools", "text", "expected"), LLAMA)
def test_llama(vocabulary: Vocabulary, tools: ToolUse, text: str, expected: bool) -> None:
    assert vocabulary.accepts(vocabulary.grammar("llama").of(tools, "none", ""), text) is expected


LISTED = '[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]'
NAMED = '[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g[ARGS]{}'


@pytest.mark.parametrize(("form", "text"), [("[TOOL_CALLS]", LISTED), ("[ARGS]", NAMED)])
def test_mistral(vocabulary: Vocabulary, form: str, text: str) -> None:
    mistral = vocabulary.grammar("mistral", form)
    if form not in vocabulary.special and form == "[TOOL_CALLS]":
        assert vocabulary.accepts(mistral.of(use(), "none", ""), text)
    named = form == "[ARGS]" or "[ARGS]" in vocabulary.special
    text = NAMED if named else LISTED
    assert vocabulary.accepts(mistral.of(use(), "none", ""), text)
    assert not vocabulary.accepts(mistral.of(use(parallel=False), "none", ""), text)
    strict = mistral.of(use("auto", strict=True), "none", "")
    assert vocabulary.accepts(strict, f"hi{text}")
    assert vocabulary.accepts(strict, "hi")
    assert not vocabulary.accepts(strict, "hi" + text.replace("1", '"a"'))


def test_response_format_beside_tools_and_behind_reasoning(vocabulary: Vocabulary) -> None:
    hermes, wanted = vocabulary.grammar("hermes"), json_schema(SCHEMA)
    either = hermes.of(use("auto"), "none", wanted)
    assert vocabulary.accepts(either, '{"x": 3}')
    assert vocabulary.accepts(either, G)
    assert not vocabulary.accepts(either, "hi")
    behind = hermes.of(ToolUse(), "open", wanted)
    assert vocabulary.accepts(behind, 'so {"y": 1}</think>\n{"x": 3}')
    assert not vocabulary.accepts(behind, '{"x": 3}')


GBNF = 'root ::= a b\na ::= "x" | "1" "2"*\nb ::= "y" | "1" "2"*\n'
GUIDED = {
    "lark": (lark(to_lark(GBNF)), "121", "124"),
    "regex": (regex("a/b|c"), "a/b", "a"),
    "choice": (choice(["yes", "no"]), "no", "maybe"),
}


@pytest.mark.parametrize("name", GUIDED)
def test_other_grammars_beside_tools_and_behind_reasoning(
    vocabulary: Vocabulary, name: str
) -> None:
    """A grammar of several lines stays whole, those included that stand in it twice."""
    hermes, (wanted, good, bad) = vocabulary.grammar("hermes"), GUIDED[name]
    either = hermes.of(use("auto"), "none", wanted)
    behind = hermes.of(ToolUse(), "open", wanted)
    possible = hermes.of(use("auto"), "possible", wanted)
    for grammar, before in ((either, ""), (behind, "so</think>\n"), (possible, "<think>a</think>")):
        assert vocabulary.accepts(grammar, before + good)
        assert not vocabulary.accepts(grammar, before + bad)
    assert vocabulary.accepts(either, G)


def test_where_no_grammar_is_needed_there_is_none(vocabulary: Vocabulary) -> None:
    hermes = vocabulary.grammar("hermes")
    assert hermes.of(ToolUse(), "possible", "") == ""
    assert hermes.of(use("auto"), "possible", "") == ""
    assert hermes.of(use("none", strict=True), "none", "") == ""
    assert hermes.of(ToolUse(), "none", json_schema(True)) == json_schema(True)
