"""How a capacity is shown: as text of 60 columns, and as JSON."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from services.cli.byte_size import shown
from services.cli.capacity.estimate import Capacity, Question
from services.cli.capacity.split import Split
from services.cli.terminal import wrapped

UPPER = "upper estimate"
ON_CPU = "here; `baton up` starts two, with a pool each"
RANKS_ON_CPU = "here, whose ranks share the cores: `--tp` on a CPU is for tests"


def render(
    question: Question,
    capacity: Capacity,
    ways: Sequence[Sequence[str]],
    split: Split | None,
    width: int | None,
) -> str:
    """`ways`: what would make it fit. `split`: of workers by role."""
    lines = [*_memory(question, capacity), "  upper estimates: only a start measures what it takes"]
    lines += _pool(question, capacity)
    if capacity.fits:
        lines += _table(capacity)
    if split is not None:
        lines += _split(question, split)
    if capacity.usd_per_million_tokens:
        lines.append(f"cost: {capacity.usd_per_million_tokens:.3g} USD per million tokens")
    lines += _verdict(question, capacity, ways)
    return "".join(f"{wrapped(line, width, indent=4)}\n" for line in lines)


def as_json(
    question: Question, capacity: Capacity, ways: Sequence[Sequence[str]], split: Split | None
) -> str:
    """One object."""
    content = {
        "model": question.checkpoint.name,
        "device": asdict(question.device),
        "dtype": question.dtype,
        "tp": question.compute.tp,
        "fits": capacity.fits,
        **{name: value for name, value in asdict(capacity).items() if name != "layout"},
        "kv_pool_bytes": capacity.pool_bytes,
        "block_size": capacity.layout.block_size,
        "block_bytes": capacity.layout.block_bytes,
        "kv_token_bytes": capacity.token_bytes,
        "kv_tokens": capacity.num_tokens,
        "longest_sequence": capacity.longest,
        "advice": [list(flags) for flags in ways],
        "split": None if split is None else asdict(split),
    }
    return json.dumps(content) + "\n"


def _memory(question: Question, capacity: Capacity) -> Iterator[str]:
    device, tp = question.device, question.compute.tp
    number = f"{tp} x " if tp > 1 and device.on_gpu else ""
    yield f"{question.checkpoint.name}, {question.dtype}, on {number}{device.name}"
    where = _each(question) if tp > 1 else "the device"
    yield f"memory of {where}: {shown(device.total_bytes)}"
    yield _line("weights", capacity.weights_bytes)
    yield _line("largest step", capacity.step_bytes, UPPER)
    if device.on_gpu:
        yield _line("graphs", capacity.graphs_bytes, UPPER)
    yield _line("driver, others" if device.on_gpu else "processes", capacity.others_bytes, UPPER)
    unused = device.total_bytes - capacity.usable_bytes
    why = "--gpu-memory-utilization" if device.on_gpu else "in use by others now"
    yield _line("left alone", unused, why)
    room = capacity.room_bytes
    if not device.on_gpu and room >= 0:
        yield _line("room", room)
    if room < 0:
        yield _line("missing", -room)


def _pool(question: Question, capacity: Capacity) -> Iterator[str]:
    layout = capacity.layout
    by_setting = not question.device.on_gpu or question.kv.blocks
    yield "KV pool" + (f" of {_each(question)}" if question.compute.tp > 1 else "")
    pool = shown(capacity.pool_bytes)
    yield f"  size      {pool}" + (", by its setting" if by_setting else ", at least")
    yield f"  a token   {shown(capacity.token_bytes)}, {shown(capacity.layer_token_bytes)} a layer"
    yield f"  a block   {shown(layout.block_bytes)}, {layout.block_size} tokens"
    yield f"  blocks    {capacity.num_blocks:,}, {capacity.num_tokens:,} tokens"
    yield f"  longest   one sequence of {capacity.longest:,} tokens"


def _table(capacity: Capacity) -> Iterator[str]:
    """Of lengths: how many fit, and what handing over such a prompt takes."""
    ways = list(capacity.rows[0].hand_over_s)
    yield "sequences that fit" + (", and a hand-over of such a prompt" if ways else "")
    heads = "".join(f"{way:>11}" for way in ways)
    yield f"  {'tokens':>9}{'KV of one':>12}{'sequences':>11}{heads}"
    for row in capacity.rows:
        times = "".join(f"{row.hand_over_s[way] * 1000:>8,.0f} ms" for way in ways)
        yield f"  {row.tokens:>9,}{shown(row.kv_bytes):>12}{row.sequences:>11,}{times}"
    yield f"  at most {capacity.max_num_seqs:,} run at once (--max-num-seqs)"
    if ways:
        yield (
            "  hand-over: from the first read to verified, as measured on an H200. Most of it "
            "hides behind prefill: over NVLink (two H100) 1.07 GB was verified 0.5 ms after token 1"
        )


def _split(question: Question, split: Split) -> Iterator[str]:
    """How many workers of each role, and why."""
    yield (
        f"split for prompts of {question.prompt:,} and answers of {question.answer:,} tokens: "
        f"{split.prefill} prefill to {split.decode} decode"
    )
    yield (
        f"  a request takes at least {split.prefill_s * 1e3:,.0f} ms of a prefill worker and "
        f"{split.decode_s * 1e3:,.0f} ms of a decode worker, of which {split.sequences:,} share a "
        f"step; so these {split.prefill + split.decode} answer at most "
        f"{split.requests_per_s:.3g} a second. By the maker's rates: `baton bench verdict` measures"
    )


def _verdict(
    question: Question, capacity: Capacity, ways: Sequence[Sequence[str]]
) -> Iterator[str]:
    if capacity.fits:
        tp = question.compute.tp
        on_gpu = f"on {tp} GPUs" if tp > 1 else "on a GPU"
        on_cpu = RANKS_ON_CPU if tp > 1 else ON_CPU
        yield "it fits: one worker " + (on_gpu if question.device.on_gpu else on_cpu)
        return
    wanted = capacity.wanted_blocks
    context = question.compute.max_model_len
    if capacity.num_blocks < wanted:
        why = f"a context of {context:,} tokens" if context else "the smallest pool"
        has = f"{capacity.num_blocks:,}"
        yield f"it does not fit: {why} takes {wanted:,} KV blocks, there is room for {has}"
    else:
        room = shown(max(0, capacity.room_bytes))
        yield f"it does not fit: the KV pool takes {shown(capacity.pool_bytes)}, {room} are left"
    if not ways:
        yield "no context, --tp or --dtype helps: a device with more memory, or a smaller model"
        return
    yield "it fits with" + (" one of" if len(ways) > 1 else "")
    yield from (f"  {' '.join(flags)}" for flags in ways)


def _each(question: Question) -> str:
    """Of several ranks."""
    return "each GPU" if question.device.on_gpu else f"each of {question.compute.tp} ranks"


def _line(name: str, num_bytes: int, note: str = "") -> str:
    return f"  {name:14} {shown(num_bytes):>9}  {note}".rstrip()
