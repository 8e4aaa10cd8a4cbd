"""A wire in front of what stands in for a worker."""

from collections.abc import AsyncIterator

import pytest

from services.cli.chaos.wires.wire import Wire
from tests.support.pairs.wired_pair import wired


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    async with wired("link") as made:
        yield made
