"""Request records and gateway beats in memory: the twins that tests and one process use."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from math import inf

from shared.clock import Clock
from shared.state.keys import ABANDONED_TTL_S, CLIENT_KEY_TTL_S, ENDED_TTL_S
from shared.state.records import (
    MAX_CONVICTED,
    UNFINISHED,
    Admission,
    AdmittedRequest,
    Finish,
    KeyTaken,
    Outcome,
    ReapVerdict,
    RequestRecord,
    RequestState,
)


class MemoryGatewayLiveness:
    """`GatewayLiveness` in one process; shares what is live with its MemoryRequestRecords."""

    def __init__(self) -> None:
        self.beats: dict[str, int] = {}
        self.live: dict[str, set[str]] = {}

    async def beat(self, gateway_incarnation: str) -> Mapping[str, int]:
        self.beats[gateway_incarnation] = self.beats.get(gateway_incarnation, 0) + 1
        return dict(self.beats)

    async def live_requests(self, gateway_incarnation: str) -> frozenset[str]:
        return frozenset(self.live.get(gateway_incarnation, ()))

    async def forget(self, gateway_incarnation: str, beat: int | None = None) -> bool:
        if self.live.get(gateway_incarnation):
            return False
        if beat is not None and self.beats.get(gateway_incarnation, beat) != beat:
            return False
        self.beats.pop(gateway_incarnation, None)
        self.live.pop(gateway_incarnation, None)
        return True


SUPERSEDED = "superseded"


@dataclass(frozen=True)
class _Stored:
    record: RequestRecord
    expires_s: float | None = None


@dataclass
class _UsedKey:
    """A client's key, and the request that has it."""

    rid: str
    body: str
    state: RequestState = RequestState.LIVE
    outcome: Outcome | None = None
    expires_s: float = inf


class MemoryRequestRecords:
    """`RequestRecords` in one process."""

    def __init__(self, liveness: MemoryGatewayLiveness, clock: Clock) -> None:
        self.settle: Callable[[int, str, int], None] = lambda priority, tenant, owed: None
        """what a tenant owes the backlog, if that is in memory too"""
        self._liveness = liveness
        self._clock = clock
        self._stored: dict[str, _Stored] = {}
        self._tenants: dict[str, set[str]] = {}
        self._convicted_until_s: dict[str, float] = {}
        self._client_keys: dict[str, _UsedKey] = {}

    async def admit(self, request: AdmittedRequest, max_live: int = 0) -> Admission | KeyTaken:
        record = await self.read(request.rid)
        if record is not None and record.request.gateway_incarnation != request.gateway_incarnation:
            return Admission.TAKEN
        if record is not None and record.state not in UNFINISHED:
            return Admission.ENDED
        used, client_key = self._used_key(request), request.client_key
        if used is not None and client_key is not None and used.rid != request.rid:
            same_body = used.body == client_key.body
            if not same_body or used.state is not RequestState.ABANDONED:
                return KeyTaken(used.rid, same_body, used.outcome)
        if max_live > 0:
            live = self._tenants.setdefault(request.tenant, set())
            if request.rid not in live and len(live) >= max_live:
                return Admission.OVER_QUOTA
            live.add(request.rid)
        if record is None:
            record = RequestRecord(request, RequestState.LIVE, "", 0, 0, 0)
        record = replace(record, request=request, state=RequestState.LIVE)
        self._stored[request.rid] = _Stored(record)
        self._liveness.live.setdefault(request.gateway_incarnation, set()).add(request.rid)
        self._liveness.beats.setdefault(request.gateway_incarnation, 0)
        if client_key is not None:
            self._client_keys[client_key.name] = _UsedKey(request.rid, client_key.body)
        return Admission.ADMITTED

    async def convict(self, fingerprints: Collection[str], life_s: int) -> Mapping[str, float]:
        now_s = self._clock.monotonic_s()
        for name in fingerprints:
            self._convicted_until_s[name] = now_s + life_s
        latest = sorted(self._convicted_until_s.items(), key=lambda item: item[1])
        self._convicted_until_s = {name: s for name, s in latest[-MAX_CONVICTED:] if s > now_s}
        return {name: until_s - now_s for name, until_s in self._convicted_until_s.items()}

    async def mark(self, gateway_incarnation: str, progress: Mapping[str, int]) -> None:
        for rid, count in progress.items():
            record = await self.read(rid)
            if record is None or record.request.gateway_incarnation != gateway_incarnation:
                continue
            if record.state is RequestState.LIVE and count > record.num_output_tokens:
                self._stored[rid] = _Stored(replace(record, num_output_tokens=count))

    async def finish(self, request: AdmittedRequest, outcome: Outcome) -> Finish:
        record = await self.read(request.rid)
        if record is not None and record.request.gateway_incarnation != request.gateway_incarnation:
            return Finish(None, written=False)
        if record is not None and record.state not in UNFINISHED:
            return Finish(_outcome(record), written=False)
        used, client_key = self._used_key(request), request.client_key
        if used is not None and used.rid != request.rid:
            attempts, owed = outcome.num_attempts, outcome.owed
            outcome = Outcome(RequestState.CANCELLED, SUPERSEDED, 0, 0, attempts, owed)
        elif client_key is not None and _delivered_nothing(outcome):
            self._client_keys.pop(client_key.name, None)
        elif client_key is not None:
            until_s = self._clock.monotonic_s() + CLIENT_KEY_TTL_S
            self._client_keys[client_key.name] = _UsedKey(
                request.rid, client_key.body, outcome.state, outcome, until_s
            )
        record = RequestRecord(
            request,
            outcome.state,
            outcome.code,
            outcome.num_output_tokens,
            outcome.num_cached_tokens,
            outcome.num_attempts,
        )
        self._end(record)
        self.settle(request.priority, request.tenant, outcome.owed)
        return Finish(outcome, written=True)

    async def reap(self, rid: str, gateway_incarnation: str, beat: int) -> ReapVerdict:
        if self._liveness.beats.get(gateway_incarnation) != beat:
            return ReapVerdict.ALIVE
        self._liveness.live.get(gateway_incarnation, set()).discard(rid)
        record = await self.read(rid)
        if record is None or record.request.gateway_incarnation != gateway_incarnation:
            return ReapVerdict.GONE
        if record.state is RequestState.LIVE:
            abandoned = replace(record, state=RequestState.ABANDONED, code="gateway_lost")
            self._end(abandoned, ABANDONED_TTL_S)
            used = self._used_key(record.request)
            if used is not None and used.rid == rid:
                used.state = RequestState.ABANDONED
                used.expires_s = self._clock.monotonic_s() + ABANDONED_TTL_S
        elif record.state is not RequestState.ABANDONED:
            return ReapVerdict.ENDED
        return ReapVerdict.REAPED

    async def read(self, rid: str) -> RequestRecord | None:
        stored = self._stored.get(rid)
        if stored is None:
            return None
        if stored.expires_s is not None and stored.expires_s <= self._clock.monotonic_s():
            del self._stored[rid]
            return None
        return stored.record

    def _used_key(self, request: AdmittedRequest) -> _UsedKey | None:
        """The request that has the client key of this one, if any has."""
        if request.client_key is None:
            return None
        used = self._client_keys.get(request.client_key.name)
        return used if used is not None and used.expires_s > self._clock.monotonic_s() else None

    def _end(self, record: RequestRecord, ttl_s: float = ENDED_TTL_S) -> None:
        request = record.request
        self._stored[request.rid] = _Stored(record, self._clock.monotonic_s() + ttl_s)
        self._liveness.live.get(request.gateway_incarnation, set()).discard(request.rid)
        self._tenants.get(request.tenant, set()).discard(request.rid)


def _outcome(record: RequestRecord) -> Outcome:
    state = record.state
    assert state is not RequestState.LIVE and state is not RequestState.ABANDONED
    return Outcome(
        state,
        record.code,
        record.num_output_tokens,
        record.num_cached_tokens,
        record.num_attempts,
    )


def _delivered_nothing(outcome: Outcome) -> bool:
    return outcome.state is not RequestState.DONE and outcome.num_output_tokens == 0
