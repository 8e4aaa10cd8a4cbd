"""A response as one object."""

import json
from typing import Any

from services.gateway.answer.answer import Answer
from services.gateway.answer.parted_text import taken_parts
from services.gateway.answer.responses.output import ResponseOutput
from services.gateway.answer.responses.response_object import ended_status, response_object


class ResponseBody:
    """Collects the items of the only choice until it has ended."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._output = ResponseOutput(answer.texts[0], answer.identity.rid)

    def add(self, index: int, shown: str) -> None:
        for part in taken_parts(self._answer.texts[index], shown):
            self._output.add(part)

    def body(self) -> dict[str, Any]:
        status = ended_status(self._answer)
        self._output.close("incomplete" if status == "incomplete" else "completed")
        echo: dict[str, Any] = json.loads(self._answer.prepared.echo)
        return response_object(self._answer, self._output, status) | echo
