"""One request of nobody's, by one prefill and one decode worker: steps 4 to 6 of a hand-over."""

from shared.message_parts.span import Span
from shared.protocol import Assign, Receive, Spans, Start, Work
from shared.telemetry.attributes import SPAN_TRANSFER
from shared.worker.canary.asked_worker import AskedWorker, NoPartError


async def hand_over(work: Work, ticket: str, prefill: AskedWorker, decode: AskedWorker) -> Span:
    """The transfer as decode tells it, which it does once the KV is verified. NoPartError if
    nothing can be pulled from prefill; KVTransferError with what either says is wrong."""
    source = prefill.hello
    if not source.transfer_address:
        raise NoPartError
    prefill.ask(Assign(work, source.incarnation, "prefill", ticket=ticket))
    await prefill.answer(Start)
    target = decode.hello.incarnation
    decode.ask(Receive(work, target, source.incarnation, source.transfer_address, ticket))
    while True:  # until the verdict, or an error
        told = await decode.answer(Spans)
        for span in told.spans:
            if span.name == SPAN_TRANSFER:
                return span
