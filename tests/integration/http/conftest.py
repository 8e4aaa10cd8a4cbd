"""A gateway with a small byte-level model behind a real server, and a client for it."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from tokenizers import Tokenizer

from tests.integration.http.refusals import Refusals
from tests.support.fakes.served_app import ServedApp, serve_app
from tests.support.models.text_models import byte_level_tokenizer, write_text_model


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The event loop the gateway runs on: it has a half-close handling of its own."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return byte_level_tokenizer()


@pytest.fixture(scope="session")
def text_directory(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    return write_text_model(tmp_path_factory.mktemp("model"), tokenizer)


@pytest.fixture(scope="module")
async def running_app(
    text_directory: Path, tokenizer: Tokenizer, anyio_backend: object
) -> AsyncIterator[ServedApp]:
    async with serve_app(text_directory, tokenizer) as served:
        yield served


@pytest.fixture
async def app(running_app: ServedApp) -> AsyncIterator[ServedApp]:
    """The module's gateway with a door that has seen nothing yet."""
    await running_app.door.reset()
    running_app.answer("hello world")
    yield running_app
    await running_app.door.reset()


@pytest.fixture
async def client(app: ServedApp) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=app.url, timeout=20) as http:
        yield http


@pytest.fixture
def refusals(app: ServedApp, client: httpx.AsyncClient) -> Refusals:
    """Bad requests go through this: it checks what must hold after each of them."""
    return Refusals(app, client)
