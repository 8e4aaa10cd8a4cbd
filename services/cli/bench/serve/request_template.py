"""What all requests to one endpoint have in common."""

import json
from collections.abc import Mapping
from typing import Any

from services.cli.bench.serve.endpoint import Endpoint


class RequestTemplate:
    """Put together once, so that a request costs no more than a copy of its prompt."""

    def __init__(self, endpoint: Endpoint, fields: Mapping[str, Any]) -> None:
        """`fields`: of the body, besides the prompt and the length; None leaves one out."""
        head = [
            f"POST {endpoint.path} HTTP/1.1",
            *(f"{k}: {v}" for k, v in endpoint.headers.items()),
        ]
        self._head = "\r\n".join([*head, "content-length: "]).encode()
        self._begin = b'{"messages":' if endpoint.kind == "chat" else b'{"prompt":'
        given = {name: json.dumps(value) for name, value in fields.items() if value is not None}
        self._end = "".join(f',"{name}":{value}' for name, value in given.items()).encode() + b"}"

    def wire(self, prompt: bytes, num_output: int) -> bytes:
        """The request for a prompt, given as JSON, as it goes onto the wire."""
        end = b',"max_tokens":%d%s' % (num_output, self._end)
        num_bytes = len(self._begin) + len(prompt) + len(end)
        return b"".join((self._head, b"%d\r\n\r\n" % num_bytes, self._begin, prompt, end))
