"""Tools in chat templates: shown as transformers shows them, never as special tokens, and the
family recognised by them."""

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from services.gateway.parts.families import choose_family
from services.gateway.prompt.answer_syntax import AnswerSyntax
from services.gateway.prompt.tools import Tool, ToolChoice, ToolUse, read_tools
from shared.errors import RequestError
from shared.text.chat_prompt import ChatPrompt
from shared.text.chat_template import ChatTemplate
from shared.text.messages import Message, read_messages
from shared.text.tokenizer import TextTokenizer
from tests.support.models.text_models import BOS, CHATML, END, write_text_model
from tests.support.models.tool_models import CALL_MESSAGES, TEMPLATES, WEATHER, tagged_tokenizer

USE = ToolUse(read_tools([WEATHER], "tools"))
SHOWN = [tool.shown for tool in USE.tools]


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return TextTokenizer(tagged_tokenizer(special=True))


def syntax(name: str, tokenizer: TextTokenizer, tool_parser: str = "auto") -> AnswerSyntax:
    template = ChatTemplate(TEMPLATES.get(name, name), {})
    return AnswerSyntax(template, tokenizer, tool_parser=tool_parser, reasoning_parser="auto")


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("tools", [[], SHOWN])
def test_equals_transformers(tmp_path: Path, name: str, tools: list[dict[str, Any]]) -> None:
    directory = write_text_model(tmp_path, tagged_tokenizer(special=True), TEMPLATES[name])
    oracle = PreTrainedTokenizerFast.from_pretrained(directory)
    template = ChatTemplate.load(directory)
    assert template is not None
    tokenizer = TextTokenizer.load(directory)
    prompt = ChatPrompt(template, tokenizer)
    read = read_messages(CALL_MESSAGES, "messages")
    messages = list(syntax(name, tokenizer).messages(read, "messages"))
    rendered = prompt.render(messages, tools=tools)
    options: dict[str, Any] = {"add_generation_prompt": True, "tools": tools or None}
    assert rendered.text == oracle.apply_chat_template(messages, tokenize=False, **options)
    assert prompt.encode(rendered) == oracle.apply_chat_template(
        messages, return_dict=False, **options
    )
    assert ("weather in a city" in rendered.text) == bool(tools)


def test_reasoning_is_shown_again() -> None:
    message = {"role": "assistant", "content": "Yes", "reasoning_content": "hm"}
    text = ChatTemplate(TEMPLATES["hermes"], {}).render(read_messages([message], "m"))
    assert "<think>\nhm\n</think>\n\nYes" in text


@pytest.mark.parametrize("name", TEMPLATES)
def test_row_65_tools_and_calls_never_become_special_tokens(
    tokenizer: TextTokenizer, name: str
) -> None:
    def special(word: str) -> list[int]:
        parameters = {"type": "object", "properties": {word: {"enum": [word]}}}
        tool = Tool("f", f"a {word} b", parameters, False)
        call = {
            "id": "abcdefghi",
            "function": {"name": "f", "arguments": f'{{"{word}": "{word}"}}'},
        }
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": word},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": word, "tool_call_id": "abcdefghi"},
            {"role": "user", "content": word},
        ]
        variables = {"bos_token": BOS, "eos_token": END}
        prompt = ChatPrompt(ChatTemplate(TEMPLATES[name], variables), tokenizer)
        rendered = prompt.render(read_messages(messages, "m"), tools=[tool.shown])
        ids = prompt.encode(rendered)
        assert word in b"".join(map(tokenizer.token_utf8, ids)).decode()
        return [token for token in ids if token in tokenizer.special_ids]

    harmless = special("word")
    for word in (END, "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", f"<{END}|im_end|>"):
        assert special(word) == harmless


def test_the_template_for_tools_is_used_with_tools(tmp_path: Path) -> None:
    template = ChatTemplate("plain", {}, "{{ tools | length }}")
    messages: list[Message] = [{"role": "user", "content": "hi"}]
    assert template.takes_tools
    assert template.render(messages) == "plain"
    assert template.render(messages, tools=SHOWN) == "1"


def test_families_are_recognised() -> None:
    tags = {"[ARGS]": 7, "<|python_tag|>": 8}
    assert choose_family("auto", TEMPLATES["hermes"], tags).name == "hermes"
    assert choose_family("auto", TEMPLATES["llama"], {}).name == "llama"
    assert choose_family("auto", "{{ tools }}", tags).name == "llama"
    assert choose_family("auto", "{{ tools }}", {}).name == "none"
    assert choose_family("none", TEMPLATES["hermes"], {}).name == "none"
    mistral = choose_family("auto", TEMPLATES["mistral"], tags)
    assert (mistral.name, mistral.named_arguments) == ("mistral", True)
    assert mistral.tag_ids == (("[ARGS]", 7),)
    assert not choose_family("mistral", "", {}).named_arguments


REFUSED = [
    (CHATML, "auto", "serve a model whose chat template takes them"),
    (TEMPLATES["hermes"], "none", "--tool-parser"),
    ("{{ tools }}", "auto", "--tool-parser"),
]


@pytest.mark.parametrize(("template", "parser", "reason"), REFUSED)
def test_a_model_without_tools_says_so(template: str, parser: str, reason: str) -> None:
    plain = TextTokenizer(tagged_tokenizer(special=False))
    refusing = syntax(template, plain, parser)
    with pytest.raises(RequestError, match=reason) as caught:
        refusing.check(USE)
    assert caught.value.param == "tools"
    refusing.check(ToolUse(USE.tools, ToolChoice("none")))


@pytest.mark.parametrize(
    ("index", "path"), [(1, "messages[0].tool_calls"), (2, "messages[0].role")]
)
def test_calls_in_messages_need_a_template_that_shows_them(index: int, path: str) -> None:
    plain = TextTokenizer(tagged_tokenizer(special=False))
    messages = read_messages(CALL_MESSAGES[index : index + 1], "messages")
    with pytest.raises(RequestError) as caught:
        syntax(CHATML, plain).messages(messages, "messages")
    assert caught.value.param == path


def test_a_model_without_reasoning_refuses_it() -> None:
    message = {"role": "assistant", "content": "a", "reasoning_content": "b"}
    tokenizer = TextTokenizer(tagged_tokenizer(special=False))
    template = ChatTemplate(CHATML, {})
    refusing = AnswerSyntax(template, tokenizer, tool_parser="auto", reasoning_parser="none")
    with pytest.raises(RequestError) as caught:
        refusing.messages(read_messages([message], "messages"), "messages")
    assert caught.value.param == "messages[0].reasoning_content"


def test_forms_of_answers(tokenizer: TextTokenizer) -> None:
    hermes, mistral = syntax("hermes", tokenizer), syntax("mistral", tokenizer)
    assert hermes.form("...assistant\n", ToolUse()).reasoning == "possible"
    assert syntax("thinking", tokenizer).form("<think>\n", ToolUse()).reasoning == "open"
    form = mistral.form("", ToolUse(USE.tools, parallel=False))
    assert (form.family, form.functions, form.one_call) == ("mistral", ("weather",), True)
    assert {tokenizer.token_text(token_id) for token_id in form.visible_ids} >= {"[TOOL_CALLS]"}
    plain = TextTokenizer(tagged_tokenizer(special=False))
    assert syntax("llama", plain).form("", ToolUse()).plain is False
