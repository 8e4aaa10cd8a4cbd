"""An engine on several ranks in a process of its own: `ranked_engine SETTINGS [MODE]`.

SETTINGS is JSON. It prints one JSON line when the engine is ready, then, by mode: `once`, the
answers to a few prompts; `forever`, nothing more, answering them again and again; `stuck`, nothing,
as a process that waits for a device that waits for a rank.
"""

import json
import random
import sys
import time
from collections.abc import Iterator

import torch

from shared.engine.engine import Engine
from shared.engine.rank_processes.followers import RankLostError, end_process
from shared.engine.scheduling.sequence import SequenceSpec
from shared.kv.block_hash import chain_hashes
from shared.protocol import Attempt, Sampling, Work
from tests.support.models.built_engine import built_engine
from tests.support.settings import settings_with

ROOT = bytes(32)
VOCAB_SIZE = 131


def specs(
    block_size: int, num_prompts: int = 6, num_tokens: int = 12, round_number: int = 0
) -> Iterator[SequenceSpec]:
    """Prompts of which some share a beginning; the longest need several steps."""
    numbers = random.Random(0)  # noqa: S311
    common = [numbers.randrange(2, VOCAB_SIZE) for _ in range(40)]
    for number in range(num_prompts):
        own = [numbers.randrange(2, VOCAB_SIZE) for _ in range(5 + 9 * number)]
        prompt = tuple(common[: 20 * (number % 3)] + own)
        hashes = tuple(chain_hashes(ROOT, prompt, block_size))
        sampling = Sampling(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
        attempt = Attempt(f"r{number}", round_number)
        yield SequenceSpec(
            Work(attempt, prompt, len(prompt), ROOT, sampling), hashes, "full", "agg"
        )


def answers(engine: Engine, block_size: int, round_number: int = 0) -> dict[str, list[int]]:
    """Token ids by request."""
    told: dict[str, list[int]] = {}
    for spec in specs(block_size, round_number=round_number):
        engine.add(spec)
    while engine.has_work:
        for run in engine.step().tokens:
            told.setdefault(run.rid, []).extend(run.token_ids)
    return told


def main() -> None:
    settings = settings_with(**json.loads(sys.argv[1]))
    mode = sys.argv[2] if len(sys.argv) > 2 else "once"
    torch.set_num_threads(1)
    try:
        engine = built_engine(settings, "decode")
        sys.stdout.write(json.dumps({"ready": engine.memory.num_blocks}) + "\n")
        sys.stdout.flush()
        if mode == "once":
            sys.stdout.write(json.dumps(answers(engine, settings.kv.block_size)) + "\n")
        round_number = 0
        while mode == "forever":
            answers(engine, settings.kv.block_size, round_number)
            round_number += 1
        while mode == "stuck":
            time.sleep(1)
    except RankLostError as error:
        end_process(error)


if __name__ == "__main__":
    main()
