"""Ranks as real processes over gloo: equal answers, and what happens when one of them ends."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from shared.engine.rank_processes.followers import COMMAND, NO_MOVER, Followers, RankLostError
from shared.protocol import Sampling
from shared.worker import engine_client
from shared.worker.channel import Add
from shared.worker.engine_client import EngineClient
from shared.worker.fork_client import ForkServer
from tests.support.models.built_engine import built_engine
from tests.support.models.tiny_model import TINY, write_checkpoint
from tests.support.pairs.ranked_engine import answers
from tests.support.settings import settings_with
from tests.unit.engine.fake_runner import BLOCK_SIZE, make_prompt, make_spec

REPOSITORY = Path(__file__).parents[3]
LLAMA = {**TINY, "num_attention_heads": 8, "num_key_value_heads": 2}
START_S = 60.0
END_S = 10.0
"""within which a lost rank is reported"""


def _settings(path: Path, size: int) -> dict[str, Any]:
    return {
        "model": str(path),
        "device": "cpu",
        "tp": size,
        "block_size": 8,
        "kv_blocks": 64,
        "max_model_len": 128,
        "max_num_batched_tokens": 24,
        "max_num_seqs": 4,
    }


@asynccontextmanager
async def _client(settings: Mapping[str, Any]) -> AsyncIterator[EngineClient]:
    """Of an engine that is to be started; afterwards it is gone."""
    given = settings_with(**settings)
    server = ForkServer(given, "decode")
    client = EngineClient(given, server)
    try:
        yield client
    finally:
        await client.stop()
        server.close()


@contextmanager
def _started(settings: Mapping[str, Any], mode: str) -> Iterator[subprocess.Popen[str]]:
    """A ranked_engine that is ready; afterwards it and its ranks are gone."""
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "tests.support.pairs.ranked_engine", json.dumps(settings), mode],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready, process.communicate()
        assert json.loads(ready) == {"ready": 64}
        yield process
    finally:
        process.kill()
        process.communicate()


def _followers(process: subprocess.Popen[str]) -> list[psutil.Process]:
    followers = psutil.Process(process.pid).children()
    return sorted(followers, key=lambda child: int(child.cmdline()[4]))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("size", [2, 4])
def test_processes_answer_token_for_token_as_one_does(size: int, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    write_checkpoint(tmp_path, LLAMA)
    expected = answers(built_engine(settings_with(**_settings(tmp_path, 1)), "decode"), 8)
    with _started(_settings(tmp_path, size), "once") as process:
        followers = _followers(process)
        assert len(followers) == size - 1
        told, problems = process.communicate(timeout=START_S)
        assert json.loads(told) == expected
        assert (process.returncode, problems) == (0, "")
        assert psutil.wait_procs(followers, END_S)[1] == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mode", ["forever", "stuck"])
def test_a_lost_rank_is_reported_with_its_number_and_end(mode: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, LLAMA)
    with _started(_settings(tmp_path, 2), mode) as process:
        (lost,) = _followers(process)
        os.kill(lost.pid, signal.SIGKILL)
        _, problems = process.communicate(timeout=END_S)
        assert process.returncode == -signal.SIGKILL, "as the rank, which somebody else ended"
        assert problems.strip() == f"rank 1 (pid {lost.pid}) was killed by SIGKILL"


@pytest.mark.timeout(120)
def test_the_others_end_too_when_one_of_several_is_lost(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, LLAMA)
    with _started(_settings(tmp_path, 4), "forever") as process:
        followers = _followers(process)
        os.kill(followers[1].pid, signal.SIGKILL)
        _, problems = process.communicate(timeout=END_S)
        assert f"rank 2 (pid {followers[1].pid}) was killed by SIGKILL" in problems
        assert psutil.wait_procs(followers, END_S)[1] == []


@pytest.mark.timeout(120)
def test_followers_do_not_outlive_rank_0(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, LLAMA)
    with _started(_settings(tmp_path, 2), "forever") as process:
        followers = _followers(process)
        process.kill()
        assert psutil.wait_procs(followers, END_S)[1] == []


@pytest.mark.anyio
@pytest.mark.timeout(120)
async def test_a_worker_ends_with_its_ranks(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, LLAMA)
    async with _client(_settings(tmp_path, 2)) as client:
        ready = await client.start()
        assert ready.layout.num_kv_heads == 2, "of whole blocks"
        (follower,) = psutil.Process(client.pid).children()
        follower.kill()
        assert await client.wait() == -signal.SIGKILL


@pytest.mark.clock
@pytest.mark.anyio
@pytest.mark.timeout(120)
async def test_a_rank_that_hangs_is_noticed_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_client, "LISTEN_S", 0.1)
    write_checkpoint(tmp_path, LLAMA)
    settings = {**_settings(tmp_path, 2), "block_size": BLOCK_SIZE, "engine_silence_s": 1.0}
    async with _client(settings) as client:
        await client.start()
        (follower,) = psutil.Process(client.pid).children()
        failing = asyncio.create_task(client.failure(step_s=0.1))
        await asyncio.sleep(2.0)
        assert not failing.done(), "an idle engine answers"
        follower.suspend()
        client.send(Add(make_spec("a", make_prompt(9), Sampling(max_tokens=8))))
        error = await asyncio.wait_for(failing, END_S)
        assert f"(pid {client.pid}) answered nothing for 1 s" in str(error)
        assert error.exit_code == 1
    assert psutil.wait_procs([follower], END_S)[1] == []


@pytest.mark.anyio
@pytest.mark.timeout(120)
async def test_ranks_end_with_their_worker(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, LLAMA)
    async with _client(_settings(tmp_path, 2)) as client:
        await client.start()
        followers = psutil.Process(client.pid).children()
    assert psutil.wait_procs(followers, END_S)[1] == []


@pytest.mark.timeout(60)
def test_a_rank_that_cannot_start_says_why(tmp_path: Path) -> None:
    model = [str(tmp_path / "nothing"), "nothing", "stored"]
    followers = Followers(2, {"BATON_DEVICE": "cpu"}, model)
    started_s = time.monotonic()
    try:
        with pytest.raises(
            RankLostError, match=r"rank 1 .* ended with status 2: model '.*nothing'"
        ):
            while time.monotonic() < started_s + START_S:
                with followers.explained():
                    raise RuntimeError("as a call to the ranks might")
    except RuntimeError:
        pass
    finally:
        followers.close()


@pytest.mark.timeout(120)
def test_what_a_rank_warns_of_is_on_standard_error_with_its_number(tmp_path: Path) -> None:
    sock, theirs = socket.socketpair()
    place = [theirs.fileno(), NO_MOVER, 1, 2, os.getpid(), tmp_path / "meeting"]
    with sock, theirs:
        ended = subprocess.run(  # noqa: S603
            [*COMMAND, *map(str, place), "private", str(tmp_path / "none"), "m", "random"],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "BATON_DEVICE": "cpu"},
            cwd=REPOSITORY,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert ended.returncode == 1
        assert "No such file" in sock.recv(2**12).decode()
    assert "WARNING" in ended.stderr
    assert "rank 1" in ended.stderr
    assert "No such file" in ended.stderr


def test_gloo_keeps_the_contract(tmp_path: Path) -> None:
    size = 3
    command = [sys.executable, "-m", "tests.support.oracles.ranks_contract"]
    ranks = [
        subprocess.Popen(  # noqa: S603
            [*command, str(rank), str(size), str(tmp_path), "cpu"], cwd=REPOSITORY
        )
        for rank in range(size)
    ]
    assert [rank.wait(START_S) for rank in ranks] == [0] * size
