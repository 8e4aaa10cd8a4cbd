"""The picture of a request's trace."""

import copy
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cli.trace.waterfall import BAR_WIDTH, Ink, render_waterfall

RECEIPT = {
    "prompt_tokens": 17,
    "handover_overlapped_ms": 25.0,
    "stages": [
        {"name": "decode", "pid": 30, "start_ns": 60000000, "end_ns": 100000000, "attributes": {}},
        {"name": "queue", "pid": 10, "start_ns": 0, "end_ns": 10000000},
        {
            "name": "prefill",
            "pid": 20,
            "worker": "prefill-0",
            "start_ns": 10000000,
            "end_ns": 55000000,
            "attributes": {
                "baton.prefill.chunks": 2,
                "baton.prefill.tokens": 17,
                "something.unknown": 1,
            },
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


def bars(text: str) -> dict[str, str]:
    """Stage -> its bar; the bar column begins where the scale does."""
    head, *rows = text.splitlines()
    at = head.index("0 ms")
    return {row[:9].strip(): row[at:] for row in rows[: rows.index("")] if len(row) > at}


def test_stages_in_order_with_pids_ms_and_their_share() -> None:
    head, *rows = render_waterfall(RECEIPT).splitlines()
    assert head.split() == [
        "stage",
        "pid",
        "process",
        "start",
        "ms",
        "adds",
        "0",
        "ms",
        "100",
        "ms",
    ]
    facts = [re.split(r"  +", row)[:6] for row in rows[:4]]
    assert facts[0][:5] == ["queue", "10", "0.0", "10.0", "10.0"]
    assert facts[1] == ["prefill", "20", "prefill-0", "10.0", "45.0", "45.0"]
    assert facts[2][:5] == ["hand-over", "30", "30.0", "30.0", "5.0"]
    assert facts[3][:5] == ["decode", "30", "60.0", "40.0", "40.0"]
    assert rows[4].split() == ["total", "100.0"]
    path = "critical path: queue 10.0 + prefill 45.0 + hand-over 5.0 + decode 40.0 = 100.0 ms"
    assert rows[-1] == path


def test_bars_lie_on_one_axis_and_what_overlapped_is_light() -> None:
    drawn = bars(render_waterfall(RECEIPT))
    assert drawn["queue"].rstrip() == "#" * 4
    assert drawn["prefill"].rstrip() == " " * 4 + "#" * 18
    assert drawn["hand-over"].rstrip() == " " * 12 + "-" * 10 + "#" * 2
    assert drawn["decode"].rstrip() == " " * 24 + "#" * 16


@pytest.mark.parametrize(
    ("transport", "way"), [("tcp", "over tcp"), ("mapped", "from mapped memory")]
)
def test_the_way_of_the_blocks_is_told(transport: str, way: str) -> None:
    stages = copy.deepcopy(RECEIPT["stages"])
    told = {"baton.kv_transfer.transport": transport, "baton.kv_transfer.busy_ms": 0.002}
    stages[-1]["attributes"].update(told)  # type: ignore[index]
    text = render_waterfall({**RECEIPT, "stages": stages})
    assert f"in 7 blocks {way} at 2.05 GB/s; 25.0 ms" in text


def test_of_an_answer_that_is_being_written_no_speed_is_told() -> None:
    decode = {"name": "decode", "pid": 30, "start_ns": 60000000, "end_ns": 60000000}
    stage = {**decode, "attributes": {"baton.decode.tokens": 1}}
    text = render_waterfall({**RECEIPT, "stages": [stage]})
    assert "\ndecode     is writing the rest of the answer\n" in text


def test_each_stage_is_explained_in_a_few_words() -> None:
    text = render_waterfall(RECEIPT)
    assert "\nprefill    computed 17 tokens in 2 chunks; gave token 1\n" in text
    moved = "decode pulled 4 kB of KV cache in 7 blocks; 25.0 ms of it (-) while prefill still ran"
    assert f"\nhand-over  {moved}\n" in text


def test_a_long_decode_runs_off_the_axis_so_that_the_rest_is_seen() -> None:
    stages = [
        {"name": "prefill", "start_ns": 0, "end_ns": 30000000},
        {"name": "decode", "start_ns": 30000000, "end_ns": 5000000000},
    ]
    drawn = bars(render_waterfall({"stages": stages}, Ink()))
    assert drawn["prefill"].count("█") == 24
    assert drawn["decode"].endswith("▶")
    assert len(drawn["decode"]) == BAR_WIDTH


def test_of_several_attempts_the_last_adds() -> None:
    stages = [
        {"name": "prefill", "start_ns": 0, "end_ns": 5000000, "epoch": 0},
        {"name": "prefill", "start_ns": 9000000, "end_ns": 12000000, "epoch": 1},
    ]
    path = {"earlier_attempts": 7.0, "prefill": 3.0}
    text = render_waterfall({"stages": stages, "critical_path_ms": path})
    first, last = [re.split(r"  +", row) for row in text.splitlines()[1:3]]
    assert "3.0" not in first
    assert last[1:4] == ["9.0", "3.0", "3.0"]
    assert text.endswith("critical path: earlier attempts 7.0 + prefill 3.0 = 10.0 ms\n")


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
    width=st.integers(20, 120),
    start_ns=st.floats(0, 1e12),
    worker=st.sampled_from(["decode-0", "prefill-of-a-long-name-12"]),
)
def test_no_line_is_wider_than_the_terminal(width: int, start_ns: float, worker: str) -> None:
    span = {"pid": 4194304, "worker": worker, "start_ns": start_ns, "end_ns": start_ns + 5e8}
    names = ("read", "queue", "prefill", "kv_transfer", "decode")
    receipt = {**RECEIPT, "stages": [{"name": name, **span} for name in names]}
    rows = render_waterfall(receipt, width=width).splitlines()
    assert max(map(len, rows)) <= width
    assert all(rows[place].startswith(name) for place, name in enumerate(names[:3], 1))
    assert "#" in rows[3]


def test_at_60_columns_the_times_stay_and_the_processes_go() -> None:
    head, *rows = render_waterfall(RECEIPT, width=60).splitlines()
    assert head.split() == ["stage", "pid", "start", "ms", "adds", "0", "ms", "100", "ms"]
    assert rows[1].split() == ["prefill", "20", "10.0", "45.0", "45.0", "#" * 11]
    assert "prefill    computed 17 tokens in 2 chunks; gave token 1" in rows


@given(
    spans=st.lists(
        st.tuples(st.floats(0, 1e7), st.floats(0, 1e7)).map(sorted), min_size=1, max_size=6
    ),
    name=st.sampled_from(["s", "kv_transfer", "decode"]),
    overlapped_ms=st.floats(0, 20),
)
def test_every_bar_is_visible_and_on_the_axis(
    spans: list[list[float]], name: str, overlapped_ms: float
) -> None:
    stages = [{"name": name, "start_ns": start, "end_ns": end} for start, end in spans]
    receipt = {"stages": stages, "handover_overlapped_ms": overlapped_ms}
    text = render_waterfall(receipt)
    at = text.index("0 ms")
    rows = text.splitlines()[1 : 1 + len(spans)]
    assert all(row[:at].count("#") == 0 for row in rows)
    assert all(1 <= len(row[at:].strip()) <= len(row[at:]) <= BAR_WIDTH for row in rows)
