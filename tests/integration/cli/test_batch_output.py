"""The output of a batch: what an earlier run left there is kept, cut or refused."""

import json
from pathlib import Path

import pytest

from services.cli.batch.output_file import OutputFile
from shared.errors import SettingsError

ANSWERED = {"response": {"status_code": 200}}


def test_a_torn_line_is_cut_and_other_answers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    first, second = ({"id": f"of-{id}", "custom_id": id, **ANSWERED} for id in "ab")
    whole = json.dumps(first) + "\n"
    path.write_text(f'{whole}{{"id":"of-b","custom', encoding="utf-8")
    with OutputFile(path, ("a", "b"), "of-{}".format) as target:
        assert target.answered == {"a"}
        target.append(second)
        with pytest.raises(SettingsError, match="another run"):
            OutputFile(path, ("a", "b"), "of-{}".format)
    assert [json.loads(each) for each in path.read_text("utf-8").splitlines()] == [first, second]
    for ids in (("a",), ("b", "c")):
        with pytest.raises(SettingsError, match="line"):
            OutputFile(path, ids, "of-{}".format)
    path.write_text(whole * 2, encoding="utf-8")
    with pytest.raises(SettingsError, match="line 2"):
        OutputFile(path, ("a",), "of-{}".format)


@pytest.mark.parametrize(
    ("torn", "kept"),
    [
        ('{"id":"of-b","custom_id":"b","resp', False),
        ('{"id":"of-', False),
        ("{", False),
        ('{"id":"of-c","custom_id":"c","resp', True),
        ('{"id": "of-b"', True),
        ('{"custom_id":"b"', True),
        ("a report", True),
    ],
)
def test_a_last_line_is_cut_only_if_it_begins_an_answer(
    tmp_path: Path, torn: str, kept: bool
) -> None:
    path = tmp_path / "out.jsonl"
    whole = json.dumps({"id": "of-a", "custom_id": "a", **ANSWERED}) + "\n"
    for before in ("", whole):
        path.write_text(before + torn, encoding="utf-8")
        if kept:
            with pytest.raises(SettingsError, match=f"line {1 + bool(before)} .*another file"):
                OutputFile(path, ("a", "b"), "of-{}".format)
        else:
            OutputFile(path, ("a", "b"), "of-{}".format).close()
        assert path.read_text(encoding="utf-8") == before + torn * kept
