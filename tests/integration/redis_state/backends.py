"""The implementations that contract tests run on."""

from dataclasses import dataclass

from shared.clock import SystemClock
from shared.queue.backlog import Backlog
from shared.queue.memory_backlog import MemoryBacklog
from shared.queue.redis_backlog import RedisBacklog
from shared.state.keys import Keys
from shared.state.kv_events import KVEvents
from shared.state.liveness import GatewayLiveness
from shared.state.memory_records import MemoryGatewayLiveness, MemoryRequestRecords
from shared.state.memory_registry import MemoryWorkerRegistry
from shared.state.notes.receipt_calls import ReceiptCalls
from shared.state.notes.scaling import ScalingNotes
from shared.state.records import RequestRecords
from shared.state.redis_client import RedisClient
from shared.state.redis_kv_events import RedisKVEvents
from shared.state.redis_liveness import RedisGatewayLiveness
from shared.state.redis_records import RedisRequestRecords
from shared.state.redis_registry import RedisWorkerRegistry
from shared.state.registry import WorkerRegistry
from shared.state.traffic import Traffic
from tests.support.fakes.memory_kv_events import MemoryKVEvents

MAX_LENGTH = 6
"""of a backlog, when the test does not care"""


class MemoryBackend:
    """All interfaces in memory."""

    def __init__(self) -> None:
        liveness = MemoryGatewayLiveness()
        self.liveness: GatewayLiveness = liveness
        records = MemoryRequestRecords(liveness, SystemClock())
        self.records: RequestRecords = records
        self._beats = liveness.beats
        queue = MemoryBacklog(MAX_LENGTH, self._beats)
        records.settle = queue.settle
        self.queue: Backlog = queue

    def registry(self, ttl_s: float = 60) -> WorkerRegistry:
        return MemoryWorkerRegistry(SystemClock(), ttl_s)

    def kv_events(self, kept: int = 1024) -> KVEvents:
        return MemoryKVEvents(kept)

    def backlog(self, max_length: int = MAX_LENGTH) -> Backlog:
        return MemoryBacklog(max_length, self._beats)


@dataclass
class RedisBackend:
    """All interfaces on one server."""

    client: RedisClient
    keys: Keys

    @property
    def scaling(self) -> ScalingNotes:
        return ScalingNotes(self.client, self.keys)

    def receipt_calls(self, gateway_incarnation: str) -> ReceiptCalls:
        return ReceiptCalls(self.client, self.keys, gateway_incarnation)

    @property
    def liveness(self) -> GatewayLiveness:
        return RedisGatewayLiveness(self.client, self.keys)

    @property
    def records(self) -> RequestRecords:
        return RedisRequestRecords(self.client, self.keys)

    @property
    def traffic(self) -> Traffic:
        return Traffic(self.client, self.keys)

    def registry(self, ttl_s: float = 60) -> WorkerRegistry:
        return RedisWorkerRegistry(self.client, self.keys, ttl_s)

    def kv_events(self, kept: int = 1024) -> KVEvents:
        return RedisKVEvents(self.client, self.keys, kept)

    @property
    def queue(self) -> Backlog:
        return self.backlog()

    def backlog(self, max_length: int = MAX_LENGTH) -> Backlog:
        return RedisBacklog(self.client, self.keys, "pool", max_length)


Backend = MemoryBackend | RedisBackend
