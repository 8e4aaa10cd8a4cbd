"""The picture of a request's trace."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.waterfall import BAR_WIDTH, render_waterfall

RECEIPT = {
    "stages": [
        {"name": "decode", "pid": 30, "start_ns": 60000000, "end_ns": 100000000, "attributes": {}},
        {"name": "queue", "pid": 10, "start_ns": 0, "end_ns": 10000000},
        {
            "name": "prefill",
            "pid": 20,
            "start_ns": 10000000,
            "end_ns": 55000000,
            "attributes": {"baton.prefill.chunks": 2, "something.unknown": 1},
        },
        {
            "name": "kv_transfer",
            "pid": 30,
            "start_ns": 30000000,
            "end_ns": 60000000,
            "attributes": {"baton.kv_transfer.blocks": 7, "baton.kv_transfer.bytes": 4096},
        },
    ],
    "critical_path_ms": {
        "queue": 10.0,
        "prefill": 45.0,
        "handover": 5.0,
        "decode": 40.0,
        "total": 100.0,
    },
}


def test_stages_in_order_with_pids_ms_and_bars() -> None:
    head, *rows, path = render_waterfall(RECEIPT, "#").splitlines()
    assert head.split() == ["stage", "pid", "start", "ms"]
    assert [row.split()[:4] for row in rows] == [
        ["queue", "10", "0.0", "10.0"],
        ["prefill", "20", "10.0", "45.0"],
        ["hand-over", "30", "30.0", "30.0"],
        ["decode", "30", "60.0", "40.0"],
    ]
    assert [row.count("#") for row in rows] == [4, 18, 12, 16]
    assert len({row.index("#") for row in rows}) == 4
    assert rows[1].endswith("2 chunk(s)")
    assert rows[2].endswith("7 blocks, 4096 bytes")
    assert (
        path == "critical path: queue 10.0 + prefill 45.0 + hand-over 5.0 + decode 40.0 = 100.0 ms"
    )


@pytest.mark.parametrize(
    "receipt",
    [
        {},
        {"stages": None},
        {"stages": ["?", {"name": "queue"}, {"name": "x", "start_ns": 2000000, "end_ns": 1000000}]},
        {"stages": [], "critical_path_ms": {"queue": 1.0}},
    ],
)
def test_receipt_without_measured_stages_is_no_picture(receipt: dict[str, object]) -> None:
    assert render_waterfall(receipt) == ""


@given(
    spans=st.lists(
        st.tuples(st.floats(0, 1e7), st.floats(0, 1e7)).map(sorted), min_size=1, max_size=6
    )
)
def test_every_bar_is_visible_and_on_the_axis(spans: list[list[float]]) -> None:
    stages = [{"name": "s", "start_ns": start, "end_ns": end} for start, end in spans]
    rows = render_waterfall({"stages": stages}, "#").splitlines()[1:]
    assert len(rows) == len(spans)
    assert all(1 <= row.count("#") <= BAR_WIDTH for row in rows)
