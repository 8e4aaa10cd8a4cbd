"""Whether the ports that `baton up` would bind are free."""

from collections.abc import Sequence

from services.cli.cluster.ports import reserve_port
from services.cli.cluster.run_file import RunRecord
from services.cli.doctor.finding import Finding, failed, ok
from shared.errors import SettingsError
from shared.settings.groups import NetworkSettings


def check_ports(network: NetworkSettings, running: Sequence[RunRecord]) -> list[Finding]:
    """`running`: the cells of this user, which may have them."""
    found = [_check("port", network.host, network.port, running)]
    if network.admin_port:
        found.append(_check("admin port", network.host, network.admin_port, running))
    return found


def _check(name: str, host: str, port: int, running: Sequence[RunRecord]) -> Finding:
    for record in running:
        if record.uses(port):
            return ok(name, f"{port} is that of the `baton up` with pid {record.pid}")
    try:
        reserve_port(host, port).close()
    except SettingsError as error:
        return failed(name, error, "`ss -ltnp` names its process")
    return ok(name, f"{host}:{port} is free" if port else "any free one is taken")
