"""Measures a checkpoint on held-out prompts: `python3 -m shared.demo_model.recipe.evaluate`."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer

from shared.demo_model.chat import question
from shared.demo_model.knowledge import DEMO_QUESTION
from shared.demo_model.recipe.decoding import answer_all
from shared.demo_model.recipe.exact_tasks import EVALUATED, held_out_prompts
from shared.demo_model.recipe.export import load_checkpoint
from shared.demo_model.recipe.network import Network

CHECKPOINT = Path(__file__).parents[1] / "checkpoint"
MAX_ANSWER_TOKENS = 192
SAMPLES = (
    DEMO_QUESTION,
    "Tell me a story about a clever fox.",
    "Why does a language model need a KV cache?",
    "Hello, who are you?",
    "What do you think about the price of tulips in Holland?",
    "Tell me a story about a purple teapot named Zorra.",
    "What happens when a worker dies?",
    "What is the capital of Norway?",
)


@dataclass(frozen=True)
class Score:
    """How many held-out prompts of a task were answered exactly."""

    task: str
    num_right: int
    num: int
    wrong: tuple[tuple[str, str, str], ...]
    """question, expected and given answer of the first mistakes"""

    @property
    def accuracy(self) -> float:
        return self.num_right / self.num


def score(network: Network, tokenizer: Tokenizer, task: str, num: int) -> Score:
    """Greedy answers to `num` held-out prompts of a task, compared character by character."""
    prompts = held_out_prompts(task, num)
    conversations = [messages for messages, _ in prompts]
    answers = answer_all(network, tokenizer, conversations, MAX_ANSWER_TOKENS)
    pairs = list(zip(prompts, answers, strict=True))
    wrong = [
        (messages[-1]["content"], expected, answer)
        for (messages, expected), answer in pairs
        if answer != expected
    ]
    return Score(task, num - len(wrong), num, tuple(wrong[:3]))


def table(scores: Sequence[Score]) -> str:
    """The scores as lines of text, mistakes below."""
    lines = [f"{s.task:24s} {s.accuracy:6.3f}  ({s.num_right} of {s.num})" for s in scores]
    lines += [
        f"  {s.task}: {asked!r} -> {given!r}, expected {expected!r}"
        for s in scores
        for asked, expected, given in s.wrong
    ]
    return "\n".join(lines)


def samples(network: Network, tokenizer: Tokenizer) -> str:
    """Greedy answers to a few open questions."""
    answers = answer_all(network, tokenizer, [question(text) for text in SAMPLES], 400)
    return "\n\n".join(
        f"> {asked}\n{answer}" for asked, answer in zip(SAMPLES, answers, strict=True)
    )


def evaluation(directory: Path, num: int, device: torch.device) -> str:
    """The whole report on an exported checkpoint, computed in float32."""
    network, tokenizer = load_checkpoint(directory)
    network.to(device)
    scores = [score(network, tokenizer, task, num) for task in EVALUATED]
    return f"{table(scores)}\n\n{samples(network, tokenizer)}\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    parser.add_argument("--num", type=int, default=200, help="prompts per task")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(arguments)
    sys.stdout.write(evaluation(options.checkpoint, options.num, torch.device(options.device)))


if __name__ == "__main__":
    main()
