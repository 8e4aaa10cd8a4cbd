"""Who a worker is: its role, its stable id, and this run of it."""

import os
import socket
from dataclasses import dataclass
from typing import Literal

from shared.process import new_incarnation
from shared.protocol import VERSION, Hello, Load
from shared.release import release
from shared.settings import Settings
from shared.state.registry import WorkerEntry
from shared.worker.channel import Ready

WorkerRole = Literal["prefill", "decode"]


@dataclass(frozen=True)
class Identity:
    """Facts that do not change while the process lives."""

    role: WorkerRole
    worker_id: str
    inc: str
    served_model: str
    host: str
    """address gateways dial"""

    @classmethod
    def of_process(cls, settings: Settings, role: WorkerRole) -> "Identity":
        worker_id = settings.worker_id or f"{role}-{os.getpid()}"
        inc = new_incarnation(worker_id)
        return cls(role, worker_id, inc, settings.served_model_name, settings.host)

    def hello(self, pool: str, load: Load, transfer_address: str) -> Hello:
        return Hello(
            VERSION,
            self.role,
            self.inc,
            pool,
            load=load,
            transfer_address=transfer_address,
            pid=os.getpid(),
            host=socket.gethostname(),
        )

    def entry(self, ready: Ready, pool: str, port: int) -> WorkerEntry:
        return WorkerEntry(
            worker_id=self.worker_id,
            inc=self.inc,
            role=self.role,
            host=self.host,
            port=port,
            pool=pool,
            pid=os.getpid(),
            version=release(),
            model=self.served_model,
            max_model_len=ready.max_model_len,
            block_size=ready.layout.block_size,
        )
