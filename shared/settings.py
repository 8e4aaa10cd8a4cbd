"""Every setting of Baton, once: name, default, unit, limits, and who reads it.

A setting `kv_blocks` is `--kv-blocks` on a command line, `BATON_KV_BLOCKS` in the environment
and `kvBlocks` in Helm values. A flag beats the environment, the environment beats the default.
This is the only module that reads the environment. A bad value, or a `BATON_` variable that
names no setting, stops the start with a SettingsError that says which and why.
`BATON_CELL_SECRET_FILE`, `BATON_KV_SECRET_FILE` and `BATON_REDIS_FILE` name a file that holds the
value instead. The cell's secret is never a flag.
"""

import os
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from shared.challenge import purpose_key
from shared.errors import SettingsError

PREFIX = "BATON_"
NOT_SETTINGS = frozenset({"BATON_URL"})
"""variables of ours that clients read and no process is configured by"""

SECRETS = frozenset({"cell_secret", "kv_secret", "redis"})
"""settings that no list of processes may show; a file may hold them, so that nothing else does"""
FILE_SUFFIX = "_FILE"
NEVER_FLAGS = frozenset({"cell_secret"})
"""settings of every process that come from the environment or a file only"""

LOOPBACK = "127.0.0.1"
Role = Literal["gateway", "prefill", "decode"]


def _setting(
    default: Any,
    help_text: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    return field(
        default=default,
        metadata={"help": help_text, "low": low, "high": high, "choices": choices},
    )


@dataclass(frozen=True)
class Settings:
    """The whole configuration of one process; immutable after the start."""

    # Model
    model: str = _setting("demo", "checkpoint directory, hub id, or 'demo'")
    random_weights: bool = _setting(
        False, "the model is a shape like llama-3.1-8b, its weights are drawn, its answers noise"
    )
    served_model_name: str = _setting("", "name clients use; default: the model's own")
    tool_parser: str = _setting(
        "auto",
        "syntax of the model's tool calls; auto = as its chat template shows it",
        choices=("auto", "none", "hermes", "llama", "mistral"),
    )
    reasoning_parser: str = _setting(
        "auto",
        "marks of the model's reasoning; auto = as its chat template or tokenizer has them",
        choices=("auto", "none", "think"),
    )
    thinking: str = _setting(
        "auto",
        "off: a model that can think does not, unless a request asks for it",
        choices=("auto", "off"),
    )
    dtype: str = _setting(
        "auto",
        "weights and KV type; auto = float32 on a CPU, the checkpoint's on a GPU",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    device: str = _setting("auto", "auto, cpu, cuda or cuda:N")
    tp: int = _setting(
        1, "GPUs that compute one model together, from the device's number on", low=1, high=8
    )
    max_model_len: int = _setting(0, "longest sequence in tokens; 0 = the model's", low=0)

    # KV cache
    block_size: int = _setting(16, "token positions per KV block", low=1, high=256)
    kv_blocks: int = _setting(0, "KV blocks per worker; 0 = as many as fit", low=0)
    gpu_memory_utilization: float = _setting(
        0.9, "share of the GPU's memory to use", low=0.05, high=1.0
    )
    kv_memory_mib: int = _setting(256, "KV pool on a CPU when kv_blocks is 0, MiB", low=1)
    kv_secret: str = _setting(
        "", "secret that salts block hashes; same on all gateways; empty: made from cell_secret"
    )

    # Engine
    threads: int = _setting(
        1, "torch threads per engine; more than 1 gives up bit-exact answers", low=1, high=512
    )
    max_num_batched_tokens: int = _setting(
        0, "tokens one step may compute; 0 = 512 on a CPU, 2048 on a GPU", low=0, high=131072
    )
    max_num_seqs: int = _setting(
        0, "sequences that run at once; 0 = 64 on a CPU, 256 on a GPU", low=0, high=4096
    )
    eager: bool = _setting(False, "decode on a GPU kernel by kernel, without CUDA graphs")
    prefix_cache: bool = _setting(True, "reuse KV blocks of equal prefixes")
    engine_silence_s: float = _setting(
        8.0, "a worker ends when its engine hangs for so long, s; 0 = never", low=0.0, high=86400
    )

    # Network
    cell_secret: str = _setting(
        "", "secret that all processes of a cell share; links and KV pulls prove it; never a flag"
    )
    host: str = _setting(LOOPBACK, "address to listen on")
    port: int = _setting(8000, "HTTP port of the gateway; 0 picks one", low=0, high=65535)
    admin_port: int = _setting(
        0,
        "HTTP port of the gateway for /health, /ready, /metrics and status; 0 picks one",
        low=0,
        high=65535,
    )
    worker_port: int = _setting(0, "link port of a worker; 0 picks one", low=0, high=65535)
    transfer_port: int = _setting(0, "KV port of a prefill worker; 0 picks", low=0, high=65535)
    worker_advertise: str = _setting(
        "", "host:port gateways dial instead of the link port, behind a NAT or a proxy"
    )
    transfer_advertise: str = _setting(
        "", "host:port decode workers dial instead of the KV port, behind a NAT or a proxy"
    )
    probe_port: int = _setting(
        0, "HTTP port of a worker's /health and /ready; 0 = none", low=0, high=65535
    )
    worker_id: str = _setting("", "stable name of a worker; default: role and pid")

    topology: str = _setting(
        "auto",
        "pd: prefill and decode apart; agg: decode workers do both; auto: by who registers",
        choices=("auto", "pd", "agg"),
    )

    # State
    redis: str = _setting("embedded", "embedded, redis://..., rediss://... or unix://...")

    # Requests
    request_timeout_s: float = _setting(
        0.0, "longest life of a request, s; 0 = no limit", low=0.0, high=86400
    )
    first_token_timeout_s: float = _setting(
        300.0, "longest wait for a request's first token, and for each next, s", low=0.1, high=86400
    )
    drain_s: float = _setting(
        30.0, "after SIGTERM what runs may finish for, s", low=0.0, high=86400
    )
    max_attempts: int = _setting(
        4, "strikes (deaths without 64 tokens between them) that end a request", low=1, high=16
    )
    max_live_requests: int = _setting(1024, "requests one gateway owns at once", low=1)
    max_backlog: int = _setting(256, "requests that may wait for room", low=0)
    unknown_fields: str = _setting(
        "ignore", "what is done with fields nobody knows", choices=("ignore", "refuse")
    )
    max_body_bytes: int = _setting(4 * 2**20, "largest HTTP body, bytes", low=1024)
    slow_reader_s: float = _setting(30.0, "a stalled reader is cut after, s", low=0.1)

    # Hand-over
    transport: str = _setting("tcp", "how KV blocks travel", choices=("tcp",))
    lease_s: float = _setting(30.0, "sealed blocks wait this long for their reader, s", low=0.05)
    max_pulls: int = _setting(2, "pulls a decode worker runs at once", low=1, high=64)

    # Telemetry
    otlp_endpoint: str = _setting("", "OTLP/HTTP base URL for traces; empty exports nothing")
    log_level: str = _setting("info", "log level", choices=("debug", "info", "warning", "error"))
    debug: bool = _setting(False, "show tracebacks")
    fault_delay: str = _setting("", "planted delays for tests: stage=ms[,stage=ms]")

    def __post_init__(self) -> None:
        for item in fields(self):
            _check(item.name, getattr(self, item.name), item.metadata)

    def tokens_per_step(self, device_type: str) -> int:
        """max_num_batched_tokens of an engine on that kind of device."""
        return self.max_num_batched_tokens or (512 if device_type == "cpu" else 2048)

    def running_seqs(self, device_type: str) -> int:
        """max_num_seqs of an engine on that kind of device; if it is left open, no more than one
        step can advance beside a block of a prompt."""
        most = self.tokens_per_step(device_type) - self.block_size + 1
        return self.max_num_seqs or max(1, min(64 if device_type == "cpu" else 256, most))

    @property
    def embedded_redis(self) -> bool:
        return self.redis == "embedded"

    @property
    def block_hash_secret(self) -> bytes:
        """What salts block hashes."""
        if self.kv_secret or not self.cell_secret:
            return self.kv_secret.encode()
        return purpose_key(self.cell_secret, "block hashes")

    def without_secrets(self) -> "Settings":
        """For a process that needs none: an environment can be read in /proc."""
        return replace(self, cell_secret="", kv_secret="", redis="embedded")


def load_settings(
    flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
) -> Settings:
    """Settings from flags over environment over defaults.

    `flags` maps setting names to typed values; None means "not given". SettingsError on an
    unknown name, an unknown `BATON_` variable, or a value out of its limits.
    """
    known = {item.name: item for item in fields(Settings)}
    values = _from_environment(os.environ if environ is None else environ)
    for name, value in (flags or {}).items():
        if name not in known:
            raise SettingsError(f"unknown setting {name!r}")
        if value is not None:
            values[name] = value
    return Settings(**values)


def to_environment(settings: Settings) -> dict[str, str]:
    """The `BATON_` variables that make another process load these same settings."""
    return {
        PREFIX + item.name.upper(): _as_text(getattr(settings, item.name))
        for item in fields(Settings)
        if getattr(settings, item.name) != item.default
    }


def flag_name(name: str) -> str:
    return "--" + name.replace("_", "-")


def helm_name(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def environment_name(name: str) -> str:
    return PREFIX + name.upper()


def parse(name: str, text: str) -> Any:
    """The typed value of a setting given as text."""
    kind = _hints()[name]
    try:
        if kind is bool:
            return _parse_bool(text)
        return kind(text)
    except ValueError:
        raise SettingsError(
            f"{flag_name(name)} ({environment_name(name)}): {text!r} is not {_article(kind)}"
        ) from None


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for variable, text in sorted(_with_files_read(environ).items()):
        if not variable.startswith(PREFIX) or variable in NOT_SETTINGS:
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name not in _hints() or variable != environment_name(name):
            raise SettingsError(f"{variable} names no setting; `baton serve --help` lists them")
        values[name] = parse(name, text)
    return values


def _with_files_read(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment with each secret itself in place of the name of its file."""
    read = dict(environ)
    for variable in map(environment_name, sorted(SECRETS)):
        path = read.pop(variable + FILE_SUFFIX, None)
        if path is None:
            continue
        if variable in read:
            raise SettingsError(f"{variable} and {variable}{FILE_SUFFIX} are both given")
        try:
            read[variable] = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{variable}{FILE_SUFFIX}: cannot read it: {error}") from None
    return read


def _check(name: str, value: Any, limits: Mapping[str, Any]) -> None:
    kind = _hints()[name]
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise SettingsError(f"{flag_name(name)}: {value!r} is not {_article(kind)}")
    if limits["choices"] and value not in limits["choices"]:
        raise SettingsError(f"{flag_name(name)}: {value!r} is not one of {limits['choices']}")
    low, high = limits["low"], limits["high"]
    if low is not None and not value >= low:
        raise SettingsError(f"{flag_name(name)}: {value} is below {low}")
    if high is not None and not value <= high:
        raise SettingsError(f"{flag_name(name)}: {value} is above {high}")


def _parse_bool(text: str) -> bool:
    choices = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if text.lower() not in choices:
        raise ValueError(text)
    return choices[text.lower()]


def _article(kind: type) -> str:
    return {int: "an integer", float: "a number", bool: "true or false", str: "text"}[kind]


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _hints() -> dict[str, type]:
    hints = typing.get_type_hints(Settings)
    assert not any(isinstance(hint, types.UnionType) for hint in hints.values())
    return hints
