"""What `baton up` will start, decided before anything is started. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from services.cli.flags import secrets_environment, to_flags
from shared.engine.loading.pool_size import check_gpus_suffice
from shared.errors import SettingsError
from shared.settings.groups import LOOPBACK, Settings
from shared.settings.load import EVERY_SETTING, changed, load_settings
from shared.settings.presets import preset_values
from shared.settings.setting import environment_name

Topology = Literal["pd", "agg"]
WorkerRole = Literal["prefill", "decode"]
Role = Literal["gateway"] | WorkerRole
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
    reach: bool = False
    """each GPU can copy from the memory of every other"""


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
    prefill_tp: int = 1
    """ranks of a prefill worker, each on a GPU of its own"""
    decode_tp: int = 1
    most_drain_s: float = UP_DRAIN_S
    own_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """of workers that have others than the rest, by name"""

    @property
    def worker_names(self) -> tuple[str, ...]:
        prefill = tuple(f"prefill-{i}" for i in range(self.num_prefill))
        return prefill + tuple(f"decode-{i}" for i in range(self.num_decode))

    @property
    def tps(self) -> tuple[int, ...]:
        """Ranks of each worker."""
        return (self.prefill_tp,) * self.num_prefill + (self.decode_tp,) * self.num_decode

    @property
    def devices(self) -> tuple[str, ...]:
        """Of the first rank of each worker."""
        device = self.settings.compute.device
        if self.num_gpus > 1 and device == "auto":
            return tuple(f"cuda:{gpu}" for gpu in deal(self.tps, self.num_gpus))
        return (device,) * len(self.tps)

    @property
    def on_cpu(self) -> bool:
        return self.num_gpus == 0 and self.settings.compute.device in ("auto", "cpu")

    @property
    def summary(self) -> str:
        """One sentence that says what starts, and why."""
        workers = f"{self.num_decode} decode{_shown(self.decode_tp)}"
        if self.topology == "pd":
            workers = f"{self.num_prefill} prefill{_shown(self.prefill_tp)}, {workers}"
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
        shared = self._settings_with(redis_url)
        specs = [self.gateway(redis_url, port)]
        workers = zip(self.worker_names, self.tps, self.devices, strict=True)
        for index, (name, tp, device) in enumerate(workers):
            role: Role = "prefill" if index < self.num_prefill else "decode"
            worker = changed(
                shared, host=LOOPBACK, port=0, worker_id=name + tag, device=device, tp=tp
            )
            if role == "decode":  # the port that is named is prefill's
                worker = changed(worker, transfer_port=0, transfer_advertise="")
            worker = changed(worker, **self.own_settings.get(name, {}))
            specs.append(_spec(name, role, worker))
        return tuple(specs)

    def gateway(self, redis_url: str, port: int, name: str = "gateway") -> ProcessSpec:
        """`name`: another one, of a gateway next to the first."""
        settings = changed(self._settings_with(redis_url), port=port, topology=self.topology)
        return _spec(name, "gateway", settings)

    def _settings_with(self, redis_url: str) -> Settings:
        drain_s = min(self.settings.limits.drain_s, self.most_drain_s)
        return changed(self.settings, redis=redis_url, drain_s=drain_s)


def deal(tps: Sequence[int], num_gpus: int) -> Iterator[int]:
    """The first GPU of each worker: after those of the one before it, or GPU 0 where too few are
    left there."""
    first = 0
    for tp in tps:
        if first + tp > num_gpus:
            first = 0
        yield first
        first += tp


def make_plan(
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    machine: Machine,
    *,
    topology: Topology | None = None,
    num_prefill: int | None = None,
    num_decode: int | None = None,
    role_tp: Mapping[WorkerRole, int] | None = None,
) -> Plan:
    """The plan for settings given as flags and environment; SettingsError when impossible.

    Workers that are not counted: with agg one per GPU, with pd as many as take half of the GPUs,
    or what the other role leaves; at least one. `role_tp`: of a role whose workers have another
    tp than the settings say.
    """
    settings = load_settings(flags, environ)
    device = settings.compute.device
    num_gpus = 0 if device == "cpu" else machine.num_gpus
    one_device = device.startswith("cuda")
    num_places = min(num_gpus, 1) if one_device else num_gpus
    role_tp = role_tp or {}
    prefill_tp, decode_tp = _tp("prefill", role_tp, settings), _tp("decode", role_tp, settings)
    tp = max(prefill_tp, decode_tp)
    topology, why = choose_topology(topology, num_places, tp, reach=machine.reach)
    if topology == "agg":
        _refuse_prefill(num_prefill, role_tp, why)
        num_prefill = 0
    if num_prefill is None:
        left = num_places // 2 if num_decode is None else num_places - num_decode * decode_tp
        num_prefill = _num_fitting(left, prefill_tp)
    if num_decode is None:
        num_decode = _num_fitting(num_places - num_prefill * prefill_tp, decode_tp)
    if num_decode < 1 or (topology == "pd" and num_prefill < 1):
        raise SettingsError("--prefill and --decode must be at least 1")
    num_workers = num_prefill + num_decode
    if num_workers > MAX_WORKERS:
        raise SettingsError(f"{num_workers} workers; at most {MAX_WORKERS} work together")
    plan = Plan(topology, why, num_prefill, num_decode, settings, num_gpus, prefill_tp, decode_tp)
    if one_device:
        num_places = min(num_gpus, max(plan.tps))
    check_gpus_suffice(plan.tps, kv_blocks=settings.kv.blocks, num_gpus=num_places)
    if _is_given("threads", flags, environ) or "threads" in preset_values(settings.cell.preset):
        return plan
    threads = max(1, machine.num_cores // sum(plan.tps))
    return replace(plan, settings=changed(settings, threads=threads))


def _num_fitting(num_gpus: int, tp: int) -> int:
    """Workers of `tp` ranks, a GPU each; one at the least."""
    return max(1, num_gpus // tp)


def _tp(role: WorkerRole, role_tp: Mapping[WorkerRole, int], settings: Settings) -> int:
    """SettingsError if it is none that a worker takes."""
    if role not in role_tp:
        return settings.compute.tp
    (setting,) = (item for item in EVERY_SETTING if item.name == "tp")
    replace(setting, name=f"{role}_tp").check(role_tp[role])
    return role_tp[role]


def _refuse_prefill(num_prefill: int | None, role_tp: Mapping[WorkerRole, int], why: str) -> None:
    given = {"--prefill": num_prefill, "--prefill-tp": role_tp.get("prefill")}
    for flag, value in given.items():
        if value is not None:
            raise SettingsError(
                f"{flag} has no meaning with topology agg ({why}); prefill workers take "
                "--topology pd"
            )


def _is_given(name: str, flags: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    return name in flags or environment_name(name) in environ


def choose_topology(
    requested: Topology | None, num_gpus: int, tp: int = 1, *, reach: bool = False
) -> tuple[Topology, str]:
    """The topology and the reason for it. `tp`: the most GPUs that share one worker's model;
    `reach`: each GPU can copy from the memory of every other."""
    if requested is not None:
        return requested, "as asked"
    if tp > 1:
        return "agg", f"the default with tp {tp}"
    if num_gpus == 0:
        return "pd", "the default on a CPU"
    if num_gpus == 1:
        return "agg", "the default with one GPU"
    if not reach:
        return "agg", (
            f"the default with {num_gpus} GPUs that cannot copy from each other's memory; "
            "--topology pd hands over by tcp"
        )
    return "pd", f"the default with {num_gpus} GPUs that copy from each other's memory"


def _spec(name: str, role: Role, settings: Settings) -> ProcessSpec:
    return ProcessSpec(name, role, tuple(to_flags(settings)), secrets_environment(settings))


def _shown(tp: int) -> str:
    return f" (tp {tp})" if tp > 1 else ""
