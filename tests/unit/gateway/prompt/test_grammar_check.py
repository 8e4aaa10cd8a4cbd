"""The checker process: what it refuses, that it can be killed, what is remembered."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from services.gateway.prompt import grammar_check
from services.gateway.prompt.grammar_check import GrammarCheck
from shared.errors import AttemptError, OverloadedError, RequestError
from shared.grammar import source
from tests.support.models.text_models import END, byte_level_tokenizer, write_text_model

pytestmark = pytest.mark.anyio

GOOD = 'start: "a" | "b"'
SLOW = source.json_schema(
    {"allOf": [{"type": "string", "pattern": f"^(a|b)*a(a|b){{{n}}}$"} for n in range(10, 40)]}
)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def check(directory: Path) -> AsyncIterator[GrammarCheck]:
    tokenizer = byte_level_tokenizer()
    eos = tokenizer.token_to_id(END) or 0
    made = GrammarCheck(str(directory), tokenizer.get_vocab_size(), (eos,), time_limit_s=0.5)
    yield made
    await made.close()


async def refusal(check: GrammarCheck, grammar: str) -> RequestError:
    with pytest.raises(RequestError) as caught:
        await check.check(grammar, "tools")
    return caught.value


def checkers() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children()
        if "shared.grammar.checker" in child.cmdline()
    ]


async def test_free_text_needs_no_process(check: GrammarCheck) -> None:
    await check.check("", "response_format")
    assert checkers() == []


async def test_one_process_serves_many_grammars(check: GrammarCheck) -> None:
    for number in range(5):
        await check.check(f'start: "{number}"', "tools")
    error = await refusal(check, "start: nowhere")
    assert (error.status, error.code, error.param) == (400, "invalid_schema", "tools")
    assert error.message == 'tools: unknown name: "nowhere"'
    assert len(checkers()) == 1
    await check.close()
    assert checkers() == []


async def test_the_vocabularys_special_tokens_are_known(check: GrammarCheck) -> None:
    await check.check("start: <|im_start|> /[a-z]+/", "tools")
    assert "special token" in (await refusal(check, "start: <|nobody|>")).message


async def test_a_slow_grammar_costs_the_process_its_life(check: GrammarCheck) -> None:
    await check.check(GOOD, "tools")
    before = [process.pid for process in checkers()]
    assert "too long" in (await refusal(check, SLOW)).message
    assert checkers() == []
    await check.check('start: "c"', "tools")
    assert [process.pid for process in checkers()] != before


async def test_a_dead_process_is_replaced(check: GrammarCheck) -> None:
    await check.check(GOOD, "tools")
    (process,) = checkers()
    process.kill()
    while check._checker.running:  # noqa: ASYNC110 -- until asyncio has heard of its end
        await asyncio.sleep(0)
    await check.check('start: "d"', "tools")


async def test_nobody_waits_for_ever_behind_slow_grammars(
    check: GrammarCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_check, "TURN_LIMIT_S", 0.1)
    slow = asyncio.ensure_future(refusal(check, SLOW))
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError) as caught:
        await check.check(GOOD, "tools")
    assert caught.value.status == 429
    assert "too long" in (await slow).message
    await check.check(GOOD, "tools")


async def test_what_was_decided_is_remembered(
    check: GrammarCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_check, "NUM_REMEMBERED", 2)
    await check.check(GOOD, "tools")
    await refusal(check, "start: nowhere")
    for process in checkers():
        process.suspend()
    await check.check(GOOD, "tools")
    assert (await refusal(check, "start: nowhere")).message.endswith('"nowhere"')
    assert "too long" in (await refusal(check, 'start: "new"')).message
    assert "too long" in (await refusal(check, 'start: "new"')).message
    assert checkers() == [], "that one took too long is remembered too, for a while"
    monkeypatch.setattr(grammar_check, "TOO_LONG_FOR_S", 0.0)
    check._too_long.clear()
    await check.check('start: "new"', "tools")
    await check.check('start: "newer"', "tools")
    assert "too long" not in (await refusal(check, "start: nowhere")).message


async def test_the_process_has_a_limit_on_memory(check: GrammarCheck) -> None:
    await check.check(GOOD, "tools")
    (process,) = checkers()
    soft, _ = process.rlimit(psutil.RLIMIT_AS)
    assert 0 < soft < process.memory_info().vms + 600 * 2**20
    assert process.rlimit(psutil.RLIMIT_CORE) == (0, 0)


async def test_a_large_grammar_is_not_even_tried(check: GrammarCheck) -> None:
    error = await refusal(check, 'start: "' + "x" * 70_000 + '"')
    assert "bytes" in error.message and checkers() == []


async def test_without_the_library_it_says_so(
    check: GrammarCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_check, "grammars_available", lambda: False)
    error = await refusal(check, GOOD)
    assert (error.status, error.code, error.param) == (400, "unsupported_parameter", "tools")


async def test_a_vocabulary_it_cannot_load_is_our_fault(tmp_path: Path) -> None:
    check = GrammarCheck(str(tmp_path), 10, (1,))
    with pytest.raises(AttemptError):
        await check.check(GOOD, "tools")
    assert checkers() == []
