"""Messages to prompt ids such that nothing a client writes can become a special token.

Names of special tokens inside messages, tools and values get a mark, a private-use character found
nowhere else, after their first character. In the rendered text the unmarked names are then exactly
the template's own: they become ids, and the text between them is encoded as plain text once the
marks are out. Special tokens split text before anything else does, so for messages without such
names this is the ordinary encoding, and the ordinary call is made.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shared.text.chat_template import ChatTemplate
from shared.text.messages import Message
from shared.text.tokenizer import TextTokenizer

FIRST_MARK = 0xF0000
"""start of a Unicode plane that nobody assigns characters in"""


@dataclass(frozen=True)
class RenderedChat:
    """The prompt text, and the mark in it; no mark where no message names a special token."""

    text: str
    mark: str = ""


class ChatPrompt:
    """Renders and encodes; one per model."""

    def __init__(self, template: ChatTemplate, tokenizer: TextTokenizer) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._special = tokenizer.special_pattern

    @property
    def names(self) -> frozenset[str]:
        """The variables that the template looks at."""
        return self._template.names

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[dict[str, Any]] = (),
        add_generation_prompt: bool = True,
        values: Mapping[str, Any] | None = None,
        param: str = "messages",
    ) -> RenderedChat:
        """`values`: what else the template gets to see; `param`: what the client calls the
        messages."""
        mark, values = "", dict(values or {})
        if any(self._special.search(text) for text in _strings([messages, tools, values])):
            mark = _unused_character(_strings([messages, tools, values]))
            messages = [self._marked(message, mark) for message in messages]
            tools = [self._marked(tool, mark) for tool in tools]
            values = {name: self._marked(value, mark) for name, value in values.items()}
        text = self._template.render(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            values=values,
            param=param,
        )
        return RenderedChat(text, mark)

    def encode(self, chat: RenderedChat) -> list[int]:
        if chat.mark:
            return self._encode_apart(chat)
        ids = self._tokenizer.encode(chat.text)
        num_named = len(self._special.findall(chat.text))
        if num_named == sum(token in self._tokenizer.named_ids for token in ids):
            return ids
        return self._encode_apart(chat)

    def _encode_apart(self, chat: RenderedChat) -> list[int]:
        """The template's special tokens by id, everything else as plain text."""
        ids: list[int] = []
        end = 0
        for found in self._special.finditer(chat.text):
            ids += self._plain(chat.text[end : found.start()], chat.mark)
            ids.append(self._tokenizer.special_tokens[found.group()])
            end = found.end()
        return ids + self._plain(chat.text[end:], chat.mark)

    def _plain(self, text: str, mark: str) -> list[int]:
        text = text.replace(mark, "") if mark else text
        return self._tokenizer.encode_as_plain_text(text) if text else []

    def _marked(self, value: Any, mark: str) -> Any:
        """`value` with every special name in its strings broken; repeated, as names may overlap."""
        if isinstance(value, dict):
            return {
                self._marked(name, mark): self._marked(item, mark) for name, item in value.items()
            }
        if isinstance(value, list):
            return [self._marked(item, mark) for item in value]
        while isinstance(value, str) and self._special.search(value):
            value = self._special.sub(lambda found: found[0][:1] + mark + found[0][1:], value)
        return value


def _strings(value: Any) -> Iterator[str]:
    """Every string in a JSON value, the keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _unused_character(texts: Iterable[str]) -> str:
    used = {char for text in texts for char in text}
    code = FIRST_MARK
    while chr(code) in used:
        code += 1
    return chr(code)
