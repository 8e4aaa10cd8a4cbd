"""A batch's lines: which are requests, what becomes of an answer, what is told on the way."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.cli.__main__ import main
from services.cli.batch.batch import Batch, answer_line
from services.cli.batch.input_file import InputFile, checked
from services.cli.batch.progress import BatchProgress
from services.cli.gateway_client import Reply

LINE = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"custom_id": ""}, "custom_id"),
        ({"custom_id": 5}, "custom_id"),
        ({"custom_id": "x" * 513}, "custom_id"),
        ({"custom_id": "a\ud800"}, "custom_id has half of a surrogate pair"),
        ({"method": "GET"}, "method"),
        ({"url": "/v1/embeddings"}, "url must be /v1/chat/completions or /v1/completions"),
        ({"url": ["/v1/completions"]}, "url"),
        ({"body": "text"}, "body"),
        ({"body": {"stream": True}}, "stream"),
        ({"extra": 1}, "'extra' is no field"),
    ],
)
def test_what_is_no_request_is_told_why(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        checked(json.dumps({**LINE, **change}).encode())


@pytest.mark.parametrize("content", [b"{", b"[]", b"null", b"\xff", b"[" * 100_000])
def test_what_is_no_object_is_told_too(content: bytes) -> None:
    with pytest.raises(ValueError, match="JSON"):
        checked(content)


def test_a_request_has_its_id_and_a_digest_of_what_it_asks() -> None:
    custom_id, digest = checked(json.dumps(LINE).encode())
    assert custom_id == "a"
    swapped = dict(reversed(LINE.items()))
    assert checked(json.dumps({**swapped, "custom_id": "b"}).encode()) == ("b", digest)
    for change in ({"body": {"prompt": "y"}}, {"url": "/v1/chat/completions"}):
        assert checked(json.dumps({**LINE, **change}).encode())[1] != digest


def test_an_answer_is_a_line_whatever_its_status() -> None:
    line = answer_line("batch_req_5", "a", Reply(400, b'{"error": {"message": "no"}}', "r-1", None))
    response = {"status_code": 400, "request_id": "r-1", "body": {"error": {"message": "no"}}}
    assert line == {"id": "batch_req_5", "custom_id": "a", "response": response, "error": None}
    odd = answer_line("batch_req_5", "a", Reply(200, b"<html>", "", None))
    assert (odd["response"]["body"], odd["error"]["code"]) == (None, "not_json")


def test_progress_says_how_long_it_will_take() -> None:
    batch = cast(Batch, SimpleNamespace(num_answered=20, num_waiting=120, num_failed=2))
    text = BatchProgress(batch, num_before=30).text(10.0)
    assert text == "50/150 lines answered, 2 of them with an error, 2.0 a second, about 50 s left"
    idle = cast(Batch, SimpleNamespace(num_answered=0, num_waiting=0, num_failed=0))
    assert BatchProgress(idle, num_before=30).text(0.0) == "30/30 lines answered"


def test_the_input_may_be_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "in"
    os.mkfifo(pipe)
    lines = [{**LINE, "custom_id": f"c{number}"} for number in range(3000)]  # more than it holds
    text = "".join(json.dumps(line) + "\n" for line in lines)
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(pipe.write_text, text)
        with InputFile(pipe) as source:
            assert source.custom_ids == [f"c{number}" for number in range(3000)]
            assert source.read("c1234").path == "/v1/completions"
            assert json.loads(source.read("c2999").body) == LINE["body"]
        written.result()


def test_the_output_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "in"
    path.write_text(json.dumps(LINE) + "\n")
    assert main(["batch", "run", str(path), "-"]) == 2
    assert "OUT: a batch goes on from its output; name a file" in capsys.readouterr().err
