"""One linked worker: what it last said, and what is on its way to it."""

from dataclasses import replace
from math import inf
from typing import Any, NamedTuple, Protocol

from services.gateway.owner.links.token_rates import TokenRates
from services.gateway.owner.links.worker_view import GUESS, Pace, WorkerView
from services.gateway.owner.view.gap_line import GapLine
from shared.clock import Clock
from shared.message_parts.step_costs import NO_COSTS, StepCosts
from shared.protocol import Hello, Load, Message
from shared.queue.room import Room

_ON_THE_WAY_S = 0.01
"""an assignment older than this is part of the load that a frame reports"""
SPARE_BLOCKS = 16
"""that a worker has beyond one for each sequence, before it gives any away"""
_UNKNOWN_LOAD = Load(0, 0, 0, 0, 0, 0, 0, 0, state="starting")


class OpenLink(Protocol):
    """The part of `shared.link.link.Link` that is used here."""

    @property
    def peer(self) -> Hello: ...

    @property
    def version(self) -> int: ...

    @property
    def closed(self) -> bool: ...

    def send(self, message: Message) -> None: ...

    async def close(self) -> None: ...


class _Charge(NamedTuple):
    """A sequence on its way to a worker."""

    sent_s: float
    num_tokens: int
    early: bool


class WorkerLink:
    """An incarnation of a worker and the open link to it."""

    def __init__(self, link: OpenLink, worker_id: str, clock: Clock) -> None:
        hello = link.peer
        assert hello.role != "gateway"
        self.link = link
        self.hello = hello
        self.worker_id = worker_id
        self.load = hello.load or _UNKNOWN_LOAD
        self._leaves = False
        self.has_given = False
        """another worker has taken KV from it"""
        self.gaps = GapLine()
        """of the tokens it sent"""
        self.counters: dict[str, int] = {}
        self.stages: dict[str, int] = {}
        self.gauges: dict[str, float] = {}
        self.rates = TokenRates()
        self.num_unanswered_pings = 0
        self.looked_at_s = 0.0
        """for requests that may move from here"""
        self.last_frame_s = clock.monotonic_s()
        self._clock = clock
        self._room_limit: int | None = hello.room_limit_tokens or None
        """the room it has when nothing is queued"""
        self._charges: dict[str, _Charge] = {}
        """rid -> (when sent, prompt tokens) of what the reported load may not include"""
        no_room = Room.whole(0).refused(early=True)
        self.view = WorkerView(hello.incarnation, hello.role, False, no_room, False, 0, 0, 0)
        if 0 < hello.prefill_token_s < inf:
            self.view.trial_token_s = hello.prefill_token_s
        self.note_load(self.load)

    @property
    def incarnation(self) -> str:
        return self.hello.incarnation

    @property
    def drains(self) -> bool:
        """It is known to be on its way out: that it goes is no death."""
        return self._leaves or self.load.state == "draining"

    @property
    def gives_away(self) -> bool:
        """It decodes, drains and can be pulled from: what it has goes on elsewhere. First it does
        what it took and has not begun. Not where its blocks are so few that a neighbour would take
        those that are to move, nor while it gives the rest back."""
        hello, load = self.hello, self.load
        if hello.role != "decode" or load.state != "draining" or self._leaves:
            return False
        busy = load.queued_tokens or load.waiting
        is_tight = self.view.spare_blocks <= load.running + SPARE_BLOCKS
        return not (busy or is_tight or load.stalled) and bool(hello.transfer_address)

    @property
    def ranks(self) -> int:
        """GPUs that compute its steps together, or 1 on a CPU; 0: it has not told yet."""
        return int(self.gauges.get("worker_ranks", 0))

    @property
    def pace(self) -> Pace:
        return Pace(self.incarnation, self.view.role, self.gaps.pace_s(self._clock.monotonic_s()))

    def send(self, message: Message) -> None:
        self.link.send(message)

    def note_frame(self) -> None:
        self.last_frame_s = self._clock.monotonic_s()
        self.num_unanswered_pings = 0

    def note_load(self, load: Load) -> None:
        """What the worker says of itself; it includes all but the latest assignments."""
        self.load = load
        self._note_incoming(load)
        if not (load.queued_tokens or self.hello.room_limit_tokens):
            self._room_limit = load.room_tokens
        sent_before_s = self._clock.monotonic_s() - _ON_THE_WAY_S
        for rid, charge in list(self._charges.items()):
            if charge.sent_s > sent_before_s:
                break
            del self._charges[rid]
        self._refresh()

    def _note_incoming(self, load: Load) -> None:
        incoming = self.view.incoming
        for p_inc, known in incoming.items():
            if known.num_tokens:
                incoming[p_inc] = known._replace(num_tokens=0)
        incoming.update((item.prefill_incarnation, item) for item in load.incoming)

    def forget_source(self, prefill_incarnation: str) -> None:
        """This prefill worker is gone."""
        self.view.incoming.pop(prefill_incarnation, None)

    def charge(self, rid: str, num_tokens: int, *, early: bool = True) -> None:
        """A sequence with this many prompt tokens to compute is on its way. `early`: as
        `shared.queue.backlog.is_early`."""
        self._charges[rid] = _Charge(self._clock.monotonic_s(), num_tokens, early)
        self._refresh()

    def settle(self, rid: str) -> None:
        """The worker has answered: the load it reports next counts the sequence, or not."""
        self._charges.pop(rid, None)

    def note_full(self, *, early: bool = True) -> None:
        """It refused for lack of room: no more until it says otherwise; `early` as for `charge`."""
        self.view.room = self.view.room.refused(early=early)
        self.view.idle = False

    def note_refusing(self) -> None:
        """It takes nothing new until it says otherwise."""
        self.view.ready = False

    def note_draining(self) -> None:
        """It drains: it may go, or be told to serve again, which its next load says."""
        self.load = replace(self.load, state="draining")
        self._refresh()

    def note_leaving(self) -> None:
        """It takes nothing new, and will go."""
        self._leaves = True
        self.view.ready = False

    def _refresh(self) -> None:
        load, view = self.load, self.view
        charges = self._charges.values()
        on_the_way = sum(charge.num_tokens for charge in charges)
        limit = self._room_limit or 2 * on_the_way
        view.ready = load.state == "ready" and not (self._leaves or load.stalled)
        view.stalled = load.stalled
        room = Room(limit, load.room_tokens, load.early_room_tokens, load.long_place)
        view.room = room.less((charge.num_tokens, charge.early) for charge in charges)
        view.idle = not on_the_way and load.room_tokens == self._room_limit
        view.costs = self._costs()
        view.queued_tokens = load.queued_tokens + on_the_way
        view.place_s = load.place_s if 0 <= load.place_s < inf else 0.0
        view.queued_s = max(view.place_s, self._queued_s(view.costs))
        view.num_sequences = load.running + load.waiting + len(self._charges)
        view.spare_blocks = load.free + load.cached
        view.unpulled_tokens = load.unpulled_tokens + on_the_way
        view.unreserved_tokens = load.unreserved_tokens

    def _costs(self) -> StepCosts:
        """As it fits them; a prompt is never free."""
        costs = self.load.step_costs
        if not costs.credible:
            costs = NO_COSTS
        if costs.chunk_token_s or costs.chunk_pair_s:
            return costs
        return costs._replace(chunk_token_s=self.view.trial_token_s or GUESS.chunk_token_s)

    def _queued_s(self, costs: StepCosts) -> float:
        load = self.load
        told_s = load.queued_s
        if not 0 <= told_s < inf:  # an earlier release; nor how many prompts they are
            told_s = costs.chunk_token_s * load.queued_tokens
        return told_s + sum(costs.prompt_s(charge.num_tokens) for charge in self._charges.values())

    def status(self, *, suspect: bool = False) -> dict[str, Any]:
        """Its entry in `status --json`."""
        load = self.load
        return {
            "id": self.worker_id,
            "role": self.hello.role,
            "pid": self.hello.pid,
            "host": self.hello.host,
            "incarnation": self.incarnation,
            "protocol": self.link.version,
            "state": "suspect" if suspect else "stalled" if load.stalled else load.state,
            "kv": {
                "total": load.total,
                "free": load.free,
                "cached": load.cached,
                "held": load.held,
            },
            "idle_room_tokens": self._room_limit,
            "running": load.running,
            "waiting": load.waiting,
            "ranks": self.ranks or 1,
            "memory_bytes": self._memory(),
            "rates": self.rates.per_s(),
            "step_costs": load.step_costs._asdict(),
            "step_error": round(load.step_error, 4) or None,
            "heartbeat_age_s": round(self._clock.monotonic_s() - self.last_frame_s, 3),
        }

    def _memory(self) -> dict[str, int]:
        """Bytes by what they are for, as it told them."""
        told = ((key.partition(":"), size) for key, size in self.gauges.items())
        return {kind: int(size) for (name, _, kind), size in told if name == "memory_bytes"}
