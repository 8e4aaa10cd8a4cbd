"""A batch on real workers: the cell it starts for itself, and one whose gateway answers already."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.e2e.cluster import BATON, running

NUM_LINES = 24


def write_input(folder: Path) -> Path:
    """Chats and completions, and one that the gateway refuses."""
    lines: list[dict[str, Any]] = []
    for at in range(NUM_LINES):
        sampling = {"model": "demo", "temperature": 0, "max_tokens": 3 + at}
        chat = {"messages": [{"role": "user", "content": f"What is {at} + 38?"}], **sampling}
        text = {"prompt": f"Once upon a time {at}", **sampling}
        url, body = ("/v1/completions", text) if at % 2 else ("/v1/chat/completions", chat)
        body["max_tokens"] = -1 if at == 7 else body["max_tokens"]
        lines.append({"custom_id": str(at), "method": "POST", "url": url, "body": body})
    path = folder / "in.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def batch(folder: Path, source: Path, *flags: str) -> dict[str, Any]:
    """The response of each line."""
    target = folder / "out.jsonl"
    command = [*BATON, "batch", "run", str(source), str(target), *flags]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
    done = subprocess.run(  # noqa: S603
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{NUM_LINES}/{NUM_LINES} lines answered, 1 of them with an error" in done.stderr
    lines = [json.loads(line) for line in target.read_text(encoding="utf-8").splitlines()]
    assert sorted(line["custom_id"] for line in lines) == sorted(map(str, range(NUM_LINES)))
    target.unlink()
    return {line["custom_id"]: line["response"] for line in lines}


def texts(responses: dict[str, Any]) -> dict[str, Any]:
    """What was answered, without what differs from one run to the next."""
    return {
        at: [response["status_code"], response["body"].get("choices")]
        for at, response in responses.items()
    }


def test_a_cell_for_the_duration_answers_as_one_that_runs(tmp_path: Path) -> None:
    source = write_input(tmp_path)
    own = batch(tmp_path, source, "--model", "demo")
    assert own["7"]["status_code"] == 400
    assert own["0"]["body"]["choices"][0]["finish_reason"]
    with running(tmp_path, "--threads", "1") as cluster:
        there = batch(tmp_path, source, "--url", cluster.url)
    assert texts(own) == texts(there)
