"""One routing decision in a large pool.

`python -m services.gateway.measure.routing NUM_DECISIONS` prints what each took.

A decision is what step 3 does between a request's hashes and its worker: the prefix index is
asked, the placement chosen, the candidates estimated.
"""

import json
import random
import sys
import time
from collections.abc import Sequence

from services.gateway.owner.links.worker_view import WorkerView
from services.gateway.owner.placement.router import Prompt, choose_placement, choose_worker
from shared.kv.block_hash import STRIDE
from shared.message_parts.step_costs import StepCosts
from shared.queue.room import Room
from shared.state.kv_events import KVSnapshot
from shared.state.prefix_index import PrefixIndex

NUM_WORKERS = 64
NUM_ENTRIES = 190_000
BLOCK_SIZE = 16
DEPTH = 48
"""entries of one cached prompt: 48 * 16 blocks of 16 tokens are 12k tokens"""
NUM_HOT = 8
"""prompts that every worker holds; the others are on one worker each"""


def decision_times(num_decisions: int, seed: int = 0) -> tuple[list[float], int]:
    """Seconds per decision, and the entries in the index."""
    rng = random.Random(seed)  # noqa: S311 a workload, no secret
    incs = [f"prefill-{number:02}.{number:032x}" for number in range(NUM_WORKERS)]
    index, prompts = _filled_index(incs, rng)
    views = [_view(inc, rng) for inc in incs]
    times_s = []
    for _ in range(num_decisions):
        hashes = rng.choice(prompts) if rng.random() < 0.7 else _chain(rng)
        start_s = time.perf_counter()
        holders = index.holders(hashes)
        placement = choose_placement(views, "auto", True)
        assert placement is not None
        prompt = Prompt(len(hashes) * BLOCK_SIZE, BLOCK_SIZE, holders)
        choose_worker(placement, prompt, rng)
        times_s.append(time.perf_counter() - start_s)
    return times_s, len(index)


def _filled_index(incs: Sequence[str], rng: random.Random) -> tuple[PrefixIndex, list[list[bytes]]]:
    """About NUM_ENTRIES entries, and the block hashes of the prompts they are of."""
    index = PrefixIndex()
    hot = [_chain(rng) for _ in range(NUM_HOT)]
    prompts = list(hot)
    own_each = NUM_ENTRIES // NUM_WORKERS // DEPTH - NUM_HOT
    for inc in incs:
        own = [_chain(rng) for _ in range(own_each)]
        prompts += own
        held = [one for chain in (*hot, *own) for one in chain[STRIDE - 1 :: STRIDE]]
        index.load(KVSnapshot(inc, 1, frozenset(held)))
    return index, prompts


def _chain(rng: random.Random) -> list[bytes]:
    """Block hashes of a prompt; only every `STRIDE`-th is ever looked at."""
    between = [b""] * (STRIDE - 1)
    return [one for _ in range(DEPTH) for one in (*between, rng.randbytes(16))]


def _view(incarnation: str, rng: random.Random) -> WorkerView:
    return WorkerView(
        incarnation=incarnation,
        role="prefill",
        ready=True,
        room=Room.whole(10**6),
        idle=False,
        queued_tokens=rng.randrange(20_000),
        num_sequences=rng.randrange(8),
        spare_blocks=1000,
        queued_s=rng.uniform(0, 0.5),
        costs=StepCosts(chunk_token_s=2e-5 * rng.uniform(0.8, 1.2), chunk_pair_s=3e-10),
    )


def main(num_decisions: int) -> int:
    times_s, num_entries = decision_times(num_decisions)
    answer = {"workers": NUM_WORKERS, "entries": num_entries, "times_s": times_s}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
