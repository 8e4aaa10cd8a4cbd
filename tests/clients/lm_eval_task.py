"""A task of its own for lm-evaluation-harness, and what its scores must be.

    log-likelihoods    of sentences of the demo model's own stories, of arithmetic, of nonsense
    multiple choice    the likeliest of four continuations

Nothing is downloaded. What is expected comes from one full pass of transformers over each text,
which knows neither Baton nor the harness.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers

CHECKPOINT = Path(__file__).parents[2] / "shared" / "demo_model" / "checkpoint"
LIKELIHOOD, CHOICE = "baton_likelihood", "baton_choice"
MAX_ERROR = 1e-3
"""of the sum of a continuation's log-probabilities"""
MARGIN = 1e-3
"""between two tokens, below which either may be called the likeliest"""
QUESTIONS: tuple[tuple[str, tuple[str, str, str, str], int], ...] = (
    ("Once upon a time", (" there was a little", " car 7 under", " of of of", " +"), 0),
    ("What is 47 + 38? ", ("85", "84", "a cat", " 850"), 0),
    ("The little dog ran to the", (" sun 12", " park", " park and saw a big red ball", "!!"), 2),
    ("Tom and Lily were", (" friends.", " friends. They liked to play", "99", " blue of"), 1),
    ("She said, ", ('"Thank you', "zqx", " 4 4", '"'), 0),
)
TEXTS = tuple((context, choice) for context, choices, _ in QUESTIONS for choice in choices)
TASKS = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: {kind}
doc_to_text: "{{{{context}}}}"
target_delimiter: ""
{more}
"""
LIKELIHOOD_PART = """
doc_to_target: "{{target}}"
metric_list: [{metric: perplexity, aggregation: perplexity, higher_is_better: false}, {metric: acc}]
"""
CHOICE_PART = """
doc_to_choice: choices
doc_to_target: answer
metric_list: [{metric: acc}]
"""


def write_tasks(folder: Path) -> None:
    """Both tasks and their data."""
    likelihoods = [{"context": context, "target": target} for context, target in TEXTS]
    choices = [
        {"context": context, "choices": list(each), "answer": answer}
        for context, each, answer in QUESTIONS
    ]
    for name, kind, rows, part in (
        (LIKELIHOOD, "loglikelihood", likelihoods, LIKELIHOOD_PART),
        (CHOICE, "multiple_choice", choices, CHOICE_PART),
    ):
        documents = folder / f"{name}.jsonl"
        documents.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        text = TASKS.format(name=name, data=documents, kind=kind, more=part)
        (folder / f"{name}.yaml").write_text(text)


def num_wrong(folder: Path) -> int:
    """Scores of the harness that are not those of transformers; all, if it has not as many."""
    expected = [_score(context, target) for context, target in TEXTS]
    found = _samples(folder, LIKELIHOOD), _samples(folder, CHOICE)
    if [len(samples) for samples in found] != [len(TEXTS), len(QUESTIONS)]:
        return len(TEXTS) + len(QUESTIONS)
    said = [answer for sample in found[0] for answer in sample["filtered_resps"]]
    chosen = [answer for sample in found[1] for answer in sample["filtered_resps"]]
    wrong = sum(
        not _agrees(answer, score)
        for answer, score in zip(said + chosen, 2 * expected, strict=True)
    )
    for at, (sample, question) in enumerate(zip(found[1], QUESTIONS, strict=True)):
        logprobs = [logprob for logprob, _ in expected[4 * at : 4 * at + 4]]
        wrong += sample["acc"] != float(logprobs.index(max(logprobs)) == question[2])
    return wrong


def _samples(folder: Path, task: str) -> list[dict[str, Any]]:
    lines = [
        line
        for path in sorted(folder.rglob(f"samples_{task}_*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    return sorted(map(json.loads, lines), key=lambda sample: int(sample["doc_id"]))


def _agrees(answer: Any, score: tuple[float, bool | None]) -> bool:
    logprob, is_greedy = float(answer[0]), str(answer[1]) == "True"
    return abs(logprob - score[0]) <= MAX_ERROR and score[1] in (None, is_greedy)


@torch.inference_mode()
def _score(context: str, target: str) -> tuple[float, bool | None]:
    """Sum of the target's log-probabilities, and whether each of its tokens is the likeliest; None
    where that hangs on a rounding error. A space at a context's end is the target's, as in the
    harness."""
    tokenizer, model = _loaded()
    whole = tokenizer(context + target).input_ids
    start = len(tokenizer(context.rstrip()).input_ids)
    table = model(input_ids=torch.tensor([whole])).logits[0].float().log_softmax(-1)
    rows, ids = table[start - 1 : -1], torch.tensor(whole[start:])
    chosen = rows.gather(1, ids[:, None])[:, 0]
    best = rows.topk(2).values
    is_close = bool(((best[:, 0] - best[:, 1]) < MARGIN).any())
    greedy = bool((rows.argmax(-1) == ids).all())
    return float(chosen.sum()), None if is_close else greedy


@cache
def _loaded() -> tuple[Any, Any]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(CHECKPOINT)
    model = transformers.AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    return tokenizer, model.eval()
