"""The grammar of reasoning before an answer, and the rules that tags are written by."""

from collections.abc import Mapping, Sequence

from shared.grammar.source import literal
from shared.text.reasoning import CLOSE, OPEN, ReasoningStart

TEXT = r"TEXT: /(.|\n)*/"
NUM_LINES_AFTER_REASONING = 2


def single_tokens(added: Mapping[str, int], special: frozenset[str]) -> dict[str, int]:
    """Added tokens that a grammar can only mean by their id. For the grammar library these are
    the special ones and all with angle brackets around their names."""
    return {
        name: token_id
        for name, token_id in added.items()
        if name in special or (name.startswith("<") and name.endswith(">"))
    }


class ReasoningGrammar:
    """Writes rules for one model's tags."""

    def __init__(self, single: Mapping[str, int]) -> None:
        """`single`: tags that are one token; all others are text."""
        self._single = single

    def around(self, start: ReasoningStart, wanted: str) -> str:
        """`wanted`, a grammar of one rule, with reasoning before it as far as the answer has it;
        empty where that is."""
        if not wanted or start == "none":
            return wanted
        return f"{self.begin(start)}\nanswer: {wanted.removeprefix('start: ')}"

    def begin(self, start: ReasoningStart) -> str:
        """Reasoning as far as the answer has it, then the rule `answer`."""
        if start == "none":
            return "start: answer"
        opening = self.term(OPEN)
        gap = rf"GAP: /\n{{0,{NUM_LINES_AFTER_REASONING}}}/"
        thoughts = joined(self.until("thoughts", CLOSE), gap, TEXT)
        before = "thoughts GAP" if start == "open" else f"({opening} thoughts GAP)?"
        return joined(f"start: {before} answer", thoughts)

    def until(self, name: str, tag: str) -> str:
        """A rule: text up to the first place where the tag is, and the tag."""
        if tag in self._single:
            return f"{name}: TEXT {self.term(tag)}"
        return f"{name}[lazy]: TEXT {literal(tag)}"

    def term(self, tag: str) -> str:
        return f"<[{self._single[tag]}]>" if tag in self._single else literal(tag)


def joined(*rules: str) -> str:
    lines: Sequence[str] = [line for rule in rules for line in rule.splitlines()]
    return "\n".join(dict.fromkeys(lines))
