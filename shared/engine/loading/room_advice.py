"""Which setting would make room on a GPU that a model is too large for, in numbers that hold.

Weights are known for each number of ranks. The largest step was measured: its part for sampling
grows with the sequences, and the rest is taken to grow with the tokens, of which some part never
does, so a smaller step takes no more than is said here.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shared.engine.loading.pool_size import GIB, MemoryProfile
from shared.errors import ModelError, SettingsError
from shared.kv.share import MAX_RANKS

MOST_SHARE = 0.98
"""of a GPU's memory; the driver takes some of the rest while it computes"""
RANKS_BYTES = GIB
"""communication buffers of a rank that is not alone, at most"""
WEIGHTS_SHARE = 0.75
"""of a GPU, next to which there is room for steps, communication and some KV"""
LEAST_TOKENS = 64
"""of a step that is of use"""
NO_MEMORY = (
    "finds no memory next to the weights: a lower --max-num-batched-tokens or --max-num-seqs, or "
    "more GPUs (--tp), make room; `baton capacity` says what fits"
)
"""of a step that could not be run, so nobody knows by how much it is too large"""


@dataclass(frozen=True)
class StepForm:
    """The largest step of a rank, and the rank."""

    max_tokens: int
    max_seqs: int
    seq_bytes: int
    """for sampling, by sequence"""
    tp: int
    weights_of: Callable[[int], int]
    """bytes on one of N ranks; ModelError where the model cannot be split so"""


def ways_to_room(form: StepForm, profile: MemoryProfile, wanted_bytes: int) -> tuple[str, ...]:
    """Flags, each of which alone leaves `wanted_bytes` for KV; the one that costs least first."""
    missing = wanted_bytes - profile.kv_bytes
    ways = (
        _higher_share(profile, missing),
        _fewer_tokens(form, profile, missing),
        _fewer_sequences(form, missing),
        _more_ranks(form, profile, missing),
    )
    return tuple(flag for way in ways for flag in way)


def check_weights_fit(form: StepForm, free_bytes: int) -> None:
    """SettingsError if a GPU with this much free memory cannot hold a rank's weights."""
    weights_bytes = form.weights_of(form.tp)
    if weights_bytes <= free_bytes:
        return
    fewest = next((tp for tp, size in _splits(form) if size <= WEIGHTS_SHARE * free_bytes), 0)
    raise SettingsError(
        f"the weights take {weights_bytes / GIB:.1f} GiB of each GPU, and {free_bytes / GIB:.1f} "
        f"GiB are free: {f'--tp {fewest} splits them' if fewest else 'a smaller model'}; "
        "`baton capacity` says what else fits"
    )


def _higher_share(profile: MemoryProfile, missing: int) -> Iterator[str]:
    wanted = profile.total_bytes * profile.utilization + missing
    hundredths = -(-100 * int(wanted + 1) // profile.total_bytes)
    if hundredths <= 100 * MOST_SHARE:
        yield f"--gpu-memory-utilization {hundredths / 100:.2f}"


def _fewer_tokens(form: StepForm, profile: MemoryProfile, missing: int) -> Iterator[str]:
    by_tokens = profile.activations_bytes - form.max_seqs * form.seq_bytes
    if by_tokens <= missing:
        return
    tokens = int(form.max_tokens * (1 - missing / by_tokens)) // LEAST_TOKENS * LEAST_TOKENS
    if tokens >= max(LEAST_TOKENS, form.max_seqs):
        yield f"--max-num-batched-tokens {tokens}"


def _fewer_sequences(form: StepForm, missing: int) -> Iterator[str]:
    sequences = form.max_seqs - -(-missing // form.seq_bytes)
    if sequences >= 1:
        yield f"--max-num-seqs {sequences}"


def _more_ranks(form: StepForm, profile: MemoryProfile, missing: int) -> Iterator[str]:
    added = RANKS_BYTES if form.tp == 1 else 0
    for tp, weights_bytes in _splits(form):
        if profile.weights_bytes - weights_bytes - added >= missing:
            yield f"--tp {tp}"
            return


def _splits(form: StepForm) -> Iterator[tuple[int, int]]:
    """(ranks, bytes of the weights on one of them), for more ranks than there are."""
    tp = 2 * form.tp
    while tp <= MAX_RANKS:
        try:
            yield tp, form.weights_of(tp)
        except ModelError:
            return
        tp *= 2
