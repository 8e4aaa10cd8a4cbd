"""Whether the ports that `baton up`, or one worker, would bind are free."""

from collections.abc import Sequence

from services.cli.cluster.ports import reserve_port
from services.cli.cluster.run_file import RunRecord
from services.cli.doctor.finding import Finding, fail, ok
from shared.errors import SettingsError
from shared.settings.groups import NetworkSettings, WorkerSettings


def check_ports(
    network: NetworkSettings, worker: WorkerSettings, running: Sequence[RunRecord]
) -> list[Finding]:
    """`running`: the cells of this user, which may have them; those of workers are looked at only
    where none runs."""
    named = {"admin port": network.admin_port}
    if not running:
        named |= _ports_of(worker)
    wanted = {"port": network.port, **{name: port for name, port in named.items() if port}}
    return [_check(name, network.host, port, running) for name, port in wanted.items()]


def check_worker_ports(host: str, worker: WorkerSettings) -> list[Finding]:
    """Those that one worker will bind."""
    return [_check(name, host, port, ()) for name, port in _ports_of(worker).items() if port]


def _ports_of(worker: WorkerSettings) -> dict[str, int]:
    return {
        "worker port": worker.port,
        "transfer port": worker.transfer_port,
        "probe port": worker.probe_port,
    }


def _check(name: str, host: str, port: int, running: Sequence[RunRecord]) -> Finding:
    for record in running:
        if record.uses(port):
            return ok(name, f"{port} is that of the `baton up` with pid {record.pid}")
    try:
        reserve_port(host, port).close()
    except SettingsError as error:
        flag = f"--{name.replace(' ', '-')}"
        cure = f"another {flag}, or 0; `ss -ltnp` names the process that has it"
        return fail(name, str(error).partition("; ")[0], cure)
    return ok(name, f"{host}:{port} is free" if port else "any free one is taken")
