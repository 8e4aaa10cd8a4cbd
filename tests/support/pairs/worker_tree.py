"""The processes of a worker: io, under it the fork server, and under that the engine."""

import psutil


def engine_of(io_pid: int) -> psutil.Process:
    """AssertionError while there is none. NoSuchProcess once they have ended."""
    (server,) = psutil.Process(io_pid).children()
    engines = server.children()
    assert len(engines) == 1, f"{len(engines)} engines"
    return engines[0]


def find_engine(io_pid: int) -> psutil.Process | None:
    """The same, None while there is none."""
    servers = psutil.Process(io_pid).children()
    return next((engine for server in servers for engine in server.children()), None)
