"""What benchmarks share: the need of a GPU, and a captured graph for what is too short to be timed
launch by launch."""

import statistics
import sys
from collections.abc import Callable

import torch

NUM_REPLAYS = 12
NUM_WARM_UPS = 2


NO_GPU = 3
"""exit status"""


def need_gpus(count: int = 1) -> None:
    """SystemExit if torch sees fewer."""
    seen = torch.cuda.device_count()
    if seen < count:
        sys.stderr.write(f"error: this needs {count} GPU(s), and torch sees {seen}\n")
        raise SystemExit(NO_GPU)


def graph_time_us(step: Callable[[], None]) -> float:
    """Median time of a graph of `step`, which runs once by itself first."""
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    times = []
    for _ in range(NUM_REPLAYS + NUM_WARM_UPS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times[NUM_WARM_UPS:])
