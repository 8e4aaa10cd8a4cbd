"""What is under load: where it is, and what it says of itself before the run."""

import http.client
import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit

from services.cli.bench.serve.client.answer_account import error_of_body
from services.cli.cluster.run_file import admin_url_here
from services.cli.gateway_client import DEFAULT_URL
from shared.errors import BatonError, NoGatewayError, SettingsError

EndpointKind = Literal["completions", "chat"]
TIMEOUT_S = 10.0
STATUS = "/v1/baton/status"
SAMPLE_TEXT = (
    "The quick brown fox jumps over the lazy dog while seven young sailors carry bread, lamps and "
    "green glass along the old stone wall; nobody asked why the music stopped at night. In winter "
    "every train was late, and people told each other stories about rivers, mountains, horses, "
    "paper boats and a garden behind the last house of the village. What could be better?"
)
"""its tokens are ordinary ones in any vocabulary"""
MIN_SAMPLE_IDS = 32


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server, as flags name it."""

    url: str
    kind: EndpointKind = "completions"
    api_key: str = field(default="", repr=False)
    model: str | None = None
    """None: the first that it lists"""
    name: str = ""
    """in tables and JSON lines; empty where there is only one"""
    flag: str = "--url"
    """what named it"""
    usd_per_gpu_hour: float = 0.0
    """0: what answers cost is not asked"""

    def __post_init__(self) -> None:
        if self.parts.scheme not in ("http", "https") or not self.parts.hostname:
            raise SettingsError(f"{self.flag} {self.url!r}: not a URL like {DEFAULT_URL}")

    @property
    def flag_prefix(self) -> str:
        """Of the flags that say more about it."""
        return "--" if self.flag == "--url" else f"{self.flag}-"

    @property
    def parts(self) -> SplitResult:
        return urlsplit(self.url.rstrip("/").removesuffix("/v1"))

    @property
    def host(self) -> str:
        assert self.parts.hostname is not None
        return self.parts.hostname

    @property
    def secure(self) -> bool:
        return self.parts.scheme == "https"

    @property
    def port(self) -> int:
        return self.parts.port or (443 if self.secure else 80)

    @property
    def path(self) -> str:
        """Where requests go."""
        name = "chat/completions" if self.kind == "chat" else "completions"
        return f"{self.parts.path}/v1/{name}"

    @property
    def tls(self) -> ssl.SSLContext | None:
        return ssl.create_default_context() if self.secure else None

    @property
    def headers(self) -> dict[str, str]:
        """Of every request."""
        own = {"host": self.parts.netloc, "content-type": "application/json"}
        key = {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return own | key | ({"x-baton-receipt": "1"} if self.usd_per_gpu_hour else {})

    def ask(self, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
        """Status and JSON of a small request outside the run; NoGatewayError when nothing
        answers."""
        kind = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
        connection = kind(self.host, self.port, timeout=TIMEOUT_S)
        method, content = ("GET", None) if body is None else ("POST", json.dumps(body))
        try:
            connection.request(method, self.parts.path + path, content, self.headers)
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            cure = f"start it, or name another with {self.flag}"
            raise NoGatewayError(f"nothing answers at {self.url} ({error}); {cure}") from error
        finally:
            connection.close()
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        return response.status, value if isinstance(value, dict) else {}

    def status(self) -> dict[str, Any]:
        """Baton's own, of a cell that runs here from its admin port where this one has none; empty
        elsewhere. NoGatewayError when nothing answers."""
        code, status = self.ask(STATUS)
        if code == HTTPStatus.NOT_FOUND and (admin_url := admin_url_here(self.url)):
            code, status = replace(self, url=admin_url, api_key="").ask(STATUS)
        return status if code == HTTPStatus.OK and "workers" in status else {}


@dataclass(frozen=True)
class EndpointFacts:
    """What an endpoint told."""

    model: str
    max_model_len: int | None
    version: str
    num_prefill_servers: int | None
    """Baton only: workers that compute prompts"""
    status: Mapping[str, Any]
    """Baton's own status; empty elsewhere"""
    served: tuple[str, ...] = ()
    """the models that it lists"""

    @property
    def model_doubt(self) -> str:
        """What to add to a failure: the model may not be there at all."""
        if not self.served or self.model in self.served:
            return ""
        return f"; it lists no model {self.model!r}, but {', '.join(self.served)}"

    def record(self, endpoint: Endpoint) -> dict[str, Any]:
        """What JSON lines say of it, after the run; holds no key."""
        return {
            "name": endpoint.name or None,
            "url": endpoint.url,
            "path": endpoint.path,
            "model": self.model,
            "max_model_len": self.max_model_len,
            "version": self.version,
            "status": self.status or None,
            "status_after": _status(endpoint) or None,
        }


def look_up(endpoint: Endpoint) -> EndpointFacts:
    """Asks for models, version and workers. BatonError when it lists none and none is named."""
    cards = _model_cards(endpoint)
    card = _chosen(endpoint, cards)
    _, version = endpoint.ask("/version")
    baton = _status(endpoint)
    return EndpointFacts(
        model=str(card["id"]),
        max_model_len=card.get("max_model_len"),
        version=str(version.get("version", "unknown")),
        num_prefill_servers=_prefill_servers(baton),
        status=baton,
        served=tuple(str(one["id"]) for one in cards if "id" in one),
    )


def _status(endpoint: Endpoint) -> dict[str, Any]:
    """Empty also where nothing answers: a run that is over is not lost."""
    try:
        return endpoint.status()
    except NoGatewayError:
        return {}


def ordinary_ids(endpoint: Endpoint, facts: EndpointFacts) -> list[int] | None:
    """Token ids of plain text, if the endpoint has a tokenizer to ask. BatonError with its own
    words when it does not know the model."""
    code, answer = endpoint.ask("/tokenize", {"model": facts.model, "prompt": SAMPLE_TEXT})
    if code != 200 and facts.model_doubt:
        said = error_of_body(json.dumps(answer).encode())
        raise BatonError(f"{endpoint.url}/tokenize answered {code}: {said}{facts.model_doubt}")
    ids = answer.get("tokens")
    if code != 200 or not isinstance(ids, list):
        return None
    distinct = sorted({one for one in ids if isinstance(one, int)})
    return distinct if len(distinct) >= MIN_SAMPLE_IDS else None


def _model_cards(endpoint: Endpoint) -> list[dict[str, Any]]:
    code, answer = endpoint.ask("/v1/models")
    if code in (401, 403):
        env, file = (f"{endpoint.flag_prefix}api-key-{kind}" for kind in ("env", "file"))
        raise SettingsError(f"{endpoint.url} wants an API key: {env} or {file}")
    cards = answer.get("data")
    return [one for one in cards if isinstance(one, dict)] if isinstance(cards, list) else []


def _chosen(endpoint: Endpoint, cards: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if endpoint.model is None:
        if not cards:
            cure = f"name one with {endpoint.flag_prefix}model"
            raise BatonError(f"{endpoint.url}/v1/models lists no model; {cure}")
        return cards[0]
    named = (card for card in cards if card.get("id") == endpoint.model)
    return next(named, {"id": endpoint.model})


def _prefill_servers(status: Mapping[str, Any]) -> int | None:
    roles = [worker.get("role") for worker in status.get("workers", ())]
    return roles.count("prefill") or roles.count("decode") or None
