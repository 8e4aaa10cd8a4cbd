"""The one door to Redis: redis-py confined, time bounded, scripts reloaded.

Policy: a command is tried until it answers or `timeout_s` has passed, over as many connections
as that takes, with pauses of 10, 20, ... 200 ms; then StateUnavailableError. So a restart of
Redis shorter than that is invisible and a longer one never hangs a caller. A command whose
answer was lost may therefore run twice: every script of ours allows it, and says how.
A server that answers anything but what was asked for (out of memory, a replica, a key of another
type, a proxy's own words) is unavailable too, counted by kind and logged: no caller can do more
about it than wait until somebody has repaired it.
"""

import asyncio
import hashlib
import logging
import math
import re
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import (
    DataError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from shared.errors import SettingsError, StateRefusedError, StateUnavailableError
from shared.repeats import Repeats
from shared.sockets import USER_TIMEOUT_MS
from shared.state.reply import Reply

logger = logging.getLogger(__name__)

Argument = str | bytes | int

TIMEOUT_S = 2.0
"""a caller waits at most this long for Redis"""
ATTEMPT_TIMEOUT_S = 1.0
FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 0.2
MAX_CONNECTIONS = 16

_LOST = (RedisConnectionError, RedisTimeoutError, TimeoutError, OSError)
_UNKNOWN = (RedisError, ValueError, IndexError, TypeError)
"""an error that Redis answers, and what redis-py raises on an answer that is no Redis protocol"""
_CODE = re.compile(
    r"\b(WRONGTYPE|OOM|MISCONF|READONLY|NOPERM|MASTERDOWN|NOREPLICAS|BUSY|LOADING|NOAUTH"
    r"|MOVED|ASK|CROSSSLOT|CLUSTERDOWN|TRYAGAIN|EXECABORT)\b"
)
"""error codes in the text: Redis 6.2 wraps an error inside a script in one of the script's own"""
PASSWORD_REFUSED = (
    "invalid username-password",
    "Authentication required",
    "WRONGPASS",
    "NOAUTH",
)
"""what Redis says to whoever does not know its password, as redis-py passes it on; over some kinds
of connection without a type of its own"""
_REFUSALS = (OutOfMemoryError, ReadOnlyError, NoPermissionError)
_REFUSED = frozenset({"OOM", "MISCONF", "READONLY", "NOPERM", "MASTERDOWN", "NOREPLICAS", "BUSY"})
"""Redis is there and does not take this work now"""


@dataclass(frozen=True)
class Script:
    """One atomic step in Lua. Its name on the server is the SHA-1 of its text."""

    name: str
    text: str

    @classmethod
    def beside(cls, module_file: str, name: str) -> "Script":
        """The script lua/`name`.lua in the folder of a module."""
        return cls(name, (Path(module_file).parent / "lua" / f"{name}.lua").read_text())

    @cached_property
    def sha(self) -> str:
        return hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


class RedisClient:
    """Commands and scripts on one Redis; safe to share between tasks of one event loop.

    Opens connections when first needed, so it can be made while Redis is away.
    """

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S) -> None:
        """`url`: redis://, rediss:// or unix://; SettingsError if it is none of these."""
        self._timeout_s = timeout_s
        self._redis = _connect(url, min(ATTEMPT_TIMEOUT_S, timeout_s))
        self._place = _place(self._redis.connection_pool.connection_kwargs)
        self._places = asyncio.Semaphore(MAX_CONNECTIONS)
        self._failed_s = -math.inf
        """when a command last had no answer in time"""
        self.errors: Counter[str] = Counter()
        """answers that were not what was asked for, by kind"""
        self._repeats = Repeats()
        self.num_round_trips = 0
        """commands sent since the start, repeats included"""

    async def run(
        self, script: Script, keys: Sequence[str], arguments: Sequence[Argument] = ()
    ) -> Reply:
        """Runs a script by EVALSHA; loads it first if the server does not know it."""
        call = ("EVALSHA", script.sha, len(keys), *keys, *arguments)
        return await self._in_turn(call, script)

    async def command(self, *words: Argument) -> Reply:
        """One command, one answer; StateUnavailableError within `timeout_s`.

        Time spent in the queue for a connection is our own and not counted against Redis, as
        long as Redis answers those who are ahead."""
        return await self._in_turn(words)

    async def _in_turn(self, words: Sequence[Argument], script: Script | None = None) -> Reply:
        """On one of the connections. A script that is not loaded yet keeps its turn: what a
        gateway writes first must not fall behind what it writes after."""
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        async with self._places:
            start_s = asked_s if self._failed_s >= asked_s else loop.time()
            deadline_s = start_s + self._timeout_s
            try:
                return await self._try_until(deadline_s, words)
            except NoScriptError:
                if script is None:
                    raise
                await self._try_until(deadline_s, ("SCRIPT", "LOAD", script.text))
                return await self._try_until(deadline_s, words)
            except StateUnavailableError:
                self._failed_s = loop.time()
                raise

    async def _try_until(self, deadline: float, words: Sequence[Argument]) -> Reply:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        num_cancelled = task.cancelling() if task is not None else 0
        pause_s = FIRST_PAUSE_S
        while True:  # until the deadline
            try:
                async with asyncio.timeout_at(deadline):
                    answer = await self._send(words)
                if task is not None and task.cancelling() > num_cancelled:
                    # `asyncio.wait_for` of Python 3.11, which redis-py writes with, forgets a
                    # cancellation that comes with the result.
                    raise asyncio.CancelledError
                return answer
            except _LOST as error:
                if loop.time() + pause_s >= deadline:
                    raise StateUnavailableError(self._unanswered(error)) from error
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def close(self) -> None:
        await self._redis.aclose(close_connection_pool=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _send(self, words: Sequence[Argument]) -> Reply:
        self.num_round_trips += 1
        try:
            reply: Reply = await self._redis.execute_command(*words)
        except (NoScriptError, DataError, *_LOST):
            raise
        except _UNKNOWN as error:
            raise self._refused(error) from error
        return reply

    def _unanswered(self, error: Exception) -> str:
        """What `error`, the last of all tries, means, and what to do."""
        if any(words in str(error) for words in PASSWORD_REFUSED):
            return (
                f"Redis at {self._place} wants its password: give it in the URL, by --redis, "
                "BATON_REDIS or the file of BATON_REDIS_FILE: redis://USER:PASSWORD@HOST:PORT"
            )
        name = type(error).__name__
        return f"Redis at {self._place} does not answer ({name}); check --redis"

    def _refused(self, error: Exception) -> StateUnavailableError:
        code = _CODE.search(str(error))
        kind = code[0] if code else type(error).__name__
        self.errors[kind] += 1
        if count := self._repeats.due(kind):
            logger.warning("redis refuses work (%s, time %d): %s", kind, count, error)
        refused = isinstance(error, _REFUSALS) or kind in _REFUSED
        unavailable = StateRefusedError if refused else StateUnavailableError
        return unavailable(f"Redis refuses work: {error}")


def _place(options: Mapping[str, Any]) -> str:
    """What is dialled: the path of a socket, or host:port, without user and password."""
    if path := options.get("path"):
        return str(path)
    return f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"


def _connect(url: str, attempt_timeout_s: float) -> Any:
    options: dict[str, Any] = {
        "protocol": 2,
        "socket_timeout": attempt_timeout_s,
        "socket_connect_timeout": attempt_timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "driver_info": None,
        "max_connections": MAX_CONNECTIONS,
        "timeout": None,
    }
    if not url.startswith("unix:"):
        options["socket_keepalive"] = True
        options["socket_keepalive_options"] = {socket.TCP_USER_TIMEOUT: USER_TIMEOUT_MS}
    try:
        pool = redis.asyncio.BlockingConnectionPool.from_url(url, **options)
    except (ValueError, RedisError) as error:
        raise SettingsError(f"--redis: {error}") from None
    client = redis.asyncio.Redis(connection_pool=pool)
    client.auto_close_connection_pool = True
    client.response_callbacks.clear()
    return client
