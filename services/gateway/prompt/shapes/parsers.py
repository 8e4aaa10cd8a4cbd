"""Which API reads a body how: each makes the same request of it."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, Protocol

from services.gateway.prompt.request_fields import ParsedRequest, parse_request
from services.gateway.prompt.shapes.messages import parse_messages
from services.gateway.prompt.shapes.responses import parse_responses

Api = Literal["chat", "text", "messages", "responses"]
"""an endpoint of clients that generates"""


class Parser(Protocol):
    """Reads the body of one API."""

    def __call__(self, body: Mapping[str, Any], *, refuse_unknown: bool) -> ParsedRequest:
        """RequestError names every bad field; with `refuse_unknown` also those nobody knows."""


PARSERS: dict[Api, Parser] = {
    "chat": partial(parse_request, endpoint="chat"),
    "text": partial(parse_request, endpoint="text"),
    "messages": parse_messages,
    "responses": parse_responses,
}
