"""A response as server-sent events, each with its number.

response.created and in_progress, then for each item that it is added, the pieces of its text, the
whole text and that it is done, then response.completed, incomplete or failed with all of it.
"""

from json.encoder import encode_basestring_ascii
from typing import Any

from services.gateway.answer.answer import Answer
from services.gateway.answer.choice import ChoiceText, Receipt, Usage
from services.gateway.answer.parted_text import taken_parts
from services.gateway.answer.responses.output import ItemKind, ItemStatus, ResponseOutput
from services.gateway.answer.responses.response_object import (
    Status,
    ended_status,
    response_object,
)
from services.gateway.answer.sse import COMMENT, compact
from services.gateway.http.errors import error_body
from services.gateway.parts.part import CallEnd, CallStart, Part
from shared.errors import BatonError


class ResponseStream:
    """The events of one response: the writer of its stream and of its only choice."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.text: ChoiceText = answer.texts[0]
        self.choices = (self,)
        self._output = ResponseOutput(self.text, answer.identity.rid)
        self._begun = False
        self._num_events = 0
        self._delta_head = ""
        """of the item that is open, up to the number"""

    def opening(self, usage: Usage | None) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        return self._told("created", "in_progress") + self._told("in_progress", "in_progress")

    def plain(self, shown: str) -> bytes:
        """Once per token, so text that goes on is quick."""
        item = self._output.open_item
        if shown and item is not None and item.kind == "message":
            item.pieces.append(shown)
            return self._delta(shown)
        opening = self.opening(None)
        return opening + b"".join(map(self._part, taken_parts(self.text, shown)))

    def events(self, shown: str, usage: Usage | None) -> bytes:
        return self.plain(shown)

    def last(self, shown: str, usage: Usage | None, receipt: Receipt | None = None) -> bytes:
        """A receipt is a member of the response."""
        more = {} if receipt is None else {"baton": receipt}
        text = self.plain(shown)
        status = ended_status(self._answer)
        done = self._done("incomplete" if status == "incomplete" else "completed")
        return text + done + self._told(status, status, **more)

    def idle(self) -> bytes:
        return COMMENT

    def ending(self, index: int, shown: str, receipt: Receipt | None) -> bytes:
        return self.last(shown, None, receipt)

    def failure(self, error: BatonError) -> bytes:
        """Readers want response.created before it."""
        told = error_body(error)["error"]
        self._output.close("incomplete")
        problem = {"code": told["code"], "message": told["message"]}
        return self.opening(None) + self._told("failed", "failed", error=problem)

    def _told(
        self, name: str, status: Status, error: dict[str, str] | None = None, **more: Any
    ) -> bytes:
        """How the response as a whole fares. What it repeats of the request may be long, so it
        is not read and written again."""
        response = response_object(self._answer, self._output, status, error)
        event = self._event(f"response.{name}", response={**response, **more})
        echo = self._answer.prepared.echo.encode("ascii")
        return b"%b,%b}\n\n" % (event.removesuffix(b"}}\n\n"), echo.removeprefix(b"{"))

    def _part(self, part: Part) -> bytes:
        if isinstance(part, CallEnd):
            return self._done("completed")
        opening = b""
        if self._output.begins(part):
            opening = self._done("completed")
            self._output.add(part)
            opening += self._added()
        else:
            self._output.add(part)
        return opening if isinstance(part, CallStart) else opening + self._delta(part.text)

    def _added(self) -> bytes:
        """The item that has just begun."""
        item = self._output.items[-1]
        place = self._place()
        name = f"response.{_TEXTS[item.kind]}.delta"
        self._delta_head = (
            f"event: {name}\ndata: {compact({'type': name, **self._texts_place()})[:-1]}"
        )
        index = place["output_index"]
        added = self._event("response.output_item.added", output_index=index, item=item.opened())
        if item.kind == "function_call":
            return added
        name = "response.content_part.added"
        return added + self._event(name, **place, content_index=0, part=item.part(""))

    def _delta(self, text: str) -> bytes:
        number, self._num_events = self._num_events, self._num_events + 1
        piece = encode_basestring_ascii(text)
        return f'{self._delta_head},"sequence_number":{number},"delta":{piece}}}\n\n'.encode(
            "ascii"
        )

    def _done(self, status: ItemStatus) -> bytes:
        """The open item with its whole text, if one is open."""
        item = self._output.open_item
        if item is None:
            return b""
        self._output.close(status)
        place, text = self._place(), item.text
        name = f"response.{_TEXTS[item.kind]}.done"
        if item.kind == "function_call":
            done = self._event(name, **place, arguments=text)
        else:
            done = self._event(name, **self._texts_place(), text=text)
            name = "response.content_part.done"
            done += self._event(name, **place, content_index=0, part=item.part(text))
        index = place["output_index"]
        return done + self._event(
            "response.output_item.done", output_index=index, item=item.shown()
        )

    def _place(self) -> dict[str, Any]:
        """Of the item that was added last."""
        items = self._output.items
        return {"item_id": items[-1].item_id, "output_index": len(items) - 1}

    def _texts_place(self) -> dict[str, Any]:
        """The same for its text."""
        match self._output.items[-1].kind:
            case "function_call":
                return self._place()
            case "reasoning":
                return {**self._place(), "content_index": 0}
            case "message":
                return {**self._place(), "content_index": 0, "logprobs": []}

    def _event(self, name: str, **fields: Any) -> bytes:
        number, self._num_events = self._num_events, self._num_events + 1
        body = compact({"type": name, "sequence_number": number, **fields})
        return f"event: {name}\ndata: {body}\n\n".encode("ascii")


_TEXTS: dict[ItemKind, str] = {
    "message": "output_text",
    "reasoning": "reasoning_text",
    "function_call": "function_call_arguments",
}
"""kind of an item -> what the events of its text are about"""
