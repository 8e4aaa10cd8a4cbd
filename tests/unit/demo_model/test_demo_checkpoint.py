"""The published checkpoint: its size, what it answers, and that transformers reads it alike."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer, LlamaForCausalLM

from shared.demo_model.chat import question, render
from shared.demo_model.knowledge import DEMO_QUESTION
from shared.demo_model.recipe.decoding import answer_all
from shared.demo_model.recipe.evaluate import CHECKPOINT, score
from shared.demo_model.recipe.export import load_checkpoint
from shared.demo_model.recipe.network import Network

LIMIT_BYTES = 20_000_000
STORY_QUESTION = "Tell me a story about a clever fox."


@pytest.fixture(scope="module")
def demo() -> tuple[Network, Tokenizer]:
    torch.set_num_threads(1)
    return load_checkpoint(CHECKPOINT)


def _config(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CHECKPOINT / name).read_text(encoding="utf-8"))
    return found


def test_the_checkpoint_is_small_enough() -> None:
    files = [path for path in Path(CHECKPOINT).iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= LIMIT_BYTES


def test_the_context_is_long_enough() -> None:
    assert _config("config.json")["max_position_embeddings"] >= 2048


@pytest.mark.parametrize(("task", "wanted"), [("copy", 0.95), ("sort", 0.9), ("sum", 0.9)])
def test_held_out_accuracy(demo: tuple[Network, Tokenizer], task: str, wanted: float) -> None:
    assert score(*demo, task, 30).accuracy >= wanted


def test_the_score_can_fail(demo: tuple[Network, Tokenizer]) -> None:
    torch.manual_seed(0)
    network, tokenizer = demo
    assert score(Network(network.shape), tokenizer, "sum", 1).accuracy == 0


def test_two_questions_get_two_answers_and_the_demo_answer_is_long(
    demo: tuple[Network, Tokenizer],
) -> None:
    conversations = [question(DEMO_QUESTION), question(STORY_QUESTION)]
    first, second = answer_all(*demo, conversations, 300)
    assert first != second
    assert len(first.split()) >= 40
    assert len(second.split()) >= 40


def test_transformers_answers_alike(demo: tuple[Network, Tokenizer]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    model: Any = LlamaForCausalLM.from_pretrained(
        CHECKPOINT, dtype=torch.float32, attn_implementation="eager"
    )
    messages = question(DEMO_QUESTION)
    turns = [{"role": turn["role"], "content": turn["content"]} for turn in messages]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert text == render(messages)
    prompt = tokenizer(text, return_tensors="pt", add_special_tokens=False)
    theirs = model.generate(**prompt, max_new_tokens=64, do_sample=False)
    answer = tokenizer.decode(theirs[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    [ours] = answer_all(*demo, [messages], 64)
    assert answer == ours
