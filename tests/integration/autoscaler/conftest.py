"""A fake API server that listens, and connections to it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.autoscaler.kube.api import KubeApi
from tests.support.fakes.kube_api import FakeKubeApi, serving, write_kubeconfig

Connect = Callable[..., KubeApi]


@pytest.fixture
def server() -> Iterator[FakeKubeApi]:
    with serving(FakeKubeApi()) as fake:
        yield fake


@pytest.fixture
def connect(server: FakeKubeApi, tmp_path: Path) -> Iterator[Connect]:
    """Makes connections, with the arguments of `KubeApi`, that are closed in the end."""
    made: list[KubeApi] = []

    def connection(token: str = "", read_s: float = 3.0) -> KubeApi:
        file = write_kubeconfig(tmp_path, server.port, *filter(None, [token]))
        made.append(KubeApi(file, read_s=read_s))
        return made[-1]

    yield connection
    for api in made:
        api.close()
