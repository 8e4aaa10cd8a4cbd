"""Numbers of bytes as people write them, and as commands show them."""

import pytest

from services.cli.byte_size import GIB, MIB, parse, shown


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("80GiB", 80 * GIB), ("40 GB", 40 * 10**9), ("1.5MiB", 3 * MIB // 2), ("4096", 4096)],
)
def test_a_number_of_bytes_has_a_unit_or_none(text: str, num_bytes: int) -> None:
    assert parse(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "80 gigs", "-1GiB", "1e9", "80Gi"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="such as 80GiB"):
        parse(text)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (327_680, "320 KiB"),
        (36 * MIB, "36 MiB"),
        (4 * MIB + MIB // 2, "4.5 MiB"),
        (GIB, "1.0 GiB"),
        (12.5 * GIB, "12.5 GiB"),
    ],
)
def test_it_is_shown_in_the_largest_unit(num_bytes: float, text: str) -> None:
    assert shown(num_bytes) == text
