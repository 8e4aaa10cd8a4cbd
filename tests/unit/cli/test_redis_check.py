"""`baton up --redis URL` says at once what is wrong with a Redis that cannot be used."""

import asyncio
import socket
from pathlib import Path

import pytest

from services.cli.cluster.redis_check import check_redis
from shared.errors import MissingError, SettingsError

pytestmark = pytest.mark.anyio


async def test_a_listener_is_enough(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "s"))
        unix.listen()
        await check_redis(f"unix://{tmp_path}/s")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await check_redis(f"redis://:word@127.0.0.1:{listener.getsockname()[1]}/0")


async def test_one_that_comes_up_late_is_waited_for(tmp_path: Path) -> None:
    checking = asyncio.create_task(check_redis(f"unix://{tmp_path}/s"))
    await asyncio.sleep(0)
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "s"))
        unix.listen()
        await checking


async def test_nobody_there_is_missing_and_no_password_is_shown(tmp_path: Path) -> None:
    for url in (f"unix://:word@{tmp_path}/none", "redis://me:word@127.0.0.1:1"):
        with pytest.raises(MissingError, match="no Redis at") as missing:
            await check_redis(url, patience_s=0.05)
        assert "word" not in str(missing.value)


@pytest.mark.parametrize("url", ["http://x", "redis://h:99999", "redis://h:word", "nonsense"])
async def test_what_names_no_redis_is_a_bad_setting(url: str) -> None:
    with pytest.raises(SettingsError):
        await check_redis(url, patience_s=0.05)
