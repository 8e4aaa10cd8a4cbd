"""Makes the demo model from nothing: `python3 -m shared.demo_model.recipe.train --out DIR`.

Life of a run: 1 write documents, 2 train the tokenizer on some of them, 3 encode all in several
processes, 4 train the network, 5 export it, 6 measure the exported files. Seeds are fixed, and
nothing is fetched.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer

from shared.demo_model.recipe.documents import TokenArrays, documents, token_arrays
from shared.demo_model.recipe.evaluate import evaluation, score
from shared.demo_model.recipe.export import save_checkpoint
from shared.demo_model.recipe.network import Network, Shape
from shared.demo_model.recipe.tokenizer import train_tokenizer
from shared.demo_model.recipe.training import Progress, Schedule, train

SEED = 20_261_121
TOKENIZER_SEED = 0
PROBES = ("copy", "sort", "sum")


@dataclass(frozen=True)
class Recipe:
    """All sizes of one run."""

    shape: Shape
    schedule: Schedule
    num_documents: int
    num_tokenizer_documents: int
    num_evaluated: int


def full_recipe(minutes: float, num_steps: int) -> Recipe:
    """The recipe of the published checkpoint."""
    schedule = Schedule(num_steps, minutes * 60, tokens_per_batch=65_536, peak_rate=2e-3)
    return Recipe(Shape(), schedule, 800_000, 30_000, 500)


def tiny_recipe() -> Recipe:
    """A run of about a minute on a CPU that proves the recipe, not the model."""
    shape = Shape(vocab_size=512, hidden_size=64, intermediate_size=128, num_layers=2, num_heads=4)
    schedule = Schedule(60, 40.0, 2_048, 2e-3, num_warmup_steps=10, report_every=20)
    return Recipe(shape, schedule, 1_000, 500, 2)


def _say(start: float, text: str) -> None:
    sys.stdout.write(f"[{time.monotonic() - start:6.1f} s] {text}\n")
    sys.stdout.flush()


def _reporter(
    network: Network, tokenizer: Tokenizer, say: Callable[[str], None], num_probed: int
) -> Callable[[Progress], None]:
    def report(progress: Progress) -> None:
        line = (
            f"step {progress.step} loss {progress.loss:.4f} {progress.tokens_per_s:,.0f} tokens/s"
        )
        if num_probed and progress.step % 1000 == 0:
            network.eval()
            found = [score(network, tokenizer, task, num_probed) for task in PROBES]
            line += "".join(f" {s.task} {s.accuracy:.2f}" for s in found)
            network.train()
        say(line)

    return report


def _corpus(recipe: Recipe, num_processes: int) -> tuple[Tokenizer, TokenArrays]:
    sample = documents(TOKENIZER_SEED, recipe.num_tokenizer_documents)
    tokenizer = train_tokenizer(sample, recipe.shape.vocab_size)
    longest = recipe.shape.max_position_embeddings
    return tokenizer, token_arrays(tokenizer, recipe.num_documents, longest, num_processes)


def run(recipe: Recipe, out: Path, device: torch.device, num_processes: int) -> None:
    """One run from nothing to a measured checkpoint in `out`."""
    start = time.monotonic()
    torch.manual_seed(SEED)
    _say(start, f"recipe {json.dumps(asdict(recipe))}")
    tokenizer, arrays = _corpus(recipe, num_processes)
    trained = int(arrays.trained.sum())
    _say(
        start,
        f"{arrays.num_documents} documents, {len(arrays.token_ids)} tokens, {trained} trained",
    )
    network = Network(recipe.shape).to(device)
    _say(start, f"{network.num_parameters} weights on {device}")
    num_probed = 100 if device.type == "cuda" else 0
    report = _reporter(network, tokenizer, lambda text: _say(start, text), num_probed)
    train(network, arrays, recipe.schedule, report, SEED)
    save_checkpoint(network, tokenizer, out)
    _say(start, f"checkpoint in {out}")
    sys.stdout.write(evaluation(out, recipe.num_evaluated, device))
    _say(start, "done")


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory of the checkpoint")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--minutes", type=float, default=6.5, help="longest time in the loop")
    parser.add_argument("--steps", type=int, default=11_500, help="optimizer steps")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--tiny", action="store_true", help="one minute on a CPU, as a proof")
    options = parser.parse_args(arguments)
    recipe = tiny_recipe() if options.tiny else full_recipe(options.minutes, options.steps)
    run(recipe, options.out, torch.device(options.device), options.processes)


if __name__ == "__main__":
    main()
