"""The import rule: what it forbids and where, and an interpreter in which it does not exist."""

import importlib
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec

FORBIDDEN = (
    "fastapi",
    "kubernetes",
    "opentelemetry",
    "pydantic",
    "redis",
    "starlette",
    "transformers",
    "uvicorn",
)
"""packages a machine that only runs the engine does not have"""

FREE_OF_THEM = (
    "kernels",
    "services.cli.__main__",
    "services.cli.bench.engine",
    "services.cli.bench.kernels",
    "services.offline",
    "shared.kv.block_hash",
    "shared.model.checkpoint",
    "shared.clock",
    "shared.codec",
    "shared.model.config_fields",
    "shared.engine",
    "shared.errors",
    "shared.fields",
    "shared.kv.layout",
    "shared.kv.memory",
    "shared.model.config",
    "shared.model.shapes",
    "shared.protocol",
    "shared.model.rope",
    "shared.settings",
    "shared.text",
    "shared.transfer",
)
"""modules, and packages with all they hold, that must work there"""


class Blocker:
    """A meta-path finder that finds nothing and lets nobody else find the blocked packages."""

    def __init__(self, blocked: Sequence[str]) -> None:
        self._blocked = frozenset(blocked)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name.partition(".")[0] in self._blocked:
            raise ModuleNotFoundError(f"the import rule forbids {name!r} here", name=name)
        return None


def block(names: Sequence[str] = FORBIDDEN) -> None:
    """From now on this interpreter cannot import these packages."""
    loaded = [name for name in sys.modules if name.partition(".")[0] in names]
    assert not loaded, f"already imported: {loaded}"
    sys.meta_path.insert(0, Blocker(names))


def modules(names: Sequence[str] = FREE_OF_THEM) -> Iterator[str]:
    """The named modules and everything inside the named packages."""
    for name in names:
        yield name
        module = importlib.import_module(name)
        for found in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{name}."):
            yield found.name
