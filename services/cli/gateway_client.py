"""A small client of the gateway's HTTP API, made of the standard library."""

import http.client
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, urlsplit

from services.cli.cluster.run_file import admin_url_here, records_here
from services.cli.event_reader import DONE, EventReader
from shared.errors import BatonError, NoGatewayError, SettingsError

DEFAULT_URL = "http://127.0.0.1:8000"
URL_VARIABLE = "BATON_URL"
KEY_VARIABLE = "BATON_API_KEY"
READ_BYTES = 64 * 1024


def gateway_url(given: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """The flag, else $BATON_URL, else the default; without the `/v1` that OpenAI clients want."""
    url = given or environ.get(URL_VARIABLE) or DEFAULT_URL
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def found_url(given: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """The same; where neither names one, and `baton up` runs one cell here, that cell's."""
    if given or environ.get(URL_VARIABLE):
        return gateway_url(given, environ)
    records = records_here()
    return records[0].url if len(records) == 1 else DEFAULT_URL


def told_url(given: str | None) -> str:
    """The same; the error output says so where it is of that cell."""
    url = found_url(given)
    if url != gateway_url(given):
        sys.stderr.write(f"of the only cell that `baton up` runs here, {url}\n")
    return url


class NoSuchPathError(BatonError):
    """The port does not have what was asked for."""


class ChatStream:
    """The pieces of one streamed answer; iterate once. `request_id` is known from the start."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response
        self._reader = EventReader()
        self.request_id = response.headers.get("x-request-id", "")
        self.finish_reason: str | None = None

    def __iter__(self) -> Iterator[str]:
        """BatonError when the stream carries an error or ends before its end."""
        for event in self._events():
            if "error" in event:
                raise BatonError(_error_text(event))
            for choice in event.get("choices", ()):
                self.finish_reason = choice.get("finish_reason") or self.finish_reason
                text = choice.get("delta", {}).get("content")
                if text:
                    yield text

    def _events(self) -> Iterator[dict[str, Any]]:
        try:
            while received := self._response.read1(READ_BYTES):
                for content in self._reader.feed(received):
                    if content == DONE:
                        return
                    yield json.loads(content)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise BatonError(f"the answer broke off: {error}") from error
        raise BatonError("the answer ended before it was complete")


@dataclass(frozen=True)
class Reply:
    """Any answer, whole."""

    status: int
    content: bytes
    request_id: str
    retry_after_s: float | None
    """None where it does not say"""

    @property
    def error_text(self) -> str:
        return _error_text(_decode(self.content))


class GatewayClient:
    """Talks to one gateway. NoGatewayError when nothing answers at its URL."""

    def __init__(self, url: str, timeout_s: float = 300.0) -> None:
        parts = urlsplit(url)
        try:
            well_formed = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # a port that is none
            well_formed = False
        if not well_formed:
            raise SettingsError(f"{url!r} is not a URL like {DEFAULT_URL}")
        self.url = url
        self._parts = parts
        self._timeout_s = timeout_s

    def status(self, model: str = "") -> dict[str, Any]:
        """Of one model; of the first where none is named."""
        return self._get("/v1/baton/status" + (f"?model={quote(model, safe='')}" if model else ""))

    def models(self) -> list[str]:
        """Their names; NoGatewayError when nothing answers."""
        return [str(model["id"]) for model in self._get("/v1/models").get("data") or ()]

    def post(self, path: str, content: bytes, headers: Mapping[str, str]) -> Reply:
        """Whatever is answered; NoGatewayError also where the answer broke off."""
        with self._request("POST", path, content, headers) as response:
            try:
                whole = response.read()
            except (OSError, http.client.HTTPException) as error:
                raise NoGatewayError(f"the answer of {self.url} broke off: {error}") from error
            told = response.headers
            waits = told.get("retry-after", "")
            return Reply(
                response.status,
                whole,
                told.get("x-request-id", ""),
                float(waits) if waits.isascii() and waits.isdigit() else None,
            )

    def receipt(self, request_id: str) -> dict[str, Any]:
        """What is known of one finished request: stages, workers, bytes."""
        return self._get(f"/v1/baton/requests/{quote(request_id, safe='')}")

    def last_requests(self, limit: int) -> list[dict[str, Any]]:
        """A line for each, the newest first."""
        rows: list[dict[str, Any]] = self._get(f"/v1/baton/requests?limit={limit}")["requests"]
        return rows

    def ready(self) -> bool:
        """Whether a chat request would be served now."""
        try:
            return self.readiness()[0]
        except NoGatewayError:
            return False

    def readiness(self) -> tuple[bool, dict[str, Any]]:
        """The same, and what the gateway says of it."""
        with self._request("GET", "/ready") as response:
            body = _decode(response.read())
            return response.status == 200 and bool(body.get("serves", True)), body

    @contextmanager
    def chat(self, messages: Sequence[Mapping[str, str]], **fields: object) -> Iterator[ChatStream]:
        """One streamed chat answer; leaving the block early cancels it."""
        body = {"model": self._model(), "messages": list(messages), "stream": True, **fields}
        with self._request("POST", "/v1/chat/completions", body) as response:
            if response.status != 200:
                raise BatonError(_error_text(_decode(response.read())))
            yield ChatStream(response)

    def _model(self) -> str:
        return next(iter(self.models()), "default")

    def _get(self, path: str) -> dict[str, Any]:
        """What the port does not have, the admin port of a cell that runs here may have."""
        try:
            return self._got(path)
        except NoSuchPathError:
            admin_url = admin_url_here(self.url)
            if not admin_url:
                raise
            return GatewayClient(admin_url, self._timeout_s)._got(path)

    def _got(self, path: str) -> dict[str, Any]:
        with self._request("GET", path) as response:
            body = _decode(response.read())
            if response.status == 404 and _error_text(body).startswith("no such path"):
                raise NoSuchPathError(
                    f"{self.url} has no {path}; the gateway's admin port may have it: name that "
                    f"with --url, or with {URL_VARIABLE} (--admin-port sets it, and the gateway's "
                    "log says it)"
                )
            if response.status != 200:
                raise BatonError(f"{self.url}{path}: {response.status} {_error_text(body)}")
            return body

    @contextmanager
    def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | bytes | None = None,
        more_headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Iterator[http.client.HTTPResponse]:
        secure = self._parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        assert self._parts.hostname is not None
        connection = kind(self._parts.hostname, self._parts.port, timeout=self._timeout_s)
        try:
            content = json.dumps(body).encode() if isinstance(body, Mapping) else body
            headers = {"content-type": "application/json"} if content else {}
            headers |= more_headers
            if key := os.environ.get(KEY_VARIABLE):
                headers["authorization"] = f"Bearer {key}"
            try:
                connection.request(method, self._parts.path + path, content, headers)
                response = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                text = f"no gateway answers at {self.url} ({error}); {_advice()}"
                raise NoGatewayError(text) from error
            with response:  # it holds the socket open after the connection is closed
                yield response
        finally:
            connection.close()


def _decode(content: bytes) -> dict[str, Any]:
    try:
        body = json.loads(content)
    except ValueError:
        body = None
    return body if isinstance(body, dict) else {"error": {"message": "not a Baton gateway"}}


def _error_text(body: Mapping[str, Any]) -> str:
    error = body.get("error")
    if isinstance(error, dict):
        return str(error.get("message") or error)
    return str(error or body)


def _advice() -> str:
    """What to do when nothing answers: name what this user runs here."""
    urls = [record.url for record in records_here()]
    if not urls:
        return "start one with `baton up`"
    return f"running here: {', '.join(urls)} (name it with --url or {URL_VARIABLE})"
