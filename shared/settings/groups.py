"""The settings in groups: name, default, unit and limits."""

import re
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from shared.challenge import purpose_key
from shared.errors import SettingsError
from shared.kv.block_hash import BlockHashing
from shared.settings.presets import NO_PRESET, PRESETS
from shared.settings.profiles import PROFILES, StepSize
from shared.settings.setting import Group, setting

LOOPBACK = "127.0.0.1"
Topology = Literal["auto", "pd", "agg"]
KVPressure = Literal["preempt", "queue", "reject"]
_DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]+)?")
_HTTP_URL = re.compile(r"https?://[^/]")


def _port(default: int, help_text: str, *, name: str = "", common: bool = False) -> Any:
    return setting(default, help_text, name=name, low=0, high=65535, common=common)


@dataclass(frozen=True)
class ModelSettings(Group, heading="Model"):
    """Which model is served, under which name, and how it writes what is not plain text."""

    name: str = setting(
        "demo", "checkpoint directory, hub id, or 'demo'", name="model", common=True
    )
    random_weights: bool = setting(
        False, "the model is a shape like llama-3.1-8b, its weights are drawn, its answers noise"
    )
    served_name: str = setting(
        "", "name clients use; default: the model's own", name="served_model_name"
    )
    more_models: str = setting(
        "", "more that the gateway serves, NAME=DIR_OR_HUB_ID with commas between"
    )
    tool_parser: str = setting(
        "auto",
        "syntax of the model's tool calls; auto = as its chat template shows it",
        choices=("auto", "none", "hermes", "llama", "mistral"),
    )
    reasoning_parser: str = setting(
        "auto",
        "marks of the model's reasoning; auto = as its chat template or tokenizer has them",
        choices=("auto", "none", "think"),
    )
    thinking: str = setting(
        "auto",
        "off: a model that can think does not, unless a request asks for it",
        choices=("auto", "off"),
    )


@dataclass(frozen=True)
class ComputeSettings(Group, heading="Compute"):
    """What a worker computes the model on, in which type, and up to which length."""

    dtype: str = setting(
        "auto",
        "weights and KV type; auto = float32 on a CPU, the checkpoint's on a GPU",
        choices=("auto", "float32", "bfloat16", "float16"),
        common=True,
    )
    device: str = setting("auto", "auto, cpu, cuda or cuda:N", common=True)
    tp: int = setting(
        1,
        "GPUs that compute one model together, from the device's number on; on a CPU processes, "
        "for tests",
        low=1,
        high=8,
        common=True,
    )
    max_model_len: int = setting(
        0, "longest sequence in tokens; 0 = the model's", low=0, common=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _DEVICE.fullmatch(self.device):
            raise SettingsError(f"--device: {self.device!r} is not auto, cpu, cuda or cuda:N")


@dataclass(frozen=True)
class KVSettings(Group, heading="KV cache"):
    """The blocks of KV: how large one is, how many there are, and what salts their hashes."""

    block_size: int = setting(16, "token positions per KV block", low=1, high=256)
    blocks: int = setting(0, "KV blocks per worker; 0 = as many as fit", name="kv_blocks", low=0)
    gpu_memory_utilization: float = setting(
        0.9, "share of the GPU's memory to use", low=0.05, high=1.0, common=True
    )
    memory_mib: int = setting(
        256, "KV pool on a CPU when kv_blocks is 0, MiB", name="kv_memory_mib", low=1, common=True
    )
    on_pressure: str = setting(
        "preempt",
        "where KV blocks run short: preempt = a sequence gives way and is computed again; queue = "
        "each starts with all blocks it can ever need, or waits; reject = the same, and 429 "
        "instead of waiting",
        name="on_kv_pressure",
        choices=get_args(KVPressure),
    )
    secret: str = setting(
        "",
        "secret that salts block hashes; same on all gateways; empty: made from cell_secret",
        name="kv_secret",
    )

    def hashing(self, cell_secret: str) -> BlockHashing:
        """How blocks are named in a cell with that secret."""
        secret = self.secret.encode()
        if cell_secret and not secret:
            secret = purpose_key(cell_secret, "block hashes")
        return BlockHashing(secret, self.block_size)


@dataclass(frozen=True)
class EngineSettings(Group, heading="Engine"):
    """How an engine fills its steps, and how it runs them."""

    threads: int = setting(
        1, "torch threads per engine; more than 1 gives up bit-exact answers", low=1, high=512
    )
    profile: str = setting(
        "balanced",
        "what matters most; how large steps are where the next two are 0",
        choices=tuple(PROFILES),
        common=True,
    )
    max_num_batched_tokens: int = setting(
        0, "tokens one step may compute; 0 = by the profile", low=0, high=131072
    )
    max_num_seqs: int = setting(
        0,
        "sequences that run at once; 0 = by the profile",
        low=0,
        high=4096,
    )
    tune: bool = setting(
        False,
        "find the two sizes above that are left open by timing steps here at the start, by the "
        "profile and slo_gap_ms; kept for the next start",
    )
    slo_gap_ms: float = setting(
        50.0, "what users are to wait between two tokens at most, ms", low=1.0
    )
    eager: bool = setting(False, "decode on a GPU kernel by kernel, without CUDA graphs")
    prefix_cache: bool = setting(True, "reuse KV blocks of equal prefixes")
    silence_s: float = setting(
        8.0,
        "a worker ends when its engine hangs for so long, s; 0 = never",
        name="engine_silence_s",
        low=0.0,
        high=86400,
    )

    def tokens_per_step(self, device_type: str) -> int:
        """max_num_batched_tokens of an engine on that kind of device."""
        return self.max_num_batched_tokens or PROFILES[self.profile].on(device_type).num_tokens

    def running_seqs(self, device_type: str, block_size: int) -> int:
        """max_num_seqs of an engine on that kind of device; if it is left open, no more than one
        step can advance together with a block of a prompt."""
        most = self.tokens_per_step(device_type) - block_size + 1
        return self.max_num_seqs or max(
            1, min(PROFILES[self.profile].on(device_type).num_seqs, most)
        )

    def step_size(self, device_type: str, block_size: int) -> StepSize:
        """Both of them."""
        return StepSize(
            self.tokens_per_step(device_type), self.running_seqs(device_type, block_size)
        )


@dataclass(frozen=True)
class NetworkSettings(Group, heading="Network"):
    """Where processes listen, and the secret that those of one cell share."""

    cell_secret: str = setting(
        "", "secret that all processes of a cell share; links and KV pulls prove it; never a flag"
    )
    api_keys_file: str = setting(
        "", "file with the SHA-256 of every client's key and its tenant; empty: anybody may ask"
    )
    host: str = setting(LOOPBACK, "address to listen on", common=True)
    port: int = _port(8000, "HTTP port of the gateway; 0 picks one", common=True)
    admin_port: int = _port(
        0, "HTTP port of the gateway for /health, /ready, /metrics and status; 0 picks one"
    )
    operator_paths: str = setting(
        "both",
        "ports of the gateway that answer /metrics and /v1/baton/...: both, or the admin port only",
        choices=("both", "admin"),
    )


@dataclass(frozen=True)
class WorkerSettings(Group, heading="Worker"):
    """What a worker is called, where it listens, and what others dial instead."""

    port: int = _port(0, "link port of a worker; 0 picks one", name="worker_port")
    transfer_port: int = _port(0, "KV port of a prefill worker; 0 picks")
    advertise: str = setting(
        "",
        "host:port gateways dial instead of the link port, behind a NAT or a proxy",
        name="worker_advertise",
    )
    transfer_advertise: str = setting(
        "", "host:port decode workers dial instead of the KV port, behind a NAT or a proxy"
    )
    probe_port: int = _port(0, "HTTP port of a worker's /health and /ready; 0 = none")
    id: str = setting("", "stable name of a worker; default: role and pid", name="worker_id")


@dataclass(frozen=True)
class CellSettings(Group, heading="Cell"):
    """What the processes of a cell have in common: its purpose, its shape and its store."""

    preset: str = setting(
        NO_PRESET,
        "what it is for: values of settings that are left open; logs say which and why",
        choices=(NO_PRESET, *PRESETS),
    )
    topology: str = setting(
        "auto",
        "pd: prefill and decode apart; agg: decode workers do both; auto: by the workers there are",
        choices=get_args(Topology),
        common=True,
    )
    redis: str = setting(
        "embedded", "embedded, redis://..., rediss://... or unix://...", common=True
    )

    @property
    def embedded_redis(self) -> bool:
        return self.redis == "embedded"


@dataclass(frozen=True)
class LimitSettings(Group, heading="Requests"):
    """What one request may take, how many there may be, and how long each part may last."""

    request_timeout_s: float = setting(
        0.0, "longest life of a request, s; 0 = no limit", low=0.0, high=86400
    )
    first_token_timeout_s: float = setting(
        300.0, "longest wait for a request's first token, and for each next, s", low=0.1, high=86400
    )
    drain_s: float = setting(30.0, "after SIGTERM what runs may finish for, s", low=0.0, high=86400)
    max_attempts: int = setting(
        4, "strikes (deaths without 64 tokens between them) that end a request", low=1, high=16
    )
    max_live_requests: int = setting(1024, "requests one gateway owns at once", low=1)
    max_backlog: int = setting(
        256, "requests that may wait for room, besides those that workers have taken", low=0
    )
    max_wait_s: float = setting(
        60.0,
        "a request that would wait longer for room gets 429, s; 0 = none",
        low=0.0,
        high=86400,
    )
    unknown_fields: str = setting(
        "ignore", "what is done with fields nobody knows", choices=("ignore", "refuse")
    )
    max_body_bytes: int = setting(4 * 2**20, "largest HTTP body, bytes", low=1024)
    slow_reader_s: float = setting(30.0, "a stalled reader is cut after, s", low=0.1)
    keepalive_s: float = setting(
        15.0,
        "a stream that waits so long gets a comment, so that no proxy cuts it, s; 0 = none",
        low=0.0,
        high=86400,
    )


@dataclass(frozen=True)
class HandoverSettings(Group, heading="Hand-over"):
    """How KV goes from a prefill worker to a decode worker."""

    transport: str = setting(
        "auto",
        "how KV blocks travel; mapped: workers of one host read each other's memory; nixl: over "
        "RDMA; nccl: between GPUs; auto: the first of these that a probe shows to work, else over "
        "tcp",
        choices=("auto", "mapped", "nixl", "nccl", "tcp"),
    )
    transfer_dir: str = setting(
        "", "folder where mapped workers of one host meet; empty: this user's own"
    )
    lease_s: float = setting(30.0, "sealed blocks wait this long for their reader, s", low=0.05)
    max_pulls: int = setting(
        2, "pulls a decode worker runs at once from one prefill worker", low=1, high=64
    )


@dataclass(frozen=True)
class TelemetrySettings(Group, heading="Telemetry"):
    """What a process tells, and what a test makes slow so that it shows."""

    otlp_endpoint: str = setting("", "OTLP/HTTP base URL for traces; empty exports nothing")
    slo_ttft_ms: float = setting(
        1000.0, "what users are to wait for the first token at most, ms", low=1.0
    )
    log_level: str = setting("info", "log level", choices=("debug", "info", "warning", "error"))
    debug: bool = setting(False, "show tracebacks")
    planted_faults: str = setting("", "for tests: stage=ms or crash=token id, commas between")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.otlp_endpoint and not _HTTP_URL.match(self.otlp_endpoint):
            raise SettingsError(
                f"--otlp-endpoint: {self.otlp_endpoint!r} does not begin with http:// or https://"
            )


@dataclass(frozen=True)
class Settings:
    """The whole configuration of one process; immutable after the start."""

    model: ModelSettings
    compute: ComputeSettings
    kv: KVSettings
    engine: EngineSettings
    network: NetworkSettings
    worker: WorkerSettings
    cell: CellSettings
    limits: LimitSettings
    handover: HandoverSettings
    telemetry: TelemetrySettings

    @property
    def groups(self) -> tuple[Group, ...]:
        return tuple(getattr(self, item.name) for item in fields(self))

    @property
    def of_engine(self) -> tuple[ComputeSettings, KVSettings, EngineSettings]:
        """The groups an engine is built from."""
        return self.compute, self.kv, self.engine
