"""Where lines go, and what is remembered of a process that failed."""

import io
import os
from pathlib import Path

import pytest

from services.cli.cluster.output import Output, ProcessLines


def test_lines_go_behind_the_name_of_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output()
    lines = ProcessLines("decode-0", output)
    lines.feed(b"one\ntw")
    lines.feed(b"o\nbaton: error: no model\nbaton: error: second\n\xff\n")
    output.flush()
    assert capsys.readouterr().err == "decode-0 | one\ndecode-0 | two\ndecode-0 | \ufffd\n"
    assert lines.first_error == "no model"


def test_endless_line_is_cut() -> None:
    lines = ProcessLines("x", Output(quiet=True))
    lines.feed(b"a" * 100_000)
    assert [len(line) for line in lines.last] == [100_000]


def test_unfinished_last_line_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output()
    lines = ProcessLines("x", output)
    lines.feed(b"one\ntwo")
    lines.close()
    lines.close()
    output.flush()
    assert capsys.readouterr().err == "x | one\nx | two\n"


def test_log_folder_gets_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(log_folder=tmp_path / "logs")
    output.process_line("gateway", "hello")
    output.flush()
    assert (tmp_path / "logs" / "gateway.log").read_text() == "hello\n"
    assert capsys.readouterr().err == ""


def test_waiting_process_is_told_until_ready() -> None:
    reading, writing = os.pipe()
    output = Output(notify_fd=writing, stream=io.StringIO())
    output.say("loading")
    output.ready("http://x:81")
    output.say("later")
    with os.fdopen(reading) as file:
        assert file.read() == "say loading\nsay ready http://x:81\nready 81\n"


def test_waiting_process_that_went_away_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    Output(notify_fd=writing, stream=io.StringIO()).ready("http://x")
