"""The few numbers of rows that decode steps come in: kernels are compiled, and graphs captured,
for each of them."""

from kernels.launching.launch import next_power_of_two

SIZES_APART = ((64, 8), (256, 16), (1024, 64))
"""(largest row count, step): sizes are denser where one extra row costs relatively more"""
LARGEST_APART = 256
SCORED_AT_LEAST = 16
SCORED_SHARE = 1 / 8
"""of the rows that are sampled from: while rows of a prompt are scored, each takes up to eight
times the memory of its logits"""


def next_size(num_rows: int) -> int:
    """The least number of rows with kernels of its own that `num_rows` fit in."""
    if num_rows <= 4:
        return next_power_of_two(num_rows)
    apart = next((apart for end, apart in SIZES_APART if num_rows <= end), LARGEST_APART)
    return -(-num_rows // apart) * apart


def graph_sizes(max_rows: int) -> tuple[int, ...]:
    """Numbers of rows that steps of up to `max_rows` are padded to."""
    sizes = sorted({next_size(num_rows) for num_rows in range(1, max_rows)})
    return (*(size for size in sizes if size < max_rows), max_rows)


def scored_at_once(max_rows: int) -> int:
    """Rows of prompts that are scored together, where up to `max_rows` are sampled from."""
    return min(max_rows, next_size(max(SCORED_AT_LEAST, int(SCORED_SHARE * max_rows))))
