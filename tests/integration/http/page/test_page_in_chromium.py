"""The page in a real browser: what it shows, what it asks, and that it says when data stops.

The failure guarded: a script that the policy or a browser refuses, data that becomes markup, and
old numbers that look like new ones.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

import pytest

from services.gateway.owner.records.row import Row
from tests.integration.http.page.conftest import AdminPort
from tests.support.cases.live_body import MARKUP, objective
from tests.support.chromium import Page, browser

pytestmark = [pytest.mark.anyio, pytest.mark.needs_chromium]

T = TypeVar("T")
SHOWN = "document.getElementById('event-list')?.children.length > 0 && rowsText !== ''"
SLOW = Row(
    *("3f0c2a5e9b714c6f8f0d6f1f5a2b7c90", "", "t", "failed", "", "transfer_failed"),
    *(2_000_000, 131_072, 130_560, 4096, 12_900.0, 1500.0),
    *("baton-prefill-7c9d8f6b5-x2x9k", "baton-decode-5d4f7b9c8-q7w4z", 1),
)
STALE = "document.body.classList.contains('stale')"


@pytest.fixture
def tab() -> Iterator[Page]:
    with browser() as page:
        yield page


async def beside(work: Callable[[], T]) -> T:
    """In a thread: the gateway is served by this event loop."""
    return await asyncio.to_thread(work)


def open_at(tab: Page, admin: AdminPort, width: int = 1280, theme: str = "light") -> None:
    tab.look(width, 900, theme)
    tab.open(f"{admin.url}/ui")
    tab.wait_for(SHOWN)


async def test_it_shows_what_the_gateway_tells_and_asks_nobody_else(
    admin: AdminPort, tab: Page
) -> None:
    def look() -> None:
        open_at(tab, admin)
        text = tab.value("document.body.innerText")
        for shown in (
            *("98.7 %", "within 1 s · 99.9 % in the last hour", "100 %", "310 ms", "21 ms"),
            *("31k tokens to compute", "link 12 GB/s", "(2 times)"),
            "Autoscaler: prefill 2 → 3: 2 keep 97.1 % of first tokens within 1 s; "
            "decode stays at 3. Holds: a prefill worker starts.",
        ):
            assert shown in text, shown
        assert tab.value("document.querySelectorAll('.heat-row').length") == 3
        assert tab.value("document.querySelectorAll('#pairs path').length") == 6
        assert tab.value("document.querySelector('#rows a').href").endswith("/requests/r%2F1")

    await beside(look)
    assert tab.problems == []
    assert {url.partition("/ui")[0].partition("/v1/")[0] for url in tab.asked} == {admin.url}


async def test_receipts_are_asked_at_the_price_that_the_page_was_opened_with(
    admin: AdminPort, tab: Page
) -> None:
    """The list of requests knows no price, and would refuse it."""

    def look() -> None:
        tab.open(f"{admin.url}/ui?usd_per_gpu_hour=2.5")
        tab.wait_for(SHOWN)
        link = tab.value("document.querySelector('#rows a').href")
        assert link.endswith("/requests/r%2F1?usd_per_gpu_hour=2.5")

    await beside(look)
    assert tab.problems == []


async def test_names_that_are_markup_stay_text(admin: AdminPort, tab: Page) -> None:
    def look() -> None:
        open_at(tab, admin)
        assert tab.value("document.images.length") == 0
        for place in ("#model", "#decode-pool", "#lines", "#event-list", "#rows"):
            assert MARKUP in tab.value(f"document.querySelector('{place}').textContent"), place

    await beside(look)


async def test_a_change_is_shown_soon(admin: AdminPort, tab: Page) -> None:
    await beside(lambda: open_at(tab, admin))
    admin.door.live_body["last_minute"] |= {"refused": 4321}
    shown = "document.querySelector('.figures').textContent.includes('4,321')"
    await beside(lambda: tab.wait_for(shown, limit_s=5))
    assert await beside(lambda: tab.value("source !== null")), "it is told, and does not poll"


async def test_gaps_are_coloured_by_what_they_may_be(admin: AdminPort, tab: Page) -> None:
    admin.door.live_body["objectives"]["gap"] = objective(2.0, 94, 6)
    gaps = [None, 1.0, 1.1, 2.0, 2.1, 4.1, 10.1, 41.0]
    for worker in admin.door.live_body["workers"]:
        if "gaps_ms" in worker:
            worker["gaps_ms"] = gaps

    def look() -> None:
        open_at(tab, admin)
        rects = "[...document.querySelectorAll('.heat-row')[0].querySelectorAll('rect')]"
        colours = tab.value(f"{rects}.map((rect) => rect.getAttribute('class'))")
        assert colours == ["none", "h0", "h1", "h1", "h2", "h3", "h4", "h5"]
        legend = tab.value("at('legend').textContent")
        assert legend == "to 1 msto 2 msto 4 msto 10 msto 40 msmore"
        assert tab.value("document.querySelectorAll('.figure b')[1].className") == "bad"

    await beside(look)


async def test_old_data_is_marked_and_new_data_is_not(admin: AdminPort, tab: Page) -> None:
    await beside(lambda: open_at(tab, admin))
    admin.door.live_body, good = {"a set is no JSON": {1}}, admin.door.live_body
    await beside(lambda: tab.wait_for(STALE))
    assert "updated" in await beside(lambda: tab.value("at('age').textContent"))
    assert "No data" in await beside(lambda: tab.value("at('banner').innerText"))
    admin.door.live_body = good
    await beside(lambda: tab.wait_for(f"!{STALE}"))
    assert await beside(lambda: tab.value("at('banner').hidden"))


@pytest.mark.parametrize(
    ("met", "missed", "state", "mark"),
    [
        (0, 0, "ok", "good"),
        (990, 10, "ok", "good"),
        (98, 2, "trouble", "warn"),
        (1, 1, "ok", "good"),
        (9, 9, "ok", "good"),
        (10, 10, "trouble", "bad"),
    ],
)
async def test_the_headline_follows_what_users_get(
    admin: AdminPort, tab: Page, met: int, missed: int, state: str, mark: str
) -> None:
    """All workers are well, and nothing fails."""
    admin.door.live_body["objectives"]["ttft"] = objective(1000.0, met, missed)

    def look() -> None:
        open_at(tab, admin)
        told = [tab.value(f"at('state').{part}") for part in ("textContent", "className")]
        assert told == [state, mark]
        share = f"{100 * met / max(1, met + missed):g} % of first tokens within 1 s, "
        shown = (share if met else "") + "100 % of token gaps within 50 ms"
        assert tab.value("at('met').textContent") == shown

    await beside(look)


async def test_a_slow_request_says_what_it_was_slow_by(admin: AdminPort, tab: Page) -> None:
    slow = replace(SLOW, slow_because="long_neighbour", slow_because_ms=1500.0)
    admin.door.rows[:] = [slow, replace(SLOW, rid="r2", received_ns=1)]
    admin.door.receipts[slow.rid] = {
        "tenant": "t",
        "slow_because": "long_neighbour",
        "slow_because_ms": 1500.0,
        "slow_because_share": 0.125,
    }

    def look() -> None:
        open_at(tab, admin)
        cells = "[...document.querySelectorAll('#rows tr')].map((row) => row.children[6].innerText)"
        assert tab.value(cells) == ["long neighbour 1.5 s", "\N{EN DASH}"]
        tab.value("document.querySelector('#rows a').click()")
        tab.wait_for("!at('receipt-cause').hidden")
        told = tab.value("at('receipt-cause').textContent")
        assert told == "slow by long neighbour: 1.5 s, 12.5 % of its time"

    await beside(look)


@pytest.mark.parametrize("width", [390, 1280, 1500])
async def test_all_of_a_request_is_seen(admin: AdminPort, tab: Page, width: int) -> None:
    """Workers have the names of pods, and the line tells the most that it can."""
    crowded = replace(SLOW, num_attempts=2, slow_because="long_neighbour", slow_because_ms=1500.0)
    plain = replace(SLOW, rid="r", received_ns=1, state="done", finish_reason="length")
    admin.door.rows[:] = [crowded, replace(plain, code="", prefill="prefill-0", decode="decode-0")]

    def look() -> None:
        open_at(tab, admin, width)
        scroll = "document.querySelector('#requests .scroll')"
        assert tab.value(f"{scroll}.scrollWidth <= {scroll}.clientWidth")
        cells = "[...document.querySelectorAll('#rows td')]"
        right = f"Math.max(...{cells}.map((cell) => cell.getBoundingClientRect().right))"
        assert 0 < tab.value(right) <= width
        if width == 1280:
            assert tab.value("document.querySelectorAll('#rows tr')[1].clientHeight") < 40, "a line"

    await beside(look)


@pytest.mark.parametrize("width", [390, 1280])
async def test_it_fits_the_screen_in_both_themes(admin: AdminPort, tab: Page, width: int) -> None:
    def look() -> None:
        grounds = set()
        for theme in ("light", "dark"):
            open_at(tab, admin, width, theme)
            assert tab.value("document.documentElement.scrollWidth") <= width
            grounds.add(tab.value("getComputedStyle(document.body).backgroundColor"))
        tab.value("at('theme').click()")
        assert tab.value("getComputedStyle(document.body).backgroundColor") in grounds
        assert len(grounds) == 2

    await beside(look)
