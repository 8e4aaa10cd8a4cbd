"""Advice about a machine's memory holds where it is followed to the letter."""

import re

from hypothesis import example, given
from hypothesis import strategies as st

from shared.engine.loading.host_room import LESS, PROCESSES_BYTES, RankNeed, check_host_room
from shared.engine.loading.pool_size import GIB, MIB
from shared.errors import SettingsError
from shared.settings.groups import KVSettings

RANKS = st.lists(
    st.builds(RankNeed, st.integers(0, GIB), st.integers(1024, 8 * MIB)), min_size=1, max_size=4
)


@example(ranks=[RankNeed(0, 2_099_200)] * 2, room_bytes=4 * 2_099_200, blocks=0, num_workers=1)
@given(
    ranks=RANKS,
    room_bytes=st.integers(-GIB, GIB) | st.integers(0, 64 * MIB),
    blocks=st.sampled_from([0, 10**9]),
    num_workers=st.integers(1, 3),
)
def test_what_is_said_to_fit_does(
    ranks: list[RankNeed], room_bytes: int, blocks: int, num_workers: int
) -> None:
    weights_bytes = sum(rank.weights_bytes for rank in ranks)
    free_bytes = max(0, weights_bytes + num_workers * PROCESSES_BYTES + room_bytes)
    said = refusal(ranks, KVSettings(blocks=blocks, memory_mib=10**6), free_bytes, num_workers)
    found = re.search(r"--(kv-blocks|kv-memory-mib) (\d+) fits", said)
    if found is None:
        assert LESS in said
        return
    number = int(found[2])
    kv = KVSettings(blocks=number) if found[1] == "kv-blocks" else KVSettings(memory_mib=number)
    check_host_room(ranks, kv, free_bytes, num_workers)


def refusal(ranks: list[RankNeed], kv: KVSettings, free_bytes: int, num_workers: int) -> str:
    try:
        check_host_room(ranks, kv, free_bytes, num_workers)
    except SettingsError as error:
        return str(error)
    raise AssertionError("a million MiB fit")
