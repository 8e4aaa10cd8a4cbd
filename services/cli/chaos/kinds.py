"""All kinds of faults."""

from collections.abc import Sequence

from services.cli.chaos import client_faults, poison, process_faults, redis_faults, wire_faults
from services.cli.chaos.fault import Kind
from shared.errors import SettingsError

KINDS = (
    *process_faults.KINDS,
    *redis_faults.KINDS,
    *client_faults.KINDS,
    *wire_faults.KINDS,
    *poison.KINDS,
)


def chosen_kinds(names: str | None) -> tuple[Kind, ...]:
    """Those named, else all. SettingsError for one that does not exist."""
    if names is None:
        return KINDS
    by_name = {kind.name: kind for kind in KINDS}
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in by_name:
            raise SettingsError(f"--kinds: no {name!r}; there are {', '.join(by_name)}")
    return tuple(by_name[name] for name in wanted)


def possible(kinds: Sequence[Kind], *, spares: bool = False) -> tuple[list[Kind], dict[str, str]]:
    """Those that this machine can have, and why it cannot have the others. `spares`: some
    processes are to be spared."""
    missing = {kind.name: why for kind in kinds if (why := kind.missing())}
    if spares:
        missing |= {kind.name: "it spares nobody" for kind in kinds if kind.hits_anyone}
    return [kind for kind in kinds if kind.name not in missing], missing
