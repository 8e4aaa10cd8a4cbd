"""The Kubernetes API server: calls that end in time, and errors that say what to do.

The official client is loaded when a connection is made, so what only decides runs without it. Its
types end here: callers give functions that read parsed JSON.
"""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, TypeVar

from services.autoscaler.kube.cluster import ClusterUnavailableError
from services.autoscaler.kube.rights import Use
from shared.errors import BatonError, MissingError

CONNECT_S, READ_S = 2.0, 3.0
"""together no more than a leader stops before its lease may be taken: what it sends while it leads
has arrived, or was given up, before another leads. What arrives later still, as from a process that
was stopped between asking whether it leads and writing, is refused by its version only"""

T = TypeVar("T")
Read = Callable[[Any, datetime], T]
"""makes a value of an answer's JSON and the API's clock; any mistake in it is the answer's"""


class AbsentError(ClusterUnavailableError):
    """There is no such object."""


class ConflictError(BatonError):
    """The object is not the one that was read, or is there already: nothing was written."""


class KubeApi:
    """A connection to the API server. Any thread may use it."""

    def __init__(
        self,
        kubeconfig: Path | None = None,
        *,
        connect_s: float = CONNECT_S,
        read_s: float = READ_S,
    ) -> None:
        """Of the cluster this process runs in, or of the one a file names.

        Raises MissingError if there is no client, no cluster or no such file.
        """
        try:
            import urllib3  # noqa: PLC0415
            from kubernetes import client, config  # noqa: PLC0415
        except ModuleNotFoundError as error:
            cure = "pip install 'baton-pd[autoscaler]'"
            raise MissingError(f"the autoscaler needs {error.name}: {cure}") from error
        self._timeouts_s = (connect_s, read_s)
        self._refusal: type[Any] = client.ApiException
        self._failures = (urllib3.exceptions.HTTPError, config.ConfigException, OSError)
        self._client: Any = client.ApiClient(_configuration(client, config, kubeconfig))
        self.apps: Any = client.AppsV1Api(self._client)
        self.core: Any = client.CoreV1Api(self._client)
        self.coordination: Any = client.CoordinationV1Api(self._client)

    def close(self) -> None:
        self._client.close()

    def ask(self, use: Use, call: Callable[..., Any], read: Read[T], **arguments: object) -> T:
        """One request, never repeated: what `read` makes of its answer.

        Raises AbsentError, ConflictError, or ClusterUnavailableError for everything else.
        """
        text, at = self._answer(use, call, arguments)
        try:
            return read(json.loads(text), at)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            said = f"the answer to {use} is not understood: {error!r}"
            raise ClusterUnavailableError(said) from error

    def _answer(
        self, use: Use, call: Callable[..., Any], arguments: Mapping[str, object]
    ) -> tuple[bytes, datetime]:
        """An answer's body, unparsed: the client's own classes refuse what a newer cluster may say
        and keep no header. And when it was given, by the API's clock if it says so."""
        try:
            response = call(**arguments, _preload_content=False, _request_timeout=self._timeouts_s)
            return response.data, _date(response.headers.get("Date"))
        except self._refusal as error:
            raise _refused(use, error.status, _words(error)) from error
        except self._failures as error:
            raise ClusterUnavailableError(f"cannot {use}: {error}") from error


def _configuration(client: Any, config: Any, kubeconfig: Path | None) -> Any:
    configuration = client.Configuration()
    try:
        if kubeconfig is None:
            config.load_incluster_config(configuration)
        else:
            config.load_kube_config(str(kubeconfig), client_configuration=configuration)
    except (config.ConfigException, OSError) as error:
        cure = "run it in a pod with a token of a ServiceAccount, or name a kubeconfig file"
        raise MissingError(f"no cluster: {error}; {cure}") from error
    # Its own retries would outlast the timeouts, and would send an order twice.
    configuration.retries = False
    return configuration


def _refused(use: Use, status: int, words: str) -> BatonError:
    text = f"cannot {use}: {words} ({status})"
    match status:
        case 401:
            return ClusterUnavailableError(f"{text}; the token is not accepted")
        case 403:
            return ClusterUnavailableError(f"{text}; the Role lacks {use.missing}")
        case 404:
            return AbsentError(text)
        case 409:
            return ConflictError(text)
    return ClusterUnavailableError(text)


def _words(error: Any) -> str:
    """What the API says of its refusal: the message of a Status, or else HTTP's reason."""
    try:
        return str(json.loads(error.body)["message"])
    except (LookupError, TypeError, ValueError):
        return str(error.reason)


def _date(header: str | None) -> datetime:
    try:
        return parsedate_to_datetime(header or "").astimezone(UTC)
    except ValueError:
        return datetime.now(UTC)
