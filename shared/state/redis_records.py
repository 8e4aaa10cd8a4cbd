"""Request records in Redis: one hash per request, one script per step."""

import time
from collections.abc import Collection, Mapping, Sequence

from shared.errors import StateUnavailableError
from shared.state.keys import (
    ABANDONED_TTL_S,
    CLIENT_KEY_TTL_S,
    ENDED_TTL_S,
    LIVE_TTL_S,
    TRAFFIC_TTL_S,
    Keys,
)
from shared.state.records import (
    MAX_CONVICTED,
    Admission,
    AdmittedRequest,
    ClientKey,
    FinalState,
    Finish,
    KeyTaken,
    Outcome,
    ReapVerdict,
    RequestRecord,
    RequestState,
)
from shared.state.redis_client import Argument, RedisClient, Script
from shared.state.reply import Reply, as_fields, as_int, as_list, as_text, narrowing
from shared.state.traffic import MAX_LENGTH, encode_arrived, encode_ended

ADMIT = Script.beside(__file__, "admit")
MARK = Script.beside(__file__, "mark")
FINISH = Script.beside(__file__, "finish")
REAP = Script.beside(__file__, "reap")
CONVICT = Script.beside(__file__, "convict")


class RedisRequestRecords:
    """`RequestRecords` on a Redis server."""

    def __init__(self, client: RedisClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def admit(self, request: AdmittedRequest, max_live: int = 0) -> Admission | KeyTaken:
        keys = [
            *(*self._keys_of(request), self._keys.beats, self._keys.arrived(request.pool)),
            *self._client_keys_of(request),
        ]
        client_key = request.client_key
        arguments: list[Argument] = [
            *(request.rid, request.gateway_incarnation, max_live, LIVE_TTL_S),
            client_key.body if client_key else "",
            *(encode_arrived(request), MAX_LENGTH, TRAFFIC_TTL_S),
            *_fields(request),
        ]
        reply = await self._client.run(ADMIT, keys, arguments)
        with narrowing():
            answer, *used = as_list(reply)
            return _key_taken(used) if used else Admission(as_text(answer))

    async def mark(self, gateway_incarnation: str, progress: Mapping[str, int]) -> None:
        keys = [self._keys.request(rid) for rid in progress]
        if keys:
            await self._client.run(MARK, keys, [gateway_incarnation, *progress.values()])

    async def finish(self, request: AdmittedRequest, outcome: Outcome) -> Finish:
        arguments: list[Argument] = [
            *(request.rid, request.gateway_incarnation, ENDED_TTL_S),
            *(encode_ended(request, outcome, time.time_ns()), MAX_LENGTH, TRAFFIC_TTL_S),
            *(CLIENT_KEY_TTL_S, request.priority, request.tenant, outcome.owed),
            *_fields(request),
            *("state", outcome.state, "code", outcome.code),
            *("num_output_tokens", outcome.num_output_tokens),
            *("num_cached_tokens", outcome.num_cached_tokens),
            *("num_attempts", outcome.num_attempts),
        ]
        order, _, clock, _ = self._keys.backlog(request.backlog)
        keys = [
            *self._keys_of(request),
            *(self._keys.ended(request.pool), order, clock),
            *self._client_keys_of(request),
        ]
        answer = as_list(await self._client.run(FINISH, keys, arguments))
        if not answer:
            return Finish(None, written=False)
        with narrowing():
            written, *stored = answer
            return Finish(_outcome(stored), written=bool(as_int(written)))

    async def reap(self, rid: str, gateway_incarnation: str, beat: int) -> ReapVerdict:
        keys = [self._keys.request(rid), self._keys.live(gateway_incarnation), self._keys.beats]
        arguments: list[Argument] = [
            rid,
            gateway_incarnation,
            beat,
            ABANDONED_TTL_S,
            self._keys.tenant(""),
            self._keys.client_key(""),
        ]
        verdict = as_text(await self._client.run(REAP, keys, arguments))
        with narrowing():
            return ReapVerdict(verdict)

    async def convict(self, fingerprints: Collection[str], life_s: int) -> Mapping[str, float]:
        arguments: list[Argument] = [life_s, MAX_CONVICTED, *fingerprints]
        answer = as_list(await self._client.run(CONVICT, [self._keys.convicted], arguments))
        names, seconds = map(as_text, answer[::2]), map(as_int, answer[1::2])
        with narrowing():
            return dict(zip(names, map(float, seconds), strict=True))

    async def read(self, rid: str) -> RequestRecord | None:
        fields = as_fields(await self._client.command("HGETALL", self._keys.request(rid)))
        if not fields:
            return None
        with narrowing():
            return _record(rid, fields)

    def _keys_of(self, request: AdmittedRequest) -> list[str]:
        return [
            self._keys.request(request.rid),
            self._keys.live(request.gateway_incarnation),
            self._keys.tenant(request.tenant),
        ]

    def _client_keys_of(self, request: AdmittedRequest) -> list[str]:
        """At most one."""
        return [self._keys.client_key(request.client_key.name)] if request.client_key else []


def _record(rid: str, fields: Mapping[str, Reply]) -> RequestRecord:
    request = AdmittedRequest(
        rid=rid,
        gateway_incarnation=as_text(fields["g_inc"]),
        tenant=as_text(fields["tenant"]),
        pool=as_text(fields["pool"]),
        num_prompt_tokens=as_int(fields["num_prompt_tokens"]),
        received_ns=as_int(fields["received_ns"]),
        client_key=_client_key(fields),
    )
    return RequestRecord(
        request,
        RequestState(as_text(fields["state"])),
        as_text(fields.get("code", b"")),
        as_int(fields.get("num_output_tokens", 0)),
        as_int(fields.get("num_cached_tokens", 0)),
        as_int(fields.get("num_attempts", 0)),
    )


def _fields(request: AdmittedRequest) -> list[Argument]:
    fields: list[Argument] = [
        *("g_inc", request.gateway_incarnation, "tenant", request.tenant, "pool", request.pool),
        *("num_prompt_tokens", request.num_prompt_tokens, "received_ns", request.received_ns),
    ]
    if request.client_key is not None:
        fields += ["client_key", request.client_key.name, "body", request.client_key.body]
    return fields


def _client_key(fields: Mapping[str, Reply]) -> ClientKey | None:
    if "client_key" not in fields:
        return None
    return ClientKey(as_text(fields["client_key"]), as_text(fields["body"]))


def _key_taken(used: Sequence[Reply]) -> KeyTaken:
    rid, same_body, state, *usage = used
    outcome = None
    if as_text(state) not in (RequestState.LIVE, RequestState.ABANDONED):
        outcome = _outcome([state, *usage])
    return KeyTaken(as_text(rid), bool(as_int(same_body)), outcome)


def _outcome(stored: Sequence[Reply]) -> Outcome:
    state, code, num_output, num_cached, num_attempts = stored
    return Outcome(
        _final(as_text(state)),
        as_text(code),
        as_int(num_output),
        as_int(num_cached),
        as_int(num_attempts),
    )


def _final(text: str) -> FinalState:
    state = RequestState(text)
    if state is RequestState.LIVE or state is RequestState.ABANDONED:
        raise StateUnavailableError(f"redis: FINISH left a record {state}")
    return state
