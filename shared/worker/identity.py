"""The identity of a worker: its role, its stable id, and this run of it."""

import os
import socket
from dataclasses import dataclass
from typing import Literal

from shared.errors import SettingsError
from shared.process import new_incarnation
from shared.protocol import Hello, Load
from shared.release import release
from shared.settings.groups import WorkerSettings
from shared.state.registry import WorkerEntry
from shared.transfer_address import TransferAddress
from shared.worker.channel import Ready

WorkerRole = Literal["prefill", "decode"]


@dataclass(frozen=True)
class Identity:
    """Facts that do not change while the process lives."""

    role: WorkerRole
    worker_id: str
    incarnation: str
    served_model: str
    host: str
    """address gateways dial"""
    advertised: str = ""
    """host:port they dial instead, when it is not empty"""

    @classmethod
    def of_process(
        cls, role: WorkerRole, settings: WorkerSettings, served_model: str, host: str
    ) -> "Identity":
        worker_id = settings.id or f"{role}-{os.getpid()}"
        inc = new_incarnation(worker_id)
        _split(settings.advertise)
        return cls(role, worker_id, inc, served_model, host, settings.advertise)

    def hello(
        self,
        pool: str,
        load: Load,
        transfer_address: TransferAddress,
        prefill_token_s: float = 0.0,
        room_limit_tokens: int = 0,
    ) -> Hello:
        return Hello(
            self.role,
            self.incarnation,
            pool,
            load=load,
            transfer_address=transfer_address,
            pid=os.getpid(),
            host=socket.gethostname(),
            prefill_token_s=prefill_token_s,
            room_limit_tokens=room_limit_tokens,
        )

    def entry(self, ready: Ready, pool: str, port: int) -> WorkerEntry:
        host, port = _split(self.advertised) or (self.host, port)
        return WorkerEntry(
            worker_id=self.worker_id,
            incarnation=self.incarnation,
            role=self.role,
            host=host,
            port=port,
            pool=pool,
            pid=os.getpid(),
            version=release(),
            model=self.served_model,
            max_model_len=ready.max_model_len,
            block_size=ready.layout.block_size,
            step_tokens=ready.step_tokens,
        )


def _split(address: str) -> tuple[str, int] | None:
    """Host and port; None for no address. SettingsError when it is malformed."""
    host, _, port = address.rpartition(":")
    if not address:
        return None
    if not host or not port.isdigit():
        raise SettingsError(f"--worker-advertise: {address!r} is not host:port")
    return host.strip("[]"), int(port)
