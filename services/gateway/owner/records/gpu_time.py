"""The GPU time that a request used, and that its cached tokens did not take. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from services.gateway.owner.records.slowness import measured
from shared.message_parts.span import Span
from shared.message_parts.step_costs import NO_COSTS, StepCosts
from shared.telemetry import attributes as names

_COMPUTED = (names.SPAN_PREFILL, names.SPAN_DECODE)


def used_gpu_ms(
    told: Sequence[tuple[str, Span]], ranks: Mapping[str, int], num_tokens: int
) -> float | None:
    """`told`: (worker id, span) of all attempts; `ranks`: GPUs of each worker; `num_tokens`: of the
    answer. None where a worker tells no times or no GPUs, or the spans lack some of the tokens,
    which a worker that died does not tell of, and one that is stopped tells a moment later."""
    computed = [(worker, span) for worker, span in told if span.name in _COMPUTED]
    if not all(names.COMPUTE_MS in span.attributes for _, span in computed):
        return None
    if _num_tokens(span for _, span in computed) < num_tokens or not computed:
        return None
    if not all(ranks.get(worker) for worker, _ in told):
        return None
    return round(sum(measured(span, names.COMPUTE_MS) * ranks[worker] for worker, span in told), 3)


def saved_gpu_ms(costs: StepCosts, ranks: int, num_cached: int) -> float | None:
    """What the first `num_cached` tokens of a prompt would have added to steps of a worker with
    these costs on `ranks` GPUs. What a step takes
    whatever it computes is left out: the rest of the prompt has a step anyway. None: the costs or
    the number of GPUs are not known."""
    if costs == NO_COSTS or not ranks:
        return None
    return round(costs.prompt_s(num_cached) * ranks * 1e3, 3)


def _num_tokens(computed: Iterable[Span]) -> int:
    """Of the answer: a prompt brings one, decode says how many."""
    return sum(
        1 if span.name == names.SPAN_PREFILL else int(measured(span, names.DECODED_TOKENS))
        for span in computed
    )
