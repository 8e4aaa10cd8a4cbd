"""Which models reason before they answer, where a prompt leaves them, and the grammar of that."""

from shared.text.reasoning import choose_reasoning, reasoning_start
from shared.text.reasoning_grammar import ReasoningGrammar


def test_which_models_reason() -> None:
    tags = frozenset({"<think>", "</think>"})
    assert choose_reasoning("auto", "{{ x.split('</think>') }}", frozenset()) == "think"
    assert choose_reasoning("auto", "", tags) == "think"
    assert choose_reasoning("auto", "", frozenset({"<think>"})) == "none"
    assert choose_reasoning("none", "</think>", tags) == "none"
    assert choose_reasoning("think", "", frozenset()) == "think"
    assert reasoning_start("...assistant\n<think>\n") == "open"
    assert reasoning_start("...assistant\n") == "possible"
    assert reasoning_start("...assistant\n<think>\n\n</think>\n\n") == "none"


def test_a_grammar_rules_what_comes_after_reasoning() -> None:
    tags = ReasoningGrammar({"<think>": 7, "</think>": 8})
    assert tags.around("none", "start: /a/") == "start: /a/"
    assert tags.around("possible", "") == ""
    assert tags.around("possible", "start: /a/").startswith("start: (<[7]> thoughts GAP)? answer\n")
    assert tags.around("open", "start: /a/").startswith("start: thoughts GAP answer\n")
    assert tags.around("open", "start: /a/").endswith("\nanswer: /a/")
