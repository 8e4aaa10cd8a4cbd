"""Makes trace spans of what a worker measured of an attempt."""

import os

from shared.message_parts.span import Span, SpanEvent
from shared.telemetry import attributes as names
from shared.transfer.transport import Pulled
from shared.worker.attempts.table import HeldAttempt
from shared.worker.attempts.usage import taken, told


def queue_span(held: HeldAttempt) -> Span:
    """From acceptance here to the first chunk's schedule."""
    return Span(names.SPAN_QUEUE, held.accepted_ns, held.started_ns, os.getpid())


def prefill_span(held: HeldAttempt, end_ns: int) -> Span:
    """From the first chunk's schedule to token 1; an event at the end of each chunk."""
    return Span(
        names.SPAN_PREFILL,
        held.started_ns,
        end_ns,
        os.getpid(),
        {
            names.CHUNKS: held.num_chunks,
            names.PREFILLED_TOKENS: held.num_prefilled_tokens,
            names.CACHED_TOKENS: held.num_cached_tokens,
            **taken(held, end_ns),
        },
        tuple(SpanEvent(names.EVENT_CHUNK, time_ns) for time_ns in held.chunk_ends_ns),
    )


def held_span(held: HeldAttempt, released_ns: int) -> Span:
    """From SEAL until decode had its verified copy (or the lease ran out)."""
    return Span(
        names.SPAN_HELD,
        held.sealed_ns,
        released_ns,
        os.getpid(),
        told(held, released_ns),
        events=(SpanEvent(names.EVENT_RELEASED, released_ns),),
    )


def transfer_span(pulled: Pulled) -> Span:
    """From the first byte asked for to the verdict. What ran before SEAL overlapped with
    prefill; `after_seal_ms` is what nothing hid. Events: the last layer group was published, SEAL
    arrived, the last copy ended."""
    overlapped_ns = max(pulled.sealed_ns - pulled.start_ns, 0)
    after_seal_ns = pulled.end_ns - pulled.start_ns - overlapped_ns
    seconds_s = max(pulled.end_ns - pulled.start_ns, 1) / 1e9
    return Span(
        names.SPAN_TRANSFER,
        pulled.start_ns,
        pulled.end_ns,
        os.getpid(),
        {
            names.TRANSFER_BYTES: pulled.num_bytes,
            names.TRANSFER_BLOCKS: pulled.num_blocks,
            names.TRANSFER_REREAD: pulled.num_reread,
            names.TRANSFER_GBPS: round(pulled.num_bytes / seconds_s / 1e9, 4),
            names.TRANSFER_BUSY_MS: round(pulled.busy_s * 1e3, 3),
            names.TRANSFER_LINK_GBPS: round(pulled.bytes_s / 1e9, 4),
            names.TRANSFER_TRANSPORT: pulled.transport,
            names.TRANSFER_WHY: pulled.why,
            names.TRANSFER_OVERLAPPED_MS: round(overlapped_ns / 1e6, 3),
            names.TRANSFER_AFTER_SEAL_MS: round(after_seal_ns / 1e6, 3),
        },
        _events(
            (names.EVENT_PUBLISHED, pulled.published_ns),
            (names.EVENT_SEALED, pulled.start_ns + overlapped_ns),
            (names.EVENT_COPIED, pulled.copied_ns),
        ),
    )


def decode_span(held: HeldAttempt) -> Span:
    """From the begin of the first decode step, or of the one that was running when its token was
    let go, to the last token's step end. As an event: the engine was told that the sequence's KV is
    verified; it may have begun before that."""
    return Span(
        names.SPAN_DECODE,
        held.first_decode_ns,
        held.last_token_ns,
        os.getpid(),
        {names.DECODED_TOKENS: held.num_decoded_tokens, **told(held, held.last_token_ns)},
        _events((names.EVENT_ADOPTED, held.adopted_ns)),
    )


def _events(*named: tuple[str, int]) -> tuple[SpanEvent, ...]:
    """Those whose time is known, in their order."""
    known = [SpanEvent(name, time_ns) for name, time_ns in named if time_ns]
    return tuple(sorted(known, key=lambda event: event.time_ns))
