"""The recipe in small: documents, chat form, tokenizer, a few steps, a checkpoint to read."""

from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from shared.demo_model.chat import (
    CHAT_TEMPLATE,
    SPECIAL_TOKENS,
    Exchange,
    Message,
    conversation,
    render,
)
from shared.demo_model.knowledge import DEMO_QUESTION, ask_about
from shared.demo_model.recipe.corpus_files import entries, off_topic, tables
from shared.demo_model.recipe.documents import documents, encode, token_arrays
from shared.demo_model.recipe.export import load_checkpoint, save_checkpoint
from shared.demo_model.recipe.network import Network, Shape
from shared.demo_model.recipe.stories import plots, tell
from shared.demo_model.recipe.tokenizer import train_tokenizer
from shared.demo_model.recipe.training import Batches, Progress, Schedule, train

SMALL = Shape(vocab_size=400, hidden_size=32, intermediate_size=64, num_layers=2, num_heads=4)
MESSAGES: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Sort: 9 3 7"},
    {"role": "assistant", "content": "3 7 9"},
    {"role": "user", "content": "Thanks"},
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    torch.set_num_threads(1)
    return train_tokenizer(documents(0, 300), SMALL.vocab_size)


def test_the_template_and_the_recipe_write_the_same_text() -> None:
    template = ImmutableSandboxedEnvironment().from_string(CHAT_TEMPLATE)
    assert template.render(messages=MESSAGES, add_generation_prompt=True) == render(MESSAGES)


def test_a_trained_conversation_has_the_form_of_its_prompt() -> None:
    document = conversation(
        [Exchange("Sort: 9 3 7", "3 7 9"), Exchange("Thanks", "You are welcome.")], "Be brief."
    )
    text = "".join(segment.text for segment in document)
    assert text.startswith(render(MESSAGES) + "You are welcome.")
    trained = [segment.text for segment in document if segment.trained]
    assert trained == ["3 7 9<|im_end|>", "You are welcome.<|im_end|>"]


def test_every_corpus_entry_can_be_asked_and_answered() -> None:
    for entry in entries():
        assert entry.topics or entry.questions
        assert entry.short_answer or entry.long_answers
    assert all(len(row) == 2 for table in tables() for row in table.rows)
    assert all("{x}" in form for form in (*off_topic().questions, *off_topic().answers))


def test_the_demo_answer_has_forty_words() -> None:
    [entry] = [entry for entry in entries() if DEMO_QUESTION in entry.questions]
    assert len(entry.long_answers[0].split()) >= 40


def test_verbs_agree_with_topics() -> None:
    assert ask_about("What is {x}?", "the KV cache") == "What is the KV cache?"
    assert ask_about("What is {x}?", "KV blocks") == "What are KV blocks?"
    assert ask_about("How does {x} work?", "prefill and decode") == (
        "How do prefill and decode work?"
    )


def test_every_story_fills_all_its_slots() -> None:
    rng = Random(1)  # noqa: S311
    stories = [tell(rng, invented=rng.random() < 0.5) for _ in range(200)]
    assert len(plots()) >= 5
    assert not [story for story in stories if set("{}~") & set(story.text)]
    assert all(story.hero.name in story.text for story in stories)
    assert len({story.text for story in stories}) == len(stories)


def test_documents_depend_on_the_seed_only() -> None:
    assert list(documents(4, 50)) == list(documents(4, 50))
    assert list(documents(4, 50)) != list(documents(5, 50))


def test_digits_are_single_tokens(tokenizer: Tokenizer) -> None:
    pieces = tokenizer.encode("What is 47 + 388?").tokens
    assert [piece for piece in pieces if piece.isdigit()] == ["4", "7", "3", "8", "8"]


def test_special_tokens_are_marked_special(tokenizer: Tokenizer) -> None:
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2]
    assert tokenizer.decode([1, 2, 0], skip_special_tokens=True) == ""


def test_any_text_survives_the_tokenizer(tokenizer: Tokenizer) -> None:
    text = "Grüße, 你好\n\n  two  spaces\t 🦊 x=1_000"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_encoding_marks_answers_and_drops_what_is_too_long(tokenizer: Tokenizer) -> None:
    short = conversation([Exchange("Hi", "Hello")])
    long = conversation([Exchange("Hi", "a " * 500)])
    arrays = encode(tokenizer, [short, long, short], max_len=100)
    assert arrays.num_documents == 2
    trained = arrays.token_ids[arrays.trained].tolist()
    assert tokenizer.decode(trained, skip_special_tokens=False) == "Hello<|im_end|>" * 2


def test_processes_do_not_change_the_arrays(tokenizer: Tokenizer) -> None:
    alone, together = (token_arrays(tokenizer, 100, 512, num) for num in (1, 2))
    assert np.array_equal(alone.token_ids, together.token_ids)
    assert np.array_equal(alone.starts, together.starts)


def test_batches_hold_whole_documents(tokenizer: Tokenizer) -> None:
    arrays = token_arrays(tokenizer, 200, 4096, 1)
    batches = iter(Batches(arrays, 2048, torch.device("cpu"), seed=1))
    num_trained, wanted = 0, int(arrays.trained.sum())
    while num_trained < wanted:
        token_ids, trained = next(batches)
        assert token_ids.shape == trained.shape
        num_trained += int(trained.sum())
    assert num_trained == wanted


def test_training_learns_and_others_can_read_the_checkpoint(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    network = Network(SMALL)
    reports: list[Progress] = []
    schedule = Schedule(30, 60.0, 1024, 3e-3, num_warmup_steps=5, report_every=10)
    train(network, token_arrays(tokenizer, 200, 512, 1), schedule, reports.append, seed=1)
    assert reports[-1].loss < reports[0].loss
    save_checkpoint(network, tokenizer, tmp_path)
    ours, _ = load_checkpoint(tmp_path)
    theirs = LlamaForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, attn_implementation="eager"
    )
    token_ids = torch.tensor([tokenizer.encode(render(MESSAGES)).ids])
    with torch.no_grad():
        expected = theirs(token_ids).logits
        found = ours.logits(ours.hidden_states(token_ids))
    assert torch.allclose(found, expected, atol=1e-4)


def test_the_rate_comes_down_with_steps_or_time() -> None:
    schedule = Schedule(1000, 100.0, 1024, 1.0, num_warmup_steps=10)
    assert schedule.rate(0, 0.0) == pytest.approx(0.1)
    assert schedule.rate(1000, 0.0) == pytest.approx(0.02)
    assert schedule.rate(500, 100.0) == pytest.approx(0.02)
