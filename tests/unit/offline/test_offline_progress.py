"""The progress line: prompts done and tokens a second, and nothing where nobody looks."""

import pytest

from services.offline.progress import Progress


def test_the_last_line_counts_what_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(4, wanted=True)
    progress.show(1, 10)
    progress.end(4, 40)
    lines = capsys.readouterr().err.split("\r\x1b[K")
    assert "1/4 prompts" in lines[1]
    assert lines[1].startswith("[#####---")
    assert "4/4 prompts" in lines[2]
    assert lines[2].endswith(" tokens/s\n")


def test_nothing_is_written_where_the_error_output_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress = Progress(4, wanted=None)
    assert not progress.due
    progress.end(4, 40)
    assert capsys.readouterr().err == ""
