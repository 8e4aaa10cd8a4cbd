"""A child that can be killed: it answers, is ended over a question, and outlives nobody."""

import asyncio
import signal
import subprocess
import sys

import psutil
import pytest

from shared.child.asked_process import AskedProcess
from tests.rules.sources import ROOT
from tests.support.fakes.echo_child import ECHO_CODEC, Hang, Say

pytestmark = pytest.mark.anyio

ECHO = "tests.support.fakes.echo_child"
PARENT = f"""
import asyncio
from shared.child.asked_process import AskedProcess
from tests.support.fakes.echo_child import ECHO_CODEC, Hang, Say

async def main():
    child = AskedProcess({ECHO!r}, ECHO_CODEC, Say("setup"))
    await child.start()
    await child.answer()
    print(child._process.pid, flush=True)
    await child.ask(Hang())

asyncio.run(main())
"""


async def started() -> AskedProcess:
    child = AskedProcess(ECHO, ECHO_CODEC, Say("setup"))
    await child.start()
    assert await child.answer() == Say("setup")
    return child


async def test_one_process_answers_in_turn() -> None:
    child = await started()
    await child.start()
    long = Say("x" * 2**20)
    assert [await child.ask(Say("a")), await child.ask(long)] == [Say("a"), long]
    await child.kill()
    assert not child.running


async def test_a_question_without_an_answer_costs_the_process_and_not_the_next_one() -> None:
    child = await started()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await child.ask(Hang())
    await child.kill()
    await child.start()
    assert await child.answer() == Say("setup")
    assert await child.ask(Say("b")) == Say("b")
    await child.kill()


async def test_a_process_that_ended_is_an_error_and_never_a_new_one() -> None:
    """A new one would answer its setup first, and that would pass for the answer."""
    child = await started()
    for process in psutil.Process().children():
        if ECHO in process.cmdline():
            process.kill()
    with pytest.raises((OSError, EOFError)):
        await child.ask(Say("c"))
    await child.kill()
    with pytest.raises(OSError, match="has ended"):
        await child.ask(Say("c"))


def test_it_ends_with_its_parent_whatever_it_does() -> None:
    with subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", PARENT], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
        child.wait(10)
