"""The spans a worker cuts from what it measured of an attempt."""

import os

from shared.protocol import Span
from shared.telemetry import attributes as names
from shared.transfer.transport import Pulled
from shared.worker.attempts import HeldAttempt


def queue_span(held: HeldAttempt) -> Span:
    """From acceptance here to the first chunk's schedule."""
    return Span(names.SPAN_QUEUE, held.accepted_ns, held.started_ns, os.getpid())


def prefill_span(held: HeldAttempt, end_ns: int) -> Span:
    """From the first chunk's schedule to token 1."""
    return Span(
        names.SPAN_PREFILL,
        held.started_ns,
        end_ns,
        os.getpid(),
        {
            names.CHUNKS: held.num_chunks,
            names.PREFILLED_TOKENS: held.num_prefilled_tokens,
            names.CACHED_TOKENS: held.num_cached_tokens,
        },
    )


def transfer_span(pulled: Pulled, transport: str) -> Span:
    """From the first byte asked for to the verdict; `after_seal_ms` is what nothing hid."""
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
            names.TRANSFER_TRANSPORT: transport,
            names.TRANSFER_AFTER_SEAL_MS: round((pulled.end_ns - pulled.sealed_ns) / 1e6, 3),
        },
    )


def decode_span(held: HeldAttempt) -> Span:
    """From the first decode step's begin to the last token's step end."""
    return Span(
        names.SPAN_DECODE,
        held.first_decode_ns,
        held.last_token_ns,
        os.getpid(),
        {names.DECODED_TOKENS: held.num_decoded_tokens},
    )
