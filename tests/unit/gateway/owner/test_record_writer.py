"""A client never waits for a record that will not come."""

import asyncio

import pytest

from services.gateway.owner.records import record_writer
from services.gateway.owner.records.record_writer import RecordWriter
from shared.loops import Loops
from shared.state.memory_records import MemoryGatewayLiveness, MemoryRequestRecords
from shared.state.records import Admission, AdmittedRequest, KeyTaken, Outcome, RequestState
from tests.support.fakes.manual_clock import ManualClock
from tests.unit.gateway.owner.gateway_bench import FlakyRecords, settle, until

pytestmark = pytest.mark.anyio


class BrokenRecords(MemoryRequestRecords):
    """Answers ADMIT with what no version of the script says."""

    async def admit(self, request: AdmittedRequest, max_live: int = 0) -> Admission:
        raise ValueError("'what' is not a valid Admission")


async def test_an_answer_nobody_expected_is_an_unknown_outcome(
    caplog: pytest.LogCaptureFixture,
) -> None:
    writer = RecordWriter(BrokenRecords(MemoryGatewayLiveness(), ManualClock()))
    answers: list[Admission | KeyTaken | None] = []
    writer.admit(AdmittedRequest("r", "g", "t", "p", 1, 1), answers.append)
    await settle()
    assert answers == [None]
    assert "background task failed" in caplog.text
    await asyncio.wait_for(writer.close(), 1)


async def test_an_outage_costs_the_oldest_outcomes_and_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(record_writer, "MAX_UNWRITTEN", 2)
    records, loops = FlakyRecords(ManualClock()), Loops()
    writer = RecordWriter(records)
    writer.start(loops)
    requests = {rid: AdmittedRequest(rid, "g", "t", "p", 1, 1) for rid in ("a", "b", "c")}
    for request in requests.values():
        await records.admit(request)
    records.away = True
    for request in requests.values():
        writer.finish(request, Outcome(RequestState.DONE, "stop", 1, 0), lambda: None)
    await until(lambda: writer.num_dropped == 1)
    assert writer.num_unwritten == 2
    records.away = False
    await until(lambda: writer.num_unwritten == 0)
    ended = {rid: await records.read(rid) for rid in requests}
    states = {rid: record.state for rid, record in ended.items() if record is not None}
    assert states == {"a": RequestState.LIVE, "b": RequestState.DONE, "c": RequestState.DONE}
    await writer.close()
    await loops.close()
