"""What was recorded of each attempt: read once it is final, or long after its end."""

import math
import random
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.cli.chaos import ledger as ledger_module
from services.cli.chaos.asks import Ask
from services.cli.chaos.attempt import Attempt
from services.cli.chaos.cell import Cell
from services.cli.chaos.ledger import Ledger, Record
from services.cli.chaos.load import Asked, Load
from shared.errors import StateUnavailableError

pytestmark = pytest.mark.anyio


class Store:
    """Redis, as far as it is asked."""

    def __init__(self) -> None:
        self.records: dict[str, list[bytes]] = {}
        self.away = False

    async def command(self, *words: str) -> list[bytes | None]:
        if self.away:
            raise StateUnavailableError("away")
        rid = words[1].rpartition(":")[2]
        return list(self.records.get(rid, [None, None, None]))


def attempt(rid: str = "r1", status: int = 200) -> Attempt:
    now_s = time.monotonic()
    return Attempt(0, now_s, status, rid, end_s=now_s)


def made(*attempts: Attempt) -> tuple[Ledger, Store, Any]:
    store = Store()
    cell: Any = SimpleNamespace(state=store, data_losses_s=[], gateways_lived_s=lambda: math.inf)
    load = Load([], "m", random.Random(1))  # noqa: S311
    load.ended += attempts
    return Ledger(cast(Cell, cell), load), store, cell


async def test_a_record_is_waited_for_until_it_is_final() -> None:
    ledger, store, _ = made(attempt())
    for state in (b"live", b"abandoned"):
        store.records["r1"] = [state, b"3", b"1"]
        await ledger.read()
        assert not ledger.records
    store.records["r1"] = [b"done", b"8", b"2"]
    await ledger.read()
    assert ledger.records == {"r1": Record("done", 8, 2)}
    assert ledger.records["r1"].num_billed == 8  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("recorded", "found"),
    [([], None), ([b"live", b"3", b"1"], Record("live", 3, 1))],
)
async def test_long_after_its_end_what_is_there_counts(
    recorded: list[bytes], found: Record | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "PATIENCE_S", 0.0)
    ledger, store, _ = made(attempt())
    if recorded:
        store.records["r1"] = recorded
    await ledger.read()
    assert ledger.records == {"r1": found}


async def test_a_refused_request_need_have_no_record_but_may_not_be_billed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ledger_module, "PATIENCE_S", 0.0)
    ledger, store, _ = made(attempt("r2", 503), attempt("r3", 503), attempt("", 0))
    store.records["r3"] = [b"done", b"8", b"1"]
    await ledger.read()
    assert ledger.records == {"r3": Record("done", 8, 1)}


async def test_of_what_redis_forgot_nothing_is_said() -> None:
    first, last = attempt("r1"), attempt("r2")
    ledger, store, cell = made(first, last)
    cell.data_losses_s.append(first.sent_s + 1e-9)
    last.sent_s = last.end_s = first.sent_s + 1.0
    store.records["r2"] = [b"done", b"8", b"1"]
    await ledger.read()
    assert ledger.records == {"r2": Record("done", 8, 1)}
    asked = Asked(Ask((1,), 8, None), "key", [first, last])
    ledger.records["r1"] = Record("cancelled", 3, 1)
    assert ledger.of(asked) == {"r2": Record("done", 8, 1)}, "the key was forgotten too"
    cell.data_losses_s.clear()
    assert set(ledger.of(asked)) == {"r1", "r2"}


async def test_settling_ends_also_without_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "EVERY_S", 0.01)
    ledger, store, _ = made(attempt())
    store.records["r1"] = [b"done", b"8", b"1"]
    store.away = True
    assert not await ledger.settle(0.05)
    store.away = False
    assert await ledger.settle(1.0)


async def test_a_record_is_waited_for_while_no_gateway_has_lived_for_long() -> None:
    """Each gateway knows for how long others were silent only from its own start on."""
    old = attempt()
    old.end_s -= 10 * ledger_module.PATIENCE_S
    ledger, store, cell = made(old)
    store.records["r1"] = [b"live", b"3", b"1"]
    cell.gateways_lived_s = lambda: ledger_module.PATIENCE_S / 2
    await ledger.read()
    assert not ledger.records
    cell.gateways_lived_s = lambda: 2 * ledger_module.PATIENCE_S
    await ledger.read()
    assert ledger.records == {"r1": Record("live", 3, 1)}
