"""A client never waits for a record that will not come."""

import asyncio

import pytest

from services.gateway.owner.record_writer import RecordWriter
from shared.clock import ManualClock
from shared.state.memory_records import MemoryGatewayLiveness, MemoryRequestRecords
from shared.state.records import Admission, AdmittedRequest
from tests.unit.gateway.owner.gateway_bench import settle

pytestmark = pytest.mark.anyio


class BrokenRecords(MemoryRequestRecords):
    """Answers ADMIT with what no version of the script says."""

    async def admit(self, request: AdmittedRequest, max_live: int = 0) -> Admission:
        raise ValueError("'what' is not a valid Admission")


async def test_an_answer_nobody_expected_is_an_unknown_outcome(
    caplog: pytest.LogCaptureFixture,
) -> None:
    writer = RecordWriter(BrokenRecords(MemoryGatewayLiveness(), ManualClock()))
    answers: list[Admission | None] = []
    writer.admit(AdmittedRequest("r", "g", "t", "p", 1, 1), answers.append)
    await settle()
    assert answers == [None]
    assert "background task failed" in caplog.text
    await asyncio.wait_for(writer.close(), 1)
