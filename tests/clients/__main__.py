"""Unmodified clients of other projects against `baton up` with the demo model: zero errors.

    python -m tests.clients [--venvs DIR] [--only NAME ...]

Each client is installed into a virtual environment of its own, because their pins contradict each
other; together they take 8.5 GB where pip finds torch with CUDA (guidellm needs it). No part of
`make test`. Ends with 1 if any client saw an error.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shared.model.files import TOKENIZER_CONFIG
from tests.clients.lm_eval_task import CHECKPOINT, CHOICE, LIKELIHOOD, num_wrong, write_tasks
from tests.e2e.cluster import Cluster, running
from tests.support.models.tool_models import HERMES

HERE = Path(__file__).parent
MODEL = "demo"
FLAGS = ("--topology", "pd", "--max-model-len", "1024")
"""so that no answer takes long that a client does not limit"""
LIMIT_S = 600.0
NUM_REQUESTS = 40
OFFLINE = "HF_HUB_OFFLINE"
QUIET = {
    OFFLINE: "1",
    "HF_DATASETS_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OMP_NUM_THREADS": "1",
}
"""what keeps the clients from the network and from all cores"""


@dataclass(frozen=True)
class Client:
    """One client: what to install, how to run it, how many requests it says have failed."""

    package: str
    """what pip installs, one or several"""
    command: Callable[[Path, str, Path], Sequence[str | Path]]
    """(its environment's bin folder, URL of the gateway, folder for results) -> command"""
    num_errors: Callable[[Path], int] = lambda results: 0
    """for clients that end with 0 all the same"""
    calls_tools: bool = False
    """it needs a chat template that mentions tools, which the demo model's own does not"""


def script(name: str) -> Callable[[Path, str, Path], Sequence[str | Path]]:
    """One of the scripts next to this file, in the client's environment."""
    return lambda programs, url, _: [programs / "python", HERE / name, url, MODEL]


def aiperf(programs: Path, url: str, results: Path) -> Sequence[str | Path]:
    """Offline it looks for tokenizers in the cache alone, whatever path it is given."""
    return [
        *("env", "--unset", OFFLINE, programs / "aiperf", "profile"),
        *("-m", MODEL, "--tokenizer", CHECKPOINT),
        *("--endpoint-type", "chat", "--streaming", "--url", url),
        *("--synthetic-input-tokens-mean", "32", "--output-tokens-mean", "8"),
        *("--request-count", str(NUM_REQUESTS), "--concurrency", "4"),
        *("--ui", "none", "--artifact-dir", results),
    ]


def aiperf_errors(results: Path) -> int:
    report = json.loads((results / "profile_export_aiperf.json").read_text())
    return len(report["error_summary"]) + NUM_REQUESTS - int(report["request_count"]["avg"])


def guidellm(programs: Path, url: str, results: Path) -> Sequence[str | Path]:
    return [
        *(programs / "guidellm", "run"),
        *("--backend", f"kind=openai_http,target={url},model={MODEL}"),
        *("--tokenizer", f"kind=hf_auto,model={CHECKPOINT}"),
        *("--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=8"),
        *("--profile", "kind=concurrent,streams=2"),
        *("--constraint", f"kind=max_requests,count={NUM_REQUESTS}"),
        *("--output", f"kind=json,path={results / 'guidellm.json'}"),
    ]


def guidellm_errors(results: Path) -> int:
    report = json.loads((results / "guidellm.json").read_text())
    (benchmark,) = report["benchmarks"]
    return NUM_REQUESTS - int(benchmark["metrics"]["request_totals"]["successful"])


def schemathesis(programs: Path, url: str, results: Path) -> Sequence[str | Path]:
    """What the OpenAPI document allows, and what it does not: no answer but the documented ones,
    and what is not allowed is refused. What is allowed may be refused too: fields depend on each
    other, and no document says how. A watch never ends. A deadline that is over is a 504, no fault
    of the server."""
    config = results / "schemathesis.toml"
    statuses = ["2xx", "3xx", "4xx", "504"]
    config.write_text(f"[checks.not_a_server_error]\nexpected-statuses = {json.dumps(statuses)}\n")
    return [
        *(programs / "schemathesis", "--config-file", config),
        *("run", f"{url}/openapi.json", "--url", url),
        *("--exclude-path", "/v1/baton/watch", "--seed", "1", "--max-examples", "20"),
        *("--exclude-checks", "positive_data_acceptance", "--request-timeout", "60", "--no-color"),
    ]


def lm_eval(programs: Path, url: str, results: Path) -> Sequence[str | Path]:
    """Scores of texts, token ids in, on local data."""
    write_tasks(results)
    model = {
        "model": MODEL,
        "base_url": f"{url}/v1/completions",
        "tokenizer": CHECKPOINT,
        "tokenizer_backend": "huggingface",
        "num_concurrent": 3,
        "max_length": 1024,
    }
    return [
        *(programs / "lm_eval", "--model", "local-completions"),
        *("--model_args", ",".join(f"{name}={value}" for name, value in model.items())),
        *("--include_path", results, "--tasks", f"{LIKELIHOOD},{CHOICE}", "--batch_size", "4"),
        *("--output_path", results, "--log_samples"),
    ]


CLIENTS = {
    "openai": Client("openai", script("openai_client.py")),
    "anthropic": Client("anthropic", script("anthropic_client.py")),
    "litellm": Client("litellm", script("litellm_client.py")),
    "openai-agents": Client("openai-agents", script("agents_client.py"), calls_tools=True),
    "langchain-openai": Client("langchain-openai", script("langchain_client.py")),
    "aiperf": Client("aiperf", aiperf, aiperf_errors),
    "guidellm": Client("guidellm", guidellm, guidellm_errors),
    "lm-eval": Client("lm-eval[api] transformers", lm_eval, num_wrong),
    "schemathesis": Client("schemathesis", schemathesis),
}


def installed(client: Client, environment: Path) -> Path:
    """The bin folder of the client's environment, made and filled when it is missing."""
    stamp = environment / ".installed"
    programs = environment / "bin"
    if not stamp.exists():
        _say(f"installing {client.package} into {environment}")
        _run([sys.executable, "-m", "venv", environment], None)
        _run([programs / "python", "-m", "pip", "install", "-q", *client.package.split()], None)
        stamp.touch()
    return programs


def outcome(name: str, programs: Path, url: str, results: Path) -> str:
    """Run one client; "" if all went well, else what did not."""
    client = CLIENTS[name]
    results.mkdir()
    log = results / "output.log"
    try:
        _run(client.command(programs, url, results), log)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        return f"{error}\n{log.read_text(errors='replace')[-4000:]}"
    num_errors = client.num_errors(results)
    return f"{num_errors} requests failed" if num_errors else ""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.clients", description="run clients against pd")
    parser.add_argument("--venvs", type=Path, default=Path(".venv-clients"))
    parser.add_argument("--only", nargs="*", choices=sorted(CLIENTS), default=list(CLIENTS))
    options = parser.parse_args(arguments)
    venvs: Path = options.venvs.resolve()
    programs = {name: installed(CLIENTS[name], venvs / name) for name in options.only}
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for calls_tools in (False, True):
            chosen = [one for one in options.only if CLIENTS[one].calls_tools == calls_tools]
            if not chosen:
                continue
            with served(folder / f"tools-{calls_tools}", calls_tools=calls_tools) as up:
                for one in chosen:
                    trouble = outcome(one, programs[one], up.url, folder / one)
                    failed += bool(trouble)
                    _say(f"{one}: {trouble or 'no errors'}")
    return 1 if failed else 0


@contextmanager
def served(folder: Path, *, calls_tools: bool) -> Iterator[Cluster]:
    """`baton up` with the demo model; `calls_tools`: its weights with a template for tools."""
    folder.mkdir()
    flags: tuple[str, ...] = FLAGS
    if calls_tools:
        checkpoint = folder / "checkpoint"
        shutil.copytree(CHECKPOINT, checkpoint)
        config = json.loads((checkpoint / TOKENIZER_CONFIG).read_text())
        (checkpoint / TOKENIZER_CONFIG).write_text(json.dumps({**config, "chat_template": HERMES}))
        named = ("--model", str(checkpoint), "--served-model-name", MODEL)
        flags = (*FLAGS, *named, "--reasoning-parser", "none")  # it never learned to think
    with running(folder, *flags) as up:
        yield up


def _run(command: Sequence[str | Path], log: Path | None) -> None:
    if log is None:
        subprocess.run(command, check=True)  # noqa: S603
        return
    with log.open("wb") as sink:
        subprocess.run(  # noqa: S603
            command,
            check=True,
            stdout=sink,
            stderr=sink,
            timeout=LIMIT_S,
            env=os.environ | QUIET,
            cwd=log.parent,
        )


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
