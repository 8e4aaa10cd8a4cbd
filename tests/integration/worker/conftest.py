"""Real workers of a tiny model, which end with their test."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.models.tiny_model import TINY, write_checkpoint
from tests.support.pairs.worker_process import WorkerProcess

Serve = Callable[..., WorkerProcess]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("model")
    write_checkpoint(path, TINY)
    return path


@pytest.fixture
def serve(tmp_path: Path, redis_url: str, model: Path) -> Iterator[Serve]:
    """Starts workers that end with the test."""
    started: list[WorkerProcess] = []

    def start(role: str = "decode", **flags: object) -> WorkerProcess:
        given: dict[str, Any] = {"model": model, "redis": redis_url, "kv_blocks": 64, **flags}
        started.append(WorkerProcess(tmp_path, role, **given))
        return started[-1]

    yield start
    for worker in started:
        worker.kill()
