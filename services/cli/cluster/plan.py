"""What `baton up` will start, decided before anything is started. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from services.cli.flags import secrets_environment, to_flags
from shared.engine.loading.pool_size import check_gpus_suffice
from shared.errors import SettingsError
from shared.settings.groups import LOOPBACK, Settings
from shared.settings.load import changed, load_settings
from shared.settings.setting import environment_name

Topology = Literal["pd", "agg"]
Role = Literal["gateway", "prefill", "decode"]
UP_DRAIN_S = 1.0
"""whoever stops `baton up` is waiting; a pod has the whole drain"""
MAX_WORKERS = 64
"""workers in one cell"""


@dataclass(frozen=True)
class ProcessSpec:
    """One process to run: `baton serve ROLE FLAGS`, with secrets in its environment."""

    name: str
    role: Role
    flags: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Machine:
    """What the plan depends on."""

    num_cores: int
    num_gpus: int


@dataclass(frozen=True)
class Plan:
    """The processes of one `baton up`; `settings` are the ones they share."""

    topology: Topology
    why: str
    """of the topology; empty where nobody has to know"""
    num_prefill: int
    num_decode: int
    settings: Settings
    num_gpus: int
    """GPUs to spread the workers over; 0 leaves the choice to each"""

    @property
    def worker_names(self) -> tuple[str, ...]:
        prefill = tuple(f"prefill-{i}" for i in range(self.num_prefill))
        return prefill + tuple(f"decode-{i}" for i in range(self.num_decode))

    @property
    def summary(self) -> str:
        """One sentence that says what starts, and why."""
        workers = f"{self.num_decode} decode"
        if self.topology == "pd":
            workers = f"{self.num_prefill} prefill, {workers}"
        topology = f"{self.topology} ({self.why})" if self.why else self.topology
        return f"{topology}: {workers}; {self._transport}{self._threads}"

    @property
    def _transport(self) -> str:
        return f"KV {self.settings.handover.transport}; " if self.topology == "pd" else ""

    @property
    def _threads(self) -> str:
        threads = self.settings.engine.threads
        if threads == 1:
            return "1 thread each"
        if self.num_gpus:
            return f"{threads} threads each"
        return f"{threads} threads each (answers are not bit-exact; --threads 1 keeps them so)"

    def processes(self, redis_url: str, port: int, tag: str = "") -> tuple[ProcessSpec, ...]:
        """The gateway first, then the workers. `tag` keeps worker ids apart on a shared Redis."""
        drain_s = min(self.settings.limits.drain_s, UP_DRAIN_S)
        shared = changed(self.settings, redis=redis_url, drain_s=drain_s)
        gateway = changed(shared, port=port, topology=self.topology)
        specs = [_spec("gateway", "gateway", gateway)]
        for index, name in enumerate(self.worker_names):
            role: Role = "prefill" if index < self.num_prefill else "decode"
            device = shared.compute.device
            if self.num_gpus > 1 and device == "auto":
                device = f"cuda:{index * shared.compute.tp % self.num_gpus}"
            worker = changed(shared, host=LOOPBACK, port=0, worker_id=name + tag, device=device)
            specs.append(_spec(name, role, worker))
        return tuple(specs)


def make_plan(
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    machine: Machine,
    *,
    topology: Topology | None = None,
    num_prefill: int | None = None,
    num_decode: int | None = None,
) -> Plan:
    """The plan for settings given as flags and environment; SettingsError when impossible.

    Workers that are not counted: one of each role with pd, one per GPU with agg.
    """
    settings = load_settings(flags, environ)
    device, tp = settings.compute.device, settings.compute.tp
    num_gpus = 0 if device == "cpu" else machine.num_gpus
    one_device = device.startswith("cuda") and tp == 1
    num_places = min(num_gpus, 1) if one_device else num_gpus
    topology, why = choose_topology(topology, num_places, tp)
    if topology == "agg" and num_prefill is not None:
        raise SettingsError(
            f"--prefill has no meaning with topology agg ({why}); prefill workers take "
            "--topology pd"
        )
    if num_prefill is None:
        num_prefill = 0 if topology == "agg" else 1
    if num_decode is None:
        num_decode = max(1, num_places // tp) if topology == "agg" else 1
    if num_decode < 1 or (topology == "pd" and num_prefill < 1):
        raise SettingsError("--prefill and --decode must be at least 1")
    num_workers = num_prefill + num_decode
    if num_workers > MAX_WORKERS:
        raise SettingsError(f"{num_workers} workers; at most {MAX_WORKERS} work together")
    if tp > 1 and 0 < num_gpus < num_workers * tp:
        raise SettingsError(
            f"{num_workers} workers with --tp {tp} take {num_workers * tp} GPUs, "
            f"and there are {num_gpus}: fewer workers (--decode) or a smaller --tp"
        )
    check_gpus_suffice(
        kv_blocks=settings.kv.blocks, tp=tp, num_workers=num_workers, num_gpus=num_places
    )
    if not _is_given("threads", flags, environ):
        threads = max(1, machine.num_cores // (num_workers * tp))
        settings = changed(settings, threads=threads)
    return Plan(topology, why, num_prefill, num_decode, settings, num_gpus)


def _is_given(name: str, flags: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    return name in flags or environment_name(name) in environ


def choose_topology(requested: Topology | None, num_gpus: int, tp: int = 1) -> tuple[Topology, str]:
    """The topology and the reason for it. `tp`: GPUs that share one worker's model."""
    if tp > 1 and requested == "pd":
        raise SettingsError(
            f"--topology pd with --tp {tp}: several GPUs cannot hand KV over to another worker; "
            "--topology agg, or --tp 1"
        )
    if requested is not None:
        return requested, "as asked"
    if tp > 1:
        return "agg", f"the default with --tp {tp}"
    if num_gpus == 0:
        return "pd", "the default on a CPU"
    if num_gpus == 1:
        return "agg", "the default with one GPU"
    return "agg", (
        f"the default with {num_gpus} GPUs until hand-overs between them are shown to keep up; "
        "--topology pd hands over all the same"
    )


def _spec(name: str, role: Role, settings: Settings) -> ProcessSpec:
    return ProcessSpec(name, role, tuple(to_flags(settings)), secrets_environment(settings))
