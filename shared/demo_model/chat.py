"""How a conversation becomes the text that the model reads.

The same form is written twice: as a Jinja template, which is exported with the checkpoint and
used by every server, and as `render`, which the recipe uses for a million documents. A test
keeps the two equal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
"""in the order of their token ids: 0, 1, 2"""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


class Message(TypedDict):
    """One turn of a conversation, as the chat endpoint takes it."""

    role: str
    content: str


@dataclass(frozen=True)
class Exchange:
    """A question and the one answer the model shall learn."""

    question: str
    answer: str


@dataclass(frozen=True)
class Segment:
    """A run of text in a document; the loss counts only where `trained` is true."""

    text: str
    trained: bool


Document = tuple[Segment, ...]


def render(messages: Sequence[Message]) -> str:
    """The text of a conversation up to the point where the assistant answers."""
    turns = [f"{TURN_START}{m['role']}\n{m['content']}{TURN_END}\n" for m in messages]
    return "".join(turns) + f"{TURN_START}assistant\n"


def question(text: str) -> list[Message]:
    """A conversation of one user turn."""
    return [{"role": "user", "content": text}]


def conversation(exchanges: Sequence[Exchange], system: str = "") -> Document:
    """A conversation as a document that trains the assistant's turns and their ends."""
    segments: list[Segment] = []
    lead = f"{TURN_START}system\n{system}{TURN_END}\n" if system else ""
    for exchange in exchanges:
        prompt = render(question(exchange.question))
        segments.append(Segment(lead + prompt, trained=False))
        segments.append(Segment(exchange.answer + TURN_END, trained=True))
        lead = "\n"
    return tuple(segments)


def plain_text(text: str) -> Document:
    """A text without turns, for the plain completion endpoint."""
    return (Segment(text + END_OF_TEXT, trained=True),)
