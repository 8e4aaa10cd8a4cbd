"""`baton doctor` on a machine with planted faults, and on one without: real folders, compilers,
limits and ports."""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from services.cli.__main__ import main
from services.cli.cluster.run_file import RunRecord
from services.cli.doctor import machine
from services.cli.doctor.finding import Finding
from services.cli.doctor.folders import check_transfer_folder
from services.cli.doctor.gpu import Gpu, GpuFacts, launch_error
from services.cli.doctor.kernel_cache import gather_kernel_cache, judge_kernel_cache
from services.cli.doctor.model import check_model
from services.cli.doctor.model_size import Memory
from services.cli.doctor.ports import check_ports
from shared.demo_model import checkpoint as demo
from tests.rules.blocked_imports import FORBIDDEN
from tests.support.settings import settings_with
from tests.support.unshared import unshared

GIB = 2**30
PLENTY = Memory(64 * GIB, 64 * GIB, on_gpu=False)


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `baton up` elsewhere on the machine is not seen."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def faults(findings: list[Finding]) -> dict[str, str]:
    return {each.check: str(each) for each in findings if each.level != "ok"}


def test_a_healthy_machine_gets_neither_warn_nor_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    found = tmp_path / "found.jsonl"
    flags = ["--device", "cpu", "--port", str(free_port()), "--json", str(found)]
    assert main(["doctor", *flags]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 60
    assert re.search(r"all \d+ checks are ok\n$", shown)
    lines = [json.loads(line) for line in found.read_text().splitlines()]
    assert {line["level"] for line in lines} == {"ok"}
    assert {line["section"] for line in lines} == {"this machine", "model demo"}
    assert {"torch", "packages", "memory", "tokenizer", "port"} <= {line["check"] for line in lines}


def looked_at(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, dict[str, str]]]:
    """Exit code, and the findings by check."""
    code = main(["doctor", "--device=cpu", "--json=-", *flags])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return code, {line["check"]: line for line in lines}


def test_a_worker_is_looked_at_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its flags are those of `baton serve`; neither a gateway's port nor a cell is its concern."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = listener.getsockname()[1]
        monkeypatch.setenv("BATON_REDIS", f"redis://127.0.0.1:{taken}")
        monkeypatch.setenv("BATON_PORT", str(taken))
        own = [f"--worker-port={free_port()}", "--worker-id=w"]
        code, found = looked_at(["--worker=decode", *own], capsys)
        assert (code, {line["level"] for line in found.values()}) == (0, {"ok"})
        assert {"worker port", "memory"} <= found.keys()
        assert not {"port", "transfer port", "tokenizer", "registry", "Redis"} & found.keys()
        code, found = looked_at(["--worker=decode", *own, f"--transfer-port={taken}"], capsys)
        assert (code, found["transfer port"]["level"]) == (1, "FAIL")
    assert main(["doctor", "--worker=prefill", "--url=http://127.0.0.1:1"]) == 2
    assert main(["doctor", "--worker=prefill", "--wait-s=1"]) == 2
    assert main(["doctor", "--wait-s=1"]) == 2


@pytest.mark.parametrize("worker", ["", "decode"])
def test_of_a_gpu_that_computes_its_memory_counts(
    monkeypatch: pytest.MonkeyPatch, worker: str
) -> None:
    """The second of two, which the device names."""
    gpus = (Gpu("a", (9, 0), 80 * GIB, 79 * GIB), Gpu("b", (9, 0), 40 * GIB, 30 * GIB))
    facts = GpuFacts("2.13.0", "", (12, 8), (12, 9), gpus, has_nccl=True, has_triton=True)
    monkeypatch.setattr(machine, "gather_gpu", lambda wanted: facts if wanted else GpuFacts())
    report = machine.check_machine(settings_with(device="cuda:1"), [], worker)
    assert report.device_type == "cuda"
    assert report.memory == Memory(40 * GIB, 30 * GIB, on_gpu=True)
    assert machine.check_machine(settings_with(device="cuda:2"), [], worker).memory is None


@pytest.mark.needs_mounts
def test_one_machine_with_many_faults_has_each_named_with_its_cure(tmp_path: Path) -> None:
    """All of them real: a noexec mount, no compiler, few open files, a folder that others may
    write to, a port in use, a model that is nowhere, no GPU."""
    cache, shared_folder, tools = (tmp_path / name for name in ("cache", "shared", "tools"))
    for folder in (cache, shared_folder, tools):
        folder.mkdir()
    shared_folder.chmod(0o777)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        port, kv_port = (each.getsockname()[1] for each in (listener, other))
        command = [f"PATH={tools}", f"TRITON_CACHE_DIR={cache}", f"BATON_TRANSFER_PORT={kv_port}"]
        command += [sys.executable, "-m", "services.cli", "doctor", "--device=cuda", "--json=-"]
        command += [f"--port={port}", "--model=/nowhere", f"--transfer-dir={shared_folder}"]
        script = f"ulimit -n 200; exec env {shlex.join(command)}"
        done = in_noexec_mount(cache, script)
    assert done.returncode == 1, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    cures = {line["check"]: line["cure"] for line in lines if line["level"] == "FAIL"}
    wanted = {
        "kernel cache": "mount it exec",
        "C compiler": "apt-get install gcc",
        "open files": "LimitNOFILE",
        "transfer folder": f"chmod 700 {shared_folder}",
        "port": "another --port, or 0",
        "transfer port": "another --transfer-port",
        "model": "name a checkpoint's directory",
        "GPU": "--device cpu",
        "torch": "TORCH_INDEX",
    }
    assert cures.keys() - {"torch", "GPU"} == wanted.keys() - {"torch", "GPU"}
    assert [check for check, cure in cures.items() if wanted[check] not in cure] == []


def in_noexec_mount(folder: Path, script: str) -> "subprocess.CompletedProcess[str]":
    """A shell in a mount namespace of its own, where nothing in the folder can be executed."""
    mount = shlex.join(["mount", "-t", "tmpfs", "-o", "noexec,size=1m", "none", str(folder)])
    return subprocess.run(  # noqa: S603
        unshared("mount", ["bash", "-c", f"{mount} && {script}"]),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def judged_cache(folder: Path, compiler: Path | str) -> dict[str, str]:
    environ = {"TRITON_CACHE_DIR": str(folder), "CC": str(compiler)}
    return faults(judge_kernel_cache(gather_kernel_cache(environ)))


def script_at(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.needs_compiler
def test_a_kernel_cache_that_takes_kernels_is_left_as_it_was(tmp_path: Path) -> None:
    environ = {"TRITON_CACHE_DIR": str(tmp_path / "new"), "PATH": os.environ["PATH"]}
    assert not faults(judge_kernel_cache(gather_kernel_cache(environ)))
    assert list((tmp_path / "new").iterdir()) == []


def test_a_kernel_cache_nobody_can_write_to(tmp_path: Path) -> None:
    """/proc takes no folder, not even from root."""
    assert "TRITON_CACHE_DIR" in judged_cache(Path("/proc/cache"), "gcc")["kernel cache"]


def test_a_compiler_without_headers_and_a_library_that_does_not_load(tmp_path: Path) -> None:
    failing = script_at(tmp_path / "failing", "echo 'Python.h: No such file' >&2; exit 1")
    found = judged_cache(tmp_path / "cache", failing)
    assert list(found) == ["C compiler"]
    assert "python3-dev" in found["C compiler"]
    assert "Python.h" in found["C compiler"]
    junk = script_at(tmp_path / "junk", 'for last; do :; done; echo nonsense > "$last"')
    assert list(judged_cache(tmp_path / "cache", junk)) == ["kernel cache"]


def test_a_transfer_folder_is_judged_and_not_made(tmp_path: Path) -> None:
    assert check_transfer_folder(str(tmp_path / "absent"), "auto").level == "ok"
    assert not (tmp_path / "absent").exists()
    assert check_transfer_folder(str(tmp_path / "absent"), "tcp").level == "ok"
    (tmp_path / "file").touch()
    assert check_transfer_folder(str(tmp_path / "file" / "kv"), "auto").level == "FAIL"


def test_the_kernel_that_is_tried_computes_what_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Triton's interpreter, and once with one that writes nothing."""
    assert launch_error(torch, "cpu") == ""
    monkeypatch.setattr("kernels.elementwise.rms_norm.rms_norm", lambda *_: None)
    monkeypatch.setattr(torch, "empty_like", torch.zeros_like)
    assert launch_error(torch, "cpu") == "it computes something else"
    assert "other device" in launch_error(torch, "other device")


@pytest.mark.parametrize(
    ("blocked", "warned"),
    [
        (("torch", "triton", "numpy", "safetensors"), {"torch"}),
        ((*FORBIDDEN, "httptools", "uvloop"), {"Redis"}),
    ],
)
def test_where_only_one_roles_packages_can_be_imported_it_says_so(
    blocked: tuple[str, ...], warned: set[str], tmp_path: Path
) -> None:
    """A gateway's machine, and one that has the engine alone."""
    program = (
        f"from tests.rules.blocked_imports import block; block({blocked!r})\n"
        "import sys; from services.cli.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    flags = ["doctor", "--port=0", "--device=cpu", "--json=-", f"--redis=unix://{tmp_path}/none"]
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", program, *flags], capture_output=True, text=True, check=False
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    faults = {line["check"]: line for line in lines if line["level"] != "ok"}
    assert done.stderr == ""
    assert "not installed" in "".join(faults[check]["seen"] for check in warned)
    assert {line["section"] for line in lines} == {"this machine", "model demo", "cell of --redis"}
    assert "model" not in faults


def config_of(family: str, **fields: object) -> dict[str, object]:
    text = (Path(demo.__path__[0]) / "config.json").read_text()
    return {**json.loads(text), "architectures": [family], **fields}


def model_folder(path: Path, config: dict[str, object]) -> Path:
    """The demo model's files under another config."""
    path.mkdir()
    for file in Path(demo.__path__[0]).iterdir():
        if file.is_file() and file.name != "config.json":
            (path / file.name).symlink_to(file)
    (path / "config.json").write_text(json.dumps(config))
    return path


def model_faults(path: Path, memory: Memory | None = PLENTY, **settings: object) -> dict[str, str]:
    return faults(check_model(settings_with(model=str(path), **settings), "cpu", memory))


def test_a_model_of_a_family_that_is_not_served(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m", config_of("MixtralForCausalLM"))
    found = model_faults(folder)
    assert list(found) == ["model"]
    assert "MixtralForCausalLM is not supported" in found["model"]
    assert "README" in found["model"]


def test_a_model_that_is_too_large_for_the_machine(tmp_path: Path) -> None:
    """By its config, and by the free memory of this very machine."""
    vast = config_of("LlamaForCausalLM", hidden_size=10**6, intermediate_size=10**7, head_dim=32)
    folder = model_folder(tmp_path / "m", vast)
    found = model_faults(folder)
    assert list(found) == ["memory"]
    assert found["memory"].startswith("FAIL")
    assert "a smaller model" in found["memory"]
    on_gpu = Memory(80 * GIB, 80 * GIB, on_gpu=True)
    assert "more GPUs (--tp)" in model_faults(folder, on_gpu)["memory"]


def test_memory_for_one_worker_and_not_for_those_of_up_is_refused_as_up_does() -> None:
    settings = settings_with(kv_memory_mib=1024)
    memory = Memory(4 * GIB, GIB + 200 * 2**20, on_gpu=False)
    assert "memory" not in faults(check_model(settings, "cpu", memory))
    found = faults(check_model(settings, "cpu", replace(memory, tps=(1, 1))))
    assert found["memory"].startswith("FAIL")
    assert "2 workers take 2.0 GiB" in found["memory"]
    assert "--topology agg" in found["memory"]


def test_a_model_without_weights_text_or_template(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m", config_of("LlamaForCausalLM"))
    (folder / "tokenizer_config.json").unlink()
    assert list(model_faults(folder)) == ["tokenizer"]
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").write_text("{")
    assert "hf download" in model_faults(folder)["tokenizer"]
    (folder / "model.safetensors").unlink()
    assert "model.safetensors: missing" in model_faults(folder)["model"]


def test_a_hub_id_whose_weights_are_not_here_is_judged_by_its_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without network, from a cache that has the text files alone."""
    from huggingface_hub import constants  # noqa: PLC0415 slow to import

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--owner--name"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    (repository / "snapshots").mkdir()
    snapshot = model_folder(repository / "snapshots" / ("0" * 40), config_of("LlamaForCausalLM"))
    (snapshot / "model.safetensors").unlink()
    found = check_model(settings_with(model="owner/name"), "cpu", PLENTY)
    assert not faults(found)
    assert "fetched when a process first starts" in found[0].seen


def test_a_port_of_a_cell_that_runs_here_is_no_fault() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        settings = settings_with(port=port)
        record = RunRecord(port, f"http://127.0.0.1:{port}", os.getpid(), 0)
        assert not faults(check_ports(settings.network, settings.worker, [record]))
        assert list(faults(check_ports(settings.network, settings.worker, []))) == ["port"]


def test_a_hub_id_that_no_cache_and_no_network_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants  # noqa: PLC0415 slow to import

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    found = faults(check_model(settings_with(model="nobody/nothing"), "cpu", PLENTY))
    assert list(found) == ["model"]
    assert "hf download nobody/nothing" in found["model"]
