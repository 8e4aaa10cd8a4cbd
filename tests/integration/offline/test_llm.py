"""`LLM` on the demo model: order, refusals, ends, and an engine that is whole after each of them.

In fp32 with one thread an answer is the same to the bit whatever shares its batch, so each is
compared with the one that its prompt gets alone.
"""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from services.offline.answer import Answer
from services.offline.llm import LLM
from services.offline.progress import Progress
from services.offline.sampling_params import SamplingParams
from shared.engine.engine import Engine
from shared.engine.scheduling.sequence import SequenceSpec
from shared.errors import BatonError, ModelError, RequestError, SettingsError

GREEDY = SamplingParams(temperature=0, max_tokens=12)
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
QUESTION = [{"role": "user", "content": "What is 47 + 38?"}]


@pytest.fixture(scope="module")
def shared_llm() -> Iterator[LLM]:
    with LLM("demo", device="cpu", max_num_seqs=4, kv_blocks=96, max_model_len=512) as llm:
        yield llm


def engine_of(llm: LLM) -> Engine:
    engine = llm._loop._engine
    assert engine is not None
    return engine


@pytest.fixture
def llm(shared_llm: LLM) -> Iterator[LLM]:
    """Whatever a test does, the engine holds nothing of it afterwards."""
    yield shared_llm
    engine = engine_of(shared_llm)
    load = engine.load()
    assert (load.held, load.running, load.waiting) == (0, 0, 0)
    assert not engine.sequences
    assert not engine.has_work


def words(answers: list[Answer]) -> list[tuple[int, ...]]:
    return [answer.token_ids for answer in answers]


def test_answers_are_in_the_order_of_their_prompts(llm: LLM) -> None:
    """Twenty prompts, four at a time; the later ones end long before the first."""
    prompts = [f"Once upon a time number {at} " * (1 + at % 3) for at in range(20)]
    params = [SamplingParams(temperature=0, max_tokens=40 - 2 * at + at % 5) for at in range(20)]
    answers = llm.generate(prompts, params)
    assert [answer.prompt for answer in answers] == prompts
    alone = [llm.generate(each, params[at])[0] for at, each in enumerate(prompts)]
    assert words(answers) == words(alone)
    assert [answer.text for answer in answers] == [answer.text for answer in alone]
    assert len({len(answer.token_ids) for answer in answers}) > 10


def test_a_bad_prompt_is_named_before_anything_is_computed(llm: LLM) -> None:
    steps = engine_of(llm).counters.steps
    for bad, said in (
        ("word " * 600, "maximum context length is 512"),
        ("", "non-empty"),
        ([5, 10**6], "below 4096"),
        (["5"], "token ids"),
        (b"hi", "token ids; decode bytes"),
        (bytearray(b"hi"), "token ids; decode bytes"),
        ([5, True], "a list of token ids"),
        ("a\ud800", r"prompts\[1\]: half of a surrogate pair"),
    ):
        given: list[Any] = ["fine", bad]
        with pytest.raises(RequestError, match=said) as refused:
            llm.generate(given, GREEDY)
        assert refused.value.param == "prompts[1]"
    with pytest.raises(RequestError, match=r"messages\[1\]\[0\]\.role"):
        llm.chat([QUESTION, [{"role": "nobody", "content": "x"}]])
    with pytest.raises(RequestError, match=r"^messages\[0\]\.role"):
        llm.chat([{"role": "nobody", "content": "x"}])
    with pytest.raises(RequestError, match="regex: "):
        llm.generate("fine", SamplingParams(regex="("))
    assert engine_of(llm).counters.steps == steps


def test_token_ids_are_a_prompt_and_no_prompts_are_none(llm: LLM) -> None:
    (text,) = llm.generate("Once upon a time", GREEDY)
    (ids,) = llm.generate(list(text.prompt_token_ids), GREEDY)
    (listed,) = llm.generate([text.prompt_token_ids], GREEDY)
    assert ids.token_ids == listed.token_ids == text.token_ids
    assert (ids.prompt, ids.num_prompt_tokens, ids.num_output_tokens) == (None, 4, 12)
    assert llm.generate([]) == []


def test_conversations_are_answered_one_or_several(llm: LLM) -> None:
    (answer,) = llm.chat(QUESTION, GREEDY)
    assert (answer.text, answer.finish_reason) == ("85", "stop")
    several = llm.chat([QUESTION, [{"role": "user", "content": "hello"}]], GREEDY)
    assert several[0].text == "85"
    assert several[1].text != "85"


def test_choices_of_one_seed_begin_with_the_lone_one(llm: LLM) -> None:
    one = llm.generate("Once", SamplingParams(seed=5, max_tokens=9))[0]
    three = llm.generate("Once", SamplingParams(seed=5, max_tokens=9, n=3))[0]
    assert three.token_ids == one.token_ids
    assert [choice.index for choice in three.choices] == [0, 1, 2]
    assert len({choice.token_ids for choice in three.choices}) == 3


def test_a_stop_string_ends_an_answer_and_is_not_shown(llm: LLM) -> None:
    (whole,) = llm.generate("Once upon a time", GREEDY)
    stop = whole.text[10:14]
    (cut,) = llm.generate("Once upon a time", SamplingParams(temperature=0, stop=stop))
    assert cut.text == whole.text[: whole.text.index(stop)]
    choice = cut.choices[0]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", stop)
    assert whole.token_ids[: len(choice.token_ids)] == choice.token_ids


def test_what_a_stop_string_ended_is_not_computed_on(llm: LLM) -> None:
    counters = engine_of(llm).counters
    stop = llm.generate("Once upon a time", GREEDY)[0].text[10:14]
    before = counters.generated_tokens
    params = [SamplingParams(temperature=0, stop=stop, ignore_eos=True), GREEDY]
    answers = llm.generate(["Once upon a time", "A dog"], params)
    told = sum(answer.num_output_tokens for answer in answers)
    assert counters.generated_tokens - before <= told + 1


def test_many_prompts_wait_outside_the_engine(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its queue is searched through at every end, so it is to stay short."""
    engine = engine_of(llm)
    add, held = engine.add, []

    def counted(spec: SequenceSpec) -> bool:
        held.append(len(engine.sequences))
        return add(spec)

    monkeypatch.setattr(engine, "add", counted)
    answers = llm.generate([f"a {at}" for at in range(40)], SamplingParams(max_tokens=3))
    assert len(answers) == len(held) == 40
    assert 4 <= max(held) < 2 * 4


def test_prompts_share_steps(llm: LLM) -> None:
    counters = engine_of(llm).counters
    before = counters.steps
    llm.generate(["a", "b", "c", "d"], SamplingParams(max_tokens=12, ignore_eos=True))
    assert counters.steps - before < 2 * 12


def test_logprobs_are_of_the_tokens_of_the_answer(llm: LLM) -> None:
    (answer,) = llm.generate("Once", SamplingParams(temperature=0, max_tokens=5, logprobs=2))
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert tuple(each.token_id for each in logprobs) == answer.token_ids
    assert all(each.top[0].logprob == each.logprob and len(each.top) == 2 for each in logprobs)
    assert llm.generate("Once", GREEDY)[0].choices[0].logprobs is None


def test_an_output_matches_its_schema(llm: LLM) -> None:
    params = SamplingParams(json_schema=CITY, seed=1)
    answers = llm.generate(["a", "b", "c", "d", "e", "f"], params)
    assert all(json.loads(answer.text)["city"] in ("Paris", "Rome") for answer in answers)


def test_a_prefix_that_was_computed_is_found_again(llm: LLM) -> None:
    prompt = "It was a story of long ago. " * 9
    llm.generate(prompt, GREEDY)
    (again,) = llm.generate(prompt, GREEDY)
    assert again.num_prompt_tokens - 16 <= again.num_cached_tokens < again.num_prompt_tokens


def test_a_long_prompt_is_cut_where_that_is_asked_for(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=3, truncate_prompt_tokens=10)
    assert llm.generate("word " * 600, params)[0].num_prompt_tokens == 10


def test_a_stream_is_the_answer_in_pieces(llm: LLM) -> None:
    stream = llm.stream("Once upon a time", GREEDY)
    with pytest.raises(BatonError, match="not complete"):
        _ = stream.answer
    pieces = list(stream)
    (whole,) = llm.generate("Once upon a time", GREEDY)
    assert len(pieces) > 5
    assert "".join(pieces) == stream.answer.text == whole.text
    assert "".join(llm.stream(QUESTION, GREEDY)) == "85"


def test_a_stream_and_a_list_share_the_steps(llm: LLM) -> None:
    alone = "".join(llm.stream("Once upon a time", GREEDY))
    with llm.stream("Once upon a time", GREEDY) as stream:
        first = next(stream)
        llm.generate(["a", "b"], GREEDY)
        assert first + "".join(stream) == alone


def test_whoever_leaves_a_stream_leaves_nothing_behind(llm: LLM) -> None:
    stream = llm.stream("Once upon a time", SamplingParams(ignore_eos=True))
    next(iter(stream))
    engine = engine_of(llm)
    assert engine.load().held > 0
    steps = engine.counters.steps
    stream.close()
    assert engine.load().held == 0
    assert engine.counters.steps <= steps + 1, "it was computed to its end"


def amid_steps(
    monkeypatch: pytest.MonkeyPatch, llm: LLM, at: int, happen: Callable[[], object]
) -> None:
    """Something happens when blocks are taken for the time of that number, before anybody has noted
    which they are."""
    pool, numbers = engine_of(llm)._pool, iter(range(10**6))
    allocate = pool.allocate

    def planted(num_blocks: int) -> Any:
        blocks = allocate(num_blocks)
        if next(numbers) == at:
            happen()
        return blocks

    monkeypatch.setattr(pool, "allocate", planted)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """As a program in the foreground has it; one in the background of a shell ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("at", [0, 1, 7])
def test_ctrl_c_ends_a_call_and_leaves_the_engine_whole(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Amid a step, where it would leave blocks that nobody gives back."""
    prompts = [f"Once upon a time {number}" for number in range(9)]
    before = llm.generate(prompts, GREEDY)
    amid_steps(monkeypatch, llm, at, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        llm.generate(prompts, GREEDY)
    assert engine_of(llm).load().held == 0
    monkeypatch.undo()
    assert words(llm.generate(prompts, GREEDY)) == words(before)


def test_an_exception_between_steps_ends_a_call_and_leaves_the_engine_whole(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("the terminal is gone")

    monkeypatch.setattr(Progress, "due", property(lambda self: True))
    monkeypatch.setattr(Progress, "show", broken)
    with pytest.raises(ValueError, match="gone"):
        llm.generate(["a", "b", "c", "d", "e", "f"], GREEDY)
    assert engine_of(llm).load().held == 0
    monkeypatch.undo()
    assert len(llm.generate("a", GREEDY)) == 1


def fail(*_: object) -> None:
    raise RuntimeError("out of memory")


def test_a_step_that_fails_is_told_and_the_engine_goes_on_if_it_is_empty(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_of(llm)._runner, "run", fail)
    with pytest.raises(BatonError, match="out of memory"):
        llm.generate(["a", "b"], GREEDY)
    monkeypatch.undo()
    assert len(llm.generate("a", GREEDY)) == 1


def test_an_engine_that_lost_blocks_says_so_to_every_later_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with LLM("demo", device="cpu", kv_blocks=16, max_model_len=128) as llm:
        amid_steps(monkeypatch, llm, 0, fail)
        with pytest.raises(BatonError, match="out of memory"):
            llm.generate(["a", "b"], GREEDY)
        monkeypatch.undo()
        with pytest.raises(BatonError, match="close this LLM, make a new one"):
            llm.generate("a", GREEDY)


def test_threads_share_the_steps(llm: LLM) -> None:
    prompts = [[f"Story {number} of thread {at}" for number in range(6)] for at in range(3)]
    alone = [words(llm.generate(each, GREEDY)) for each in prompts]
    got: dict[int, list[tuple[int, ...]]] = {}

    def ask(at: int) -> None:
        got[at] = words(llm.generate(prompts[at], GREEDY))

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got[at] for at in range(3)] == alone


def test_what_is_closed_computes_nothing() -> None:
    llm = LLM("demo", device="cpu", kv_blocks=16, max_model_len=128)
    stream = llm.stream("Once", SamplingParams(ignore_eos=True))
    next(iter(stream))
    llm.close()
    llm.close()
    for ask in (lambda: llm.generate("Once"), lambda: list(stream)):
        with pytest.raises(BatonError, match="closed; make a new one"):
            ask()


def test_a_wrong_setting_or_model_is_named() -> None:
    with pytest.raises(SettingsError, match="port: no setting of an LLM"):
        LLM("demo", port=8000)
    with pytest.raises(SettingsError, match=r"^block_size: 0 is below 1"):
        LLM("demo", device="cpu", block_size=0)
    with pytest.raises(ModelError, match="neither a directory nor a hub id"):
        LLM("no such model", device="cpu")


def test_variables_of_a_cell_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_MAX_MODEL_LEN", "64")
    monkeypatch.setenv("BATON_BLOCK_SIZE", "no number")
    with LLM("demo", device="cpu", kv_blocks=16, max_model_len=128) as llm:
        assert llm.max_model_len == 128


def test_log_probabilities_of_a_prompt(llm: LLM) -> None:
    """Told once, by the first choice; the same as of an answer that says the same."""
    params = SamplingParams(temperature=0, max_tokens=12, logprobs=2, ignore_eos=True)
    (answer,) = llm.generate(["Once upon a time"], params)
    whole = [*answer.prompt_token_ids, *answer.token_ids]
    wanted = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=2, n=2)
    for _ in range(2):  # the second finds the prompt in the prefix cache
        prompts: list[str | list[int]] = [whole, "A dog"]
        scored, plain = llm.generate(prompts, [wanted, GREEDY])
        assert plain.prompt_logprobs is None
        assert scored.prompt_logprobs is not None and scored.prompt_logprobs[0] is None
        assert len(scored.prompt_logprobs) == len(whole)
        assert scored.prompt_logprobs[-12:] == answer.choices[0].logprobs
