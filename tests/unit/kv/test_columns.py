"""Columns on the wire: one length whatever their values, and nothing else is a column."""

import numpy as np
import pytest

from shared.kv.columns import pack_ids, pack_words, unpack_ids, unpack_words


def test_columns_survive_and_have_one_length_whatever_their_values() -> None:
    ids, words = [0, 1, 2**32 - 1], [0, 1, 2**63, 2**64 - 1]
    assert len(pack_ids(ids)) == 12
    assert len(pack_words(words)) == 32
    assert unpack_ids(pack_ids(ids)).tolist() == ids
    assert unpack_words(pack_words(words), 4).tolist() == [[word] for word in words]
    assert unpack_ids(b"").shape == (0,)
    assert unpack_words(b"", 0).shape == (0, 0)


def test_bytes_are_little_endian_and_rows_lie_one_after_the_other() -> None:
    assert pack_ids([1, 256]) == b"\1\0\0\0\0\1\0\0"
    table = np.array([[1, 2], [3, 4], [5, 6]], np.uint64)
    packed = pack_words(table)
    assert packed == b"".join(word.to_bytes(8, "little") for word in range(1, 7))
    assert pack_words(np.asfortranarray(table)) == packed
    assert np.array_equal(unpack_words(packed, 3), table)


def test_what_is_unpacked_takes_no_writes() -> None:
    with pytest.raises(ValueError, match="read-only"):
        unpack_ids(pack_ids([1]))[0] = 2
    with pytest.raises(ValueError, match="read-only"):
        unpack_words(pack_words([1]), 1)[0] = 2


@pytest.mark.parametrize(("packed", "num_rows"), [(b"1234567", 1), (bytes(24), 2), (bytes(8), 0)])
def test_what_is_no_column_is_refused(packed: bytes, num_rows: int) -> None:
    with pytest.raises(ValueError, match=r"."):
        unpack_words(packed, num_rows)


def test_what_is_no_column_of_ids_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of element size"):
        unpack_ids(b"123")
