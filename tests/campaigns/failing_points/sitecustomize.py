"""On the PYTHONPATH of a process: it kills itself at a place in the code, once it is told which.

FAILPOINTS names a folder. Each line of its file `places` is one: `module:Class.method before`, or
`after`. A place is armed while the folder has a file of its number. Whoever comes there first takes
that away, leaves its process id in the new name, and dies by SIGKILL.
"""

import functools
import inspect
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple


class Place(NamedTuple):
    number: int
    path: str
    """`Class.method` in its module"""
    when: str


class _Finder(MetaPathFinder):
    """Finds the modules that have places, as the others would."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[str, list[Place]] = {}
        for number, line in enumerate((folder / "places").read_text().splitlines()):
            place, _, when = line.partition(" ")
            module, _, path = place.partition(":")
            self._places.setdefault(module, []).append(Place(number, path, when))

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        places = self._places.get(fullname, [])
        for finder in sys.meta_path if places else ():
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader, self._folder, places)
                return spec
        return None


class _Loader(Loader):
    def __init__(self, loader: Loader, folder: Path, places: Sequence[Place]) -> None:
        self._loader = loader
        self._folder = folder
        self._places = places

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        for place in self._places:
            owner, _, name = place.path.rpartition(".")
            cls = getattr(module, owner)
            armed = self._folder / str(place.number)
            setattr(cls, name, _deadly(getattr(cls, name), armed, place.when))


def _deadly(method: Callable[..., Any], armed: Path, when: str) -> Callable[..., Any]:
    def reach() -> None:
        with suppress(FileNotFoundError):
            armed.rename(f"{armed}.{os.getpid()}")
            os.kill(os.getpid(), signal.SIGKILL)

    @functools.wraps(method)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        if when == "before":
            reach()
            return method(*arguments, **named)
        result = method(*arguments, **named)
        reach()
        return result

    @functools.wraps(method)
    async def wrapped_coroutine(*arguments: Any, **named: Any) -> Any:
        if when == "before":
            reach()
        result = await method(*arguments, **named)
        if when == "after":
            reach()
        return result

    return wrapped_coroutine if inspect.iscoroutinefunction(method) else wrapped


if "FAILPOINTS" in os.environ:
    sys.meta_path.insert(0, _Finder(Path(os.environ["FAILPOINTS"])))
