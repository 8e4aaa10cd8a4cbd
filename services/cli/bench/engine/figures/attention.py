"""Tables P2 and P3: attention of one layer against FlashAttention-3, from the lines that
kernels/attention/bench_decode.py and kernels/attention/bench_prefill.py print.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from services.cli.bench.engine.figures.figure import Figure
from services.cli.bench.engine.figures.known import DEVICE, Known
from services.cli.bench.kernels.known_rates import prefill_rival
from services.cli.bench.kernels.runs import BENCHES, Line, bench_lines
from services.cli.bench.measure.progress_line import announce
from shared.engine.running.ceilings import Ceilings

KEY_BYTES = 2 * 8 * 128 * 2
"""K and V of one position of one layer: 8 heads of size 128, bfloat16"""
SMALL_AHEAD = 1.4
"""at one sequence of 1k"""
SKEWED_SHARE = 0.85
"""of the rate of equal lengths"""
PREFILL_SHARE = 0.95
RIVAL = "FlashAttention-3"


@dataclass(frozen=True)
class AttentionCell:
    """A table of kernel figures, as long as a run of its benchmark takes."""

    name: str
    bench: str
    flags: tuple[str, ...]
    estimate_s: float


ATTENTION_CELLS = (
    AttentionCell("attention-decode", "decode", ("--block-size", "16", "64"), 60.0),
    AttentionCell("attention-prefill", "prefill", ("--num-rounds", "1"), 45.0),
)
MODELS = ("llama-3.1-8b", "qwen3-8b")
"""whose heads the shapes are"""


def attention_figures(cell: AttentionCell, model: str, ceilings: Ceilings) -> list[Figure]:
    """BatonError if the benchmark fails; it compares its outputs with the references itself."""
    lines = []
    for line in bench_lines(BENCHES[cell.bench], cell.flags):
        lines.append(line)
        announce(f"{cell.name}: {len(lines)} shapes measured")
    if cell.bench == "decode":
        return list(decode_figures(model, lines, ceilings))
    return list(prefill_figures(model, lines, ceilings))


def decode_figures(model: str, lines: Sequence[Line], ceilings: Ceilings) -> Iterator[Figure]:
    """P2. A skewed batch is followed by an equal one of as many keys."""
    for line, after in zip(lines, [*lines[1:], None], strict=True):
        lengths, batch, block_size = line["context"], line["batch"], line["block_size"]
        name = f"decode-{batch}x{'+'.join(map(str, lengths))}-b{block_size}"
        known, num_keys = None, batch * lengths[0]
        if len(lengths) == 2:
            num_keys = (batch - 1) * lengths[0] + lengths[1]
            known = None if after is None else _of_equal(line, after)
        elif line.get("flash_attention_3_us") and DEVICE in line["gpu"]:
            known = _of_flash_attention(batch, lengths[0], line["flash_attention_3_us"])
        yield Figure(
            goal="P2",
            model=model,
            cell=name,
            value=line["us"],
            unit="us",
            text=f"attention of {batch} sequences of {' and '.join(map(str, lengths))} positions, "
            f"one layer in a CUDA graph, blocks of {block_size}",
            floor=num_keys * KEY_BYTES / ceilings.copy_bytes_per_s * 1e6,
            known=known,
        )


def prefill_figures(model: str, lines: Sequence[Line], ceilings: Ceilings) -> Iterator[Figure]:
    """P3; rates after a pause, as FlashAttention-3's were taken."""
    on_known = any(DEVICE in str(line.get("gpu", "")) for line in lines)
    for line in lines:
        if "rested" not in line or "torch" in line:
            continue
        shape, block_size = line["shape"], line["block_size"]
        rival = prefill_rival(shape, block_size) if on_known else None
        yield Figure(
            goal="P3",
            model=model,
            cell=f"prefill-{shape.replace(' ', '-')}-b{block_size}",
            value=line["rested"],
            unit="TFLOP/s",
            text=f"attention, {shape}, one layer in a CUDA graph, blocks of {block_size}; "
            f"sustained {line['sustained']:g}",
            floor=ceilings.matmul_flops_per_s / 1e12,
            known=None if rival is None else Known(rival, PREFILL_SHARE * rival, name=RIVAL),
        )


def _of_flash_attention(batch: int, context: int, rival_us: float) -> Known:
    reach = (rival_us / SMALL_AHEAD,) if (batch, context) == (1, 1024) else ()
    return Known(rival_us, rival_us, reach, RIVAL)


def _of_equal(line: Line, equal: Line) -> Known:
    """The time that equal lengths take for as many keys."""
    rival_us = line["us"] * line["gb_per_s"] / equal["gb_per_s"]
    return Known(rival_us, rival_us / SKEWED_SHARE, name="equal lengths")
