"""Messages to prompt ids such that nothing a client writes can become a special token.

Names of special tokens inside the messages get a mark, a private-use character found nowhere
else, after their first character. In the rendered text the unmarked names are then exactly the
template's own: they become ids, and the text between them is encoded as plain text once the
marks are out. Special tokens split text before anything else does, so for messages without such
names this is the ordinary encoding, and the ordinary call is made.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from services.gateway.chat_template import ChatTemplate
from services.gateway.messages import Message
from services.gateway.tokenizer import TextTokenizer

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

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True
    ) -> RenderedChat:
        mark = _unused_character(messages) if self._names_special(messages) else ""
        if mark:
            messages = [
                {name: self._marked(text, mark) for name, text in message.items()}
                for message in messages
            ]
        text = self._template.render(messages, add_generation_prompt=add_generation_prompt)
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

    def _names_special(self, messages: Sequence[Message]) -> bool:
        return any(self._special.search(text) for message in messages for text in message.values())

    def _marked(self, text: str, mark: str) -> str:
        """`text` with every special name broken; repeated, as names may overlap."""
        while self._special.search(text):
            text = self._special.sub(lambda found: found[0][:1] + mark + found[0][1:], text)
        return text


def _unused_character(messages: Sequence[Message]) -> str:
    used = {char for message in messages for text in message.values() for char in text}
    code = FIRST_MARK
    while chr(code) in used:
        code += 1
    return chr(code)
