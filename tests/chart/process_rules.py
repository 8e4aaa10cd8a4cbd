"""The command lines of a release, read by the parser and the settings that will read them."""

from collections.abc import Iterator
from typing import Any

from services.cli import serve
from services.cli.__main__ import Parser
from services.cli.flags import given_settings
from services.gateway.http.server import LAST_WORDS_S
from shared.device_type import device_type
from shared.errors import SettingsError
from shared.settings.groups import Settings
from shared.settings.load import FILE_SUFFIX, load_settings
from shared.settings.setting import PREFIX, SECRETS, environment_name
from shared.worker.node import HANG_UP_LIMIT_S
from tests.chart.release import Object, Release

POD = {"$(POD_IP)": "10.1.2.3", "$(POD_NAME)": "pod-0"}
PROBED = {"/health", "/ready"}
PROBE_PORTS = {"admin", "probe", "prefill-probe", "decode-probe"}
"""never a port of clients, who could use up its connections"""
COLOCATED = "colocated"
"""component of pods that hold a worker of either role"""
FILE_VARIABLES = {environment_name(name) + FILE_SUFFIX for name in SECRETS}


def settings_of(container: Object) -> Settings:
    """What the process will run with. SettingsError where it would not start."""
    args = container["args"]
    for reference, text in POD.items():
        args = [arg.replace(reference, text) for arg in args]
    command, *rest = args
    if command != "serve":
        raise SettingsError(f"{command!r} is not the command of a pod")
    parser = Parser(prog="baton serve")
    serve.add_arguments(parser)
    environ = {
        item["name"]: item.get("value", "")
        for item in container["env"]
        if item["name"].startswith(PREFIX) and item["name"] not in FILE_VARIABLES
    }
    return load_settings(given_settings(parser.parse_args(rest)), environ)


def processes(release: Release) -> Iterator[tuple[str, Object, Object]]:
    """(role, pod, container) of Baton's own processes; a container is called by its role."""
    for component, pod in release.pods():
        if component in (*serve.SERVICES, COLOCATED):
            for container in pod["spec"]["containers"]:
                yield container["name"], pod, container


def processes_start(release: Release) -> Iterator[str]:
    """Arguments parse, name the role, and agree with what the pod declares."""
    for role, _, container in processes(release):
        try:
            settings = settings_of(container)
        except SettingsError as error:
            yield f"{role}: {error}"
            continue
        if container["command"] != ["baton"] or container["args"][1] != role:
            yield f"{role} runs something else"
        yield from _port_problems(role, container, settings)
        variables = {item["name"] for item in container["env"]}
        redis_file = environment_name("redis") + FILE_SUFFIX
        if settings.cell.embedded_redis and redis_file not in variables:
            yield f"{role} has no Redis"
        if settings.network.host not in ("0.0.0.0", "::"):  # noqa: S104 nothing is bound here
            yield f"{role} listens where no other pod reaches it"


def _port_problems(role: str, container: Object, settings: Settings) -> Iterator[str]:
    declared = {
        port["name"].removeprefix(f"{role}-"): port["containerPort"] for port in container["ports"]
    }
    if role == "gateway":
        used = {"http": settings.network.port, "admin": settings.network.admin_port}
    else:
        worker = settings.worker
        used = {"link": worker.port, "probe": worker.probe_port, "transfer": worker.transfer_port}
        if worker.advertise != f"10.1.2.3:{worker.port}":
            yield f"{role}: gateways would dial {worker.advertise!r}"
        if worker.transfer_advertise != f"10.1.2.3:{worker.transfer_port}":
            yield f"{role}: decode would dial {worker.transfer_advertise!r}"
    if declared != used:
        yield f"{role} declares {declared} and listens on {used}"


def one_pool(release: Release) -> Iterator[str]:
    """What decides whether a gateway and a worker may talk to each other is the same."""
    pools = {role: _pool(settings_of(container)) for role, _, container in processes(release)}
    if len(set(pools.values())) != 1:
        yield f"processes of different pools: {pools}"


def every_rank_has_a_gpu(release: Release) -> Iterator[str]:
    """A worker has as many GPUs as ranks; on a CPU it has none. /dev/shm is where ranks meet."""
    for role, pod, container in processes(release):
        if role == "gateway":
            continue
        compute = settings_of(container).compute
        limits = container["resources"].get("limits", {})
        gpus = sum(int(num) for name, num in limits.items() if name.endswith("/gpu"))
        wanted = compute.tp if device_type(compute.device) == "cuda" else 0
        if gpus != wanted:
            yield f"{role}: {compute.tp} ranks on {compute.device} have {gpus} GPUs"
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        memory = [v["name"] for v in pod["spec"]["volumes"] if v.get("emptyDir", {}).get("medium")]
        if mounts.get("/dev/shm") not in memory:  # noqa: S108 of the pod
            yield f"{role}: its ranks have the little /dev/shm of a container"


def one_cell(release: Release) -> Iterator[str]:
    """All processes read the same secret of the cell, from a file."""
    sources = {role: _cell_secret(pod, container) for role, pod, container in processes(release)}
    if None in sources.values() or len(set(sources.values())) != 1:
        yield f"processes of different cells: {sources}"


def workers_meet_in_one_folder(release: Release) -> Iterator[str]:
    """The folder that workers are told of is one of their node, the same under the same name, or
    one of their pod. There it lies inside the volume: others may write to the volume itself, and
    the transport refuses such a folder."""
    workers = [each for each in processes(release) if each[0] != "gateway"]
    folders = {role: _transfer_folder(pod, container) for role, pod, container in workers}
    if len(set(folders.values())) != 1:
        yield f"workers meet in several folders: {folders}"
    for role, _, container in workers:
        named, folder = settings_of(container).handover.transfer_dir, folders[role]
        wanted = "" if folder is None else f"{folder[0]}{'' if folder[1] else '/kv'}"
        if named != wanted:
            yield f"{role} goes to {named!r} to meet others, not to {wanted!r}"


def _transfer_folder(pod: Object, container: Object) -> tuple[str, str] | None:
    """(in the container, on the node); the latter empty for one of the pod."""
    for mount in container["volumeMounts"]:
        for volume in pod["spec"]["volumes"]:
            if volume["name"] == mount["name"] == "transfer":
                return mount["mountPath"], volume.get("hostPath", {}).get("path", "")
    return None


def containers_of_a_pod_differ(release: Release) -> Iterator[str]:
    """Workers of one pod share its address and its name; what is one worker's alone differs."""
    workers: dict[int, list[tuple[Object, Settings]]] = {}
    for _, pod, container in processes(release):
        workers.setdefault(id(pod), []).append((container, settings_of(container)))
    for together in workers.values():
        ports = [port["containerPort"] for c, _ in together for port in c["ports"]]
        names = [port["name"] for c, _ in together for port in c["ports"]]
        if len(set(ports)) != len(ports) or len(set(names)) != len(names):
            yield f"two listen at one port of their pod: {names}, {ports}"
        ids = [settings.worker.id for _, settings in together]
        if len(set(ids)) != len(ids):
            yield f"two workers are called {ids}"
        for path in ("/tmp", "/dev/shm"):  # noqa: S108 of the pod
            mounts = [
                mount["name"]
                for container, _ in together
                for mount in container["volumeMounts"]
                if mount["mountPath"] == path
            ]
            if len(set(mounts)) != len(mounts):
                yield f"two processes share {path}"


def _cell_secret(pod: Object, container: Object) -> tuple[str, str] | None:
    """(Secret, key) of the file that BATON_CELL_SECRET_FILE names."""
    variables = {item["name"]: item.get("value", "") for item in container["env"]}
    file = variables.get(environment_name("cell_secret") + FILE_SUFFIX)
    for mount in container["volumeMounts"]:
        for volume in pod["spec"]["volumes"]:
            for item in volume.get("secret", {}).get("items", []):
                path = f"{mount['mountPath']}/{item['path']}"
                if volume["name"] == mount["name"] and path == file:
                    return volume["secret"]["secretName"], item["key"]
    return None


def _pool(settings: Settings) -> tuple[Any, ...]:
    model, compute = settings.model, settings.compute
    named = (model.name, model.served_name)
    return (*named, device_type(compute.device), compute.dtype, settings.kv.block_size)


def pods_have_time_to_stop(release: Release) -> Iterator[str]:
    for role, pod, container in processes(release):
        hook = container.get("lifecycle", {}).get("preStop", {})
        wait_s = float(hook.get("sleep", {}).get("seconds", 0))
        if "exec" in hook:
            wait_s = float(hook["exec"]["command"][-1])
        last_s = LAST_WORDS_S if role == "gateway" else 2 * HANG_UP_LIMIT_S
        needed_s = wait_s + settings_of(container).limits.drain_s + last_s
        if pod["spec"]["terminationGracePeriodSeconds"] < needed_s:
            yield f"{role} is killed before it has drained ({needed_s:g} s)"
        if role == "gateway" and not wait_s:
            yield "the gateway stops while Services still lead to it"


def probes_ask_what_is_answered(release: Release) -> Iterator[str]:
    for role, _, container in processes(release):
        ports = {port["name"] for port in container["ports"]}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            asked = container.get(probe, {}).get("httpGet", {})
            if asked.get("path") not in PROBED or asked.get("port") not in ports & PROBE_PORTS:
                yield f"{role}: {probe} asks what nobody answers"
        if container["livenessProbe"]["httpGet"]["path"] != "/health":
            yield f"{role} is killed for not being ready"


COLOCATED_RULES = (containers_of_a_pod_differ,)
"""each is broken on purpose in pods/test_chart_colocated.py"""
RULES = (
    processes_start,
    one_pool,
    every_rank_has_a_gpu,
    one_cell,
    workers_meet_in_one_folder,
    pods_have_time_to_stop,
    probes_ask_what_is_answered,
    *COLOCATED_RULES,
)
