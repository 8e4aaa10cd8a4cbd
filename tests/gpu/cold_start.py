"""Builds an engine as a worker's process does and prints how long that took, and what was compiled
by this process itself.

    cold_start MODEL DTYPE ROLE TP    MODEL: a shape, or a folder with a config.json
"""

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any, Literal

START_S = time.monotonic()

import torch  # noqa: E402  (what it takes to import is a part of a start)
import triton  # noqa: E402

from shared.engine.build import build_engine  # noqa: E402
from shared.engine.layers.random_weights import RandomWeights  # noqa: E402
from shared.engine.loading.kernel_compilation import KernelCompilation  # noqa: E402
from shared.kv.share import KVShare  # noqa: E402
from shared.model.checkpoint import Checkpoint, load_checkpoint, random_checkpoint  # noqa: E402
from shared.mover.device_copies import DeviceCopies  # noqa: E402
from tests.support.settings import settings_with  # noqa: E402

late: list[str] = []
"""kernels that were compiled at their launch"""
ahead: set[str] = set()
"""folders of Triton's cache once the compiler was done"""


def note_compilation(*, src: Any, cache_hit: bool, **_: object) -> None:
    if not cache_hit:
        late.append(src.name)


def entries() -> dict[str, str]:
    """What is in Triton's cache: a folder's name, and of a file in it."""
    folders = [path for path in Path(triton.knobs.cache.dir).iterdir() if path.is_dir()]
    return {path.name: next((file.name for file in path.iterdir()), "") for path in folders}


def checkpoint_of(model: str) -> Checkpoint:
    folder = Path(model)
    if not folder.is_dir():
        return load_checkpoint(model, random_weights=True)
    return random_checkpoint(folder, "drawn", json.loads((folder / "config.json").read_text()))


def main(model: str, dtype: str, role: Literal["prefill", "decode"], tp: int) -> None:
    settings = settings_with(model=model, random_weights=True, dtype=dtype, device="cuda", tp=tp)
    triton.knobs.compilation.listener = note_compilation
    wait = KernelCompilation.wait

    def noting(self: KernelCompilation) -> None:
        wait(self)
        ahead.update(entries())

    setattr(KernelCompilation, "wait", noting)  # noqa: B010
    engine = build_engine(*settings.of_engine, role, checkpoint_of(model), RandomWeights)
    engine.try_out()
    engine.rehearse()
    share = KVShare(engine.memory.layout)
    DeviceCopies(engine.kv_pool.tensor, engine.memory, share, engine.kv_pool.shared is not None)
    torch.cuda.synchronize()
    ready_s = time.monotonic() - START_S
    new = {name: file for name, file in entries().items() if name not in ahead}
    line = {"ready_s": ready_s, "late": late, "new": sorted(new.values())}
    sys.stdout.write(json.dumps(line) + "\n")
    engine.grammars.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    which, kind, duty, ranks = sys.argv[1:]
    main(which, kind, "prefill" if duty == "prefill" else "decode", int(ranks))
