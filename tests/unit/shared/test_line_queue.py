"""Lines never stop their writer: what has no room is counted, and the count is told."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from services.cli.cluster.log_file import LogFile
from shared.line_queue import LineQueue, stream_writer


class Gate:
    """A sink that takes lines only while it is open, and can be out of room."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.reached = threading.Event()
        self.full = False
        self.lines: list[str] = []

    def write(self, line: str) -> None:
        self.reached.set()
        self.open.wait(10)
        if self.full:
            raise OSError(28, "No space left on device")
        self.lines.append(line)


def test_a_sink_that_hangs_costs_lines_and_no_time() -> None:
    gate = Gate()
    queue = LineQueue(gate.write, max_lines=4)
    queue.put("0")
    assert gate.reached.wait(10)
    start_s = time.monotonic()
    for number in range(1, 1000):
        queue.put(str(number))
    assert time.monotonic() - start_s < 1
    assert queue.num_dropped == 995
    gate.open.set()
    queue.flush(10)
    assert gate.lines == ["0", "995 lines could not be written", "1", "2", "3", "4"]


def test_a_sink_without_room_is_used_again_when_it_has_some() -> None:
    gate = Gate()
    gate.open.set()
    gate.full = True
    queue = LineQueue(gate.write)
    queue.put("lost")
    queue.flush(10)
    gate.full = False
    queue.put("kept")
    queue.flush(10)
    assert gate.lines == ["1 lines could not be written", "kept"]


def test_a_full_device_is_a_sink_without_room() -> None:
    with Path("/dev/full").open("w") as full:
        queue = LineQueue(stream_writer(full))
        queue.put("lost")
        queue.flush(10)
        assert queue.num_dropped == 1


LOG_TO_A_PIPE = """
import logging
from shared.telemetry.logs import configure_logs, num_dropped_lines
configure_logs("info")
for number in range(20_000):
    logging.getLogger("x").info("%d %s", number, "." * 100)
assert num_dropped_lines() > 0
logging.getLogger("x").info("end")
"""


def test_a_process_whose_error_pipe_nobody_reads_works_on_and_ends() -> None:
    reading, writing = os.pipe()
    process = subprocess.Popen([sys.executable, "-c", LOG_TO_A_PIPE], stderr=writing)  # noqa: S603
    os.close(writing)
    assert process.wait(20) == 0
    os.close(reading)


def test_what_was_logged_last_is_out_when_the_process_ends() -> None:
    code = 'import logging; from shared.telemetry.logs import configure_logs as c; c("info")\n'
    code += 'logging.getLogger("x").info("end")'
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=20, check=True)  # noqa: S603
    assert done.stderr.endswith(b"INFO x: end\n")


def test_a_log_file_and_the_one_before_it_are_all_there_is(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "x.log", max_bytes=100)
    for number in range(50):
        log.write(f"line {number:04}")
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["x.log", "x.log.1"]
    assert all(file.stat().st_size <= 100 for file in files)
    kept = (files[1].read_text() + files[0].read_text()).split("\n")
    assert kept[-2] == "line 0049" and len(kept) >= 10


@pytest.mark.parametrize("size", [1, 1000])
def test_a_line_longer_than_the_file_is_written(tmp_path: Path, size: int) -> None:
    log = LogFile(tmp_path / "x.log", max_bytes=100)
    log.write("x" * size)
    log.write("end")
    assert (tmp_path / "x.log").read_text().endswith("end\n")


def test_the_last_words_of_a_process_that_ends_at_once_are_written() -> None:
    """As a rank that lost another ends (`shared.engine.rank_processes.followers:end_process`)."""
    program = (
        "import logging, os; from shared.telemetry.logs import configure_logs;"
        "configure_logs('info'); [logging.info('line %d', n) for n in range(500)];"
        "logging.critical('last words'); logging.shutdown(); os._exit(3)"
    )
    ended = subprocess.run(  # noqa: S603
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 3
    assert ended.stderr.rstrip().endswith("last words")
