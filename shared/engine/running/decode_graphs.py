"""CUDA graphs of whole decode steps: one launch instead of hundreds.

A graph has a fixed number of rows, so a step is padded to the next of a few sizes. Each is
captured before the worker serves (`Engine.rehearse`), or else when a step first wants it, after
that step has run without it; all share one memory pool, since only one runs at a time. A graph
holds no lengths and no block ids: it reads them on the device, and serves any.
"""

import logging
import time
from collections.abc import Callable

import torch

from shared.engine.layers.row_sizes import graph_sizes, next_size

logger = logging.getLogger(__name__)


class DecodeGraphs:
    """The graphs of one device."""

    def __init__(self, max_rows: int) -> None:
        self.sizes = graph_sizes(max_rows)
        self._num_bytes = 0
        """of device memory that the graphs hold"""
        self._capture_s = 0.0
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle() if torch.cuda.is_available() else None

    def size_for(self, num_rows: int) -> int:
        """The least size that `num_rows` fit in; there must be one."""
        return min(next_size(num_rows), self.sizes[-1])

    @property
    def missing(self) -> tuple[int, ...]:
        """Sizes that have no graph yet."""
        return tuple(size for size in self.sizes if size not in self._graphs)

    def run(self, size: int, step: Callable[[], None]) -> None:
        """Do what `step` does with `size` rows: itself the first time, from then on its graph.

        `step` must read and write at the same addresses each time, launch the same kernels, and
        never wait for the device."""
        graph = self._graphs.get(size)
        if graph is not None:
            graph.replay()
            return
        step()
        self._graphs[size] = self._capture(step)
        if not self.missing:
            logger.info("%s", self)

    def __str__(self) -> str:
        return (
            f"{len(self._graphs)} decode graphs of up to {self.sizes[-1]} rows: "
            f"{self._num_bytes / 2**20:.0f} MiB, captured in {self._capture_s:.1f} s"
        )

    def _capture(self, step: Callable[[], None]) -> torch.cuda.CUDAGraph:
        start_s = time.perf_counter()
        before = torch.cuda.mem_get_info()[0]
        graph = torch.cuda.CUDAGraph()
        # Other threads may wait for their own work meanwhile, as NCCL's does.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            step()
        self._num_bytes += max(0, before - torch.cuda.mem_get_info()[0])
        self._capture_s += time.perf_counter() - start_s
        return graph
