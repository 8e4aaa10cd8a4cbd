"""The identity of this gateway and what it serves, as `status` shows it."""

from dataclasses import dataclass

from services.gateway.owner.links.served_pool import ServedPool
from shared.kv.block_hash import BlockHashing
from shared.settings.groups import KVPressure, Topology


@dataclass(frozen=True)
class GatewayIdentity:
    """Facts fixed at the start, and the pool, which the workers name."""

    gateway_incarnation: str
    """gateway id, a dot, and a boot nonce"""
    served: ServedPool
    version: str
    url: str
    model: str
    """name clients use"""
    max_model_len: int
    hashing: BlockHashing
    """how blocks are named before it is known which pool serves"""
    topology: Topology = "auto"
    """pd: wait for a prefill worker after the start; agg: none is expected; auto: by what the
    registry has listed so far"""
    admin_url: str = ""
    """of the listener that only probes, scrapers and operators use"""
    on_kv_pressure: KVPressure = "preempt"
    """reject: a request that would wait for KV blocks is refused"""
    vocab_size: int = 2**31
    """a worker's token ids are below this"""

    @property
    def pool(self) -> str:
        """(model, revision, layout fingerprint) its workers share; empty until one registered"""
        return self.served.name

    @property
    def block_size(self) -> int:
        return self.served.block_size
