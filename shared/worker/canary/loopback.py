"""A hand-over of a worker to itself, where there is no other: what is offered is pulled from its
own listeners, into blocks of its own."""

from dataclasses import replace

from shared.errors import CannotMapError
from shared.message_parts.span import Span
from shared.protocol import Assign, Attempt, Start, Work
from shared.transfer.transport import KVTransport, PullRequest
from shared.worker.attempts.spans import transfer_span
from shared.worker.canary.asked_worker import AskedWorker, NoPartError
from shared.worker.canary.reservation import Reservation

TO_ITSELF = frozenset({"mapped", "tcp"})
"""ways that lead from a worker to itself: an agent does not join itself, nor is a GPU linked to
itself"""


def why_not(transport: KVTransport) -> str:
    """Why nothing can be looped back; empty when it can."""
    if not transport.address:
        return "it hands nothing over"
    if not TO_ITSELF.intersection(transport.ways):
        return f"{' or '.join(transport.ways)} leads to no worker itself"
    return ""


async def loop_back(
    work: Work,
    ticket: str,
    worker: AskedWorker,
    reservation: Reservation,
    transport: KVTransport,
) -> Span:
    """The verified transfer. BatonError says what is wrong, NoPartError that it drains, that it has
    no room for two sequences now, or that its pool cannot be mapped by itself: peers are other
    processes."""
    incarnation = worker.hello.incarnation
    # The engine has both the attempt that is offered and the one that is pulled.
    into = replace(work, attempt=Attempt(work.attempt.rid, work.attempt.epoch + 1))
    async with reservation.of(into) as reserved:
        worker.ask(Assign(work, incarnation, "prefill", ticket=ticket))
        await worker.answer(Start)
        request = PullRequest(
            work.attempt, transport.address, incarnation, ticket, reserved.block_ids
        )
        try:
            return transfer_span(await transport.pull(request))
        except CannotMapError:
            raise NoPartError from None
