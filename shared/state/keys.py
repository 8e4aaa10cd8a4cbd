"""Every Redis key of Baton: its type, its life, and its writers.

All keys start with `<deployment>:<SHAPE>:`, so deployments can share a server, and so can releases
that would misread each other: what one of another shape wrote is not seen. Values are hashes of
blocks, lengths, counts, ids and the tenant's id; never a byte of a prompt, a token or KV. Choices
of one HTTP request are recorded together, by its id; in the backlog each waits for itself, by its
own.

| key                    | type   | holds                                  | life        |
|------------------------|--------|----------------------------------------|-------------|
| request:{rid}          | hash   | the record of an HTTP request          | RECORD      |
| live:{g_inc}           | set    | rids a gateway owns and has not ended  | LIVE        |
| tenant:{tenant}        | set    | live rids of a tenant that has a quota | LIVE        |
| beats                  | hash   | g_inc -> number of beats               | LIVE        |
| pools                  | set    | pools that have or had a worker        | WORKER_KEYS |
| workers:{pool}         | hash   | inc -> WorkerEntry (msgpack)           | WORKER_KEYS |
| workers-expiry:{pool}  | zset   | inc -> server time it goes stale, ms   | WORKER_KEYS |
| workers-drains:{pool}  | zset   | inc -> server time its drain ends, ms  | WORKER_KEYS |
| arrived:{pool}         | stream | HTTP requests that came, capped        | TRAFFIC     |
| ended:{pool}           | stream | HTTP requests that ended, capped       | TRAFFIC     |
| scaling:{pool}         | string | the autoscaler's last decision         | WORKER_KEYS |
| kv-events:{inc}        | stream | numbered prefix-cache changes, capped  | KV          |
| kv-held:{inc}          | set    | the sum of all those changes           | KV          |
| backlog-order:{pool}   | zset   | waiting requests by class and tag      | LIVE        |
| backlog-entries:{pool} | hash   | rid -> entry (msgpack)                 | LIVE        |
| backlog-clock:{pool}   | hash   | virtual times, debts, arrivals, passes | LIVE        |
| backlog-finish:{pool}  | zset   | class:tenant -> finish tag             | LIVE        |
| receipt-calls:{g_inc}  | list   | receipts that a gateway is asked for   | CALL        |
| receipt-told:{call}    | string | the receipt, as JSON                   | CALL        |
| convicted              | zset   | hash of a request -> when it is over   | CONVICT     |
| client-key:{name}      | hash   | the request with this Idempotency-Key  | CLIENT_KEY  |

A worker's access rights need neither the first four nor `arrived`, `ended`, `scaling` and the last
four: those are for gateways, and for the autoscaler, which reads what came and ended and writes
drains and decisions.

RECORD is LIVE, then ENDED or ABANDONED; CLIENT_KEY is LIVE, then an hour or ABANDONED. A life is
refreshed by each write. Lives only collect garbage: they run on the server's wall clock, so nothing
that matters is decided by one.
"""

from dataclasses import dataclass

SHAPE = 1
"""of all that is kept. CONTRIBUTING.md says which change raises it, and what it costs"""

LIVE_TTL_S = 90_000
"""longer than the longest request timeout (86,400 s); FINISH writes what expired whole again"""
ENDED_TTL_S = 60
"""an ended record stays for a minute, far longer than its last calls may be repeated"""
ABANDONED_TTL_S = 600
"""its owner may still come back"""
WORKER_TTL_S = 4.0
"""a registry entry that is not refreshed goes stale after this"""
WORKER_KEYS_TTL_S = 60
TRAFFIC_TTL_S = 3600
"""since the last that came, or ended"""
CALL_TTL_S = 10
"""nobody waits for so long"""
CLIENT_KEY_TTL_S = 3600
"""since its request ended: a client that repeats it so late gets it computed, and billed, again"""
CONVICT_TTL_S = 600
"""since the last one was noted"""
KV_TTL_S = 120
"""prefix-cache keys of a worker that stopped publishing; it writes at least every 10 s"""


@dataclass(frozen=True)
class Keys:
    """Names of all keys of one deployment."""

    deployment: str = "baton"

    def request(self, rid: str) -> str:
        return self._key("request", rid)

    def live(self, gateway_incarnation: str) -> str:
        return self._key("live", gateway_incarnation)

    def tenant(self, tenant: str) -> str:
        return self._key("tenant", tenant)

    @property
    def beats(self) -> str:
        return self._key("beats")

    def client_key(self, name: str) -> str:
        return self._key("client-key", name)

    @property
    def convicted(self) -> str:
        return self._key("convicted")

    @property
    def pools(self) -> str:
        return self._key("pools")

    def workers(self, pool: str) -> tuple[str, str]:
        """Entries and their expiries."""
        return self._key("workers", pool), self._key("workers-expiry", pool)

    def drains(self, pool: str) -> str:
        return self._key("workers-drains", pool)

    def arrived(self, pool_id: str) -> str:
        return self._key("arrived", pool_id)

    def ended(self, pool_id: str) -> str:
        return self._key("ended", pool_id)

    def scaling(self, pool_id: str) -> str:
        return self._key("scaling", pool_id)

    def receipt_calls(self, gateway_incarnation: str) -> str:
        return self._key("receipt-calls", gateway_incarnation)

    def receipt_told(self, call: str) -> str:
        return self._key("receipt-told", call)

    def kv(self, incarnation: str) -> tuple[str, str]:
        """Event stream and held set."""
        return self._key("kv-events", incarnation), self._key("kv-held", incarnation)

    def backlog(self, pool: str) -> tuple[str, str, str, str]:
        """Order, entries, clock and finish tags."""
        return (
            self._key("backlog-order", pool),
            self._key("backlog-entries", pool),
            self._key("backlog-clock", pool),
            self._key("backlog-finish", pool),
        )

    def _key(self, *parts: str) -> str:
        return ":".join((self.deployment, str(SHAPE), *parts))
