"""`baton up --model SHAPE --random-weights`: workers that read no weights hold the same ones."""

import random
from pathlib import Path

from services.cli.bench.engine.baton_subject import BatonSubject
from services.cli.bench.engine.model_choice import choose_model
from services.cli.bench.engine.workload import Request, Workload
from shared.model.checkpoint import load_checkpoint
from shared.text.tokenizer import TextTokenizer
from tests.e2e.cluster import running
from tests.support.settings import settings_with

LENGTHS = ((1, 4), (40, 24), (300, 16))
"""tokens in and out"""


def test_prefill_and_decode_answer_as_one_engine_does(tmp_path: Path) -> None:
    """The oracle is an engine in this process; answers have the length that was asked for."""
    rng = random.Random(1)  # noqa: S311
    prompts = [tuple(rng.choices(range(3, 8192), k=num_in)) for num_in, _ in LENGTHS]
    bodies = [
        {"prompt": list(prompt), "max_tokens": num_out, "temperature": 0}
        for prompt, (_, num_out) in zip(prompts, LENGTHS, strict=True)
    ]
    flags = ("--topology", "pd", "--model", "tiny", "--random-weights")
    with running(tmp_path, *flags) as cluster:
        seen = cluster.answers(bodies)
        assert cluster.metric("baton_local_prefill_tokens_total") == 0
    assert [stream.usage and stream.usage["completion_tokens"] for stream in seen] == [4, 24, 16]
    assert [stream.text for stream in seen] == expected(prompts)


def expected(prompts: list[tuple[int, ...]]) -> list[str]:
    settings = settings_with(device="cpu")
    engine = BatonSubject(choose_model("tiny", random_weights=True), *settings.of_engine)
    requests = [
        Request(prompt, num_out) for prompt, (_, num_out) in zip(prompts, LENGTHS, strict=True)
    ]
    answers = engine.run(Workload(tuple(requests))).token_ids
    engine.close()
    tokenizer = TextTokenizer.load(load_checkpoint("tiny", random_weights=True).path)
    texts = []
    for token_ids in answers:
        detokenizer = tokenizer.detokenizer()
        texts.append(detokenizer.push(token_ids) + detokenizer.end())
    return texts
