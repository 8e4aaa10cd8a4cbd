"""The messages of a chat that a body of another shape means."""

from dataclasses import dataclass

from shared.errors import RequestError
from shared.text.messages import MAX_MESSAGES, Message


@dataclass(frozen=True)
class Turns:
    """The messages, and what the client calls the place of each."""

    messages: tuple[Message, ...]
    places: tuple[str, ...]

    @classmethod
    def of(cls, turns: list[tuple[Message, str]], param: str) -> "Turns":
        """RequestError if there are more than a chat may have."""
        if len(turns) > MAX_MESSAGES:
            raise RequestError(
                f"{param}: more than {MAX_MESSAGES} messages and results of tools",
                code="too_many_messages",
                param=param,
            )
        return cls(tuple(message for message, _ in turns), tuple(place for _, place in turns))

    def after_system(self, content: str, place: str) -> "Turns":
        """The same with a system message before them, if it says anything."""
        if not content:
            return self
        first: Message = {"role": "system", "content": content}
        return Turns((first, *self.messages), (place, *self.places))
