"""The kernels of a GPU worker's start, compiled by processes that need no GPU."""

import functools
import hashlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import triton

from shared.engine.layers.device_traits import DeviceTraits
from shared.engine.loading import kernel_compilation, kernel_compiler
from shared.engine.loading.device_form import FORMS, DeviceForm
from shared.engine.loading.kernel_compilation import KernelCompilation, stamp_of
from shared.engine.loading.kernel_compiler import do_all
from shared.kv.share import KVShare
from shared.model.checkpoint import kv_layout, random_checkpoint
from tests.rules.sources import ROOT
from tests.support.models.tiny_model import TINY

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # pytest has threads
TIMEOUT_S = 60.0
LOGGER = kernel_compilation.__name__
LIST = """
import sys
from shared.engine.loading.device_form import FORMS
from shared.engine.loading.start_kernels import start_kernels
print(*start_kernels(FORMS.decode(bytes.fromhex(sys.argv[1]))), sep="\\0", end="")
"""
START = """
import sys
from shared.engine.loading.device_form import FORMS
from shared.engine.loading.kernel_compilation import KernelCompilation
with KernelCompilation(FORMS.decode(bytes.fromhex(sys.argv[1]))) as compilation:
    compilation.wait()
"""


def tiny_form(**changes: Any) -> DeviceForm:
    checkpoint = random_checkpoint(Path("tiny"), "tiny", {**TINY, **changes})
    return DeviceForm(
        config=checkpoint.config,
        share=KVShare(kv_layout(checkpoint, "float16", 16)),
        length=16,
        max_tokens=2,
        max_seqs=1,
        traits=DeviceTraits((8, 0), 108),
    )


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Triton's, empty, for this process and its children."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(triton.knobs.cache, "dir", str(folder))
    return folder


def run_here(code: str, form: DeviceForm) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", code, FORMS.encode(form).hex()], cwd=ROOT, stdout=subprocess.PIPE
    )


def kernels_in(cache: Path) -> dict[str, Path]:
    """Compiled ones, by their folder's name."""
    return {path.parent.name: path for path in cache.glob("*/*.cubin")}


def processes_with(cache: Path) -> set[int]:
    """Pids of processes that this cache is in the environment of, but for this one."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        if str(cache).encode() in environment and int(folder.name) != os.getpid():
            found.add(int(folder.name))
    return found


def wait_until(reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.timeout(240)
def test_a_start_fills_the_cache_and_the_next_one_starts_nothing(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By Triton's own rule for where a launch looks. Another start of another model of this form
    finds all of it there."""
    form = tiny_form()
    with caplog.at_level("INFO", LOGGER), KernelCompilation(form) as compilation:
        compilation.wait()
    listed = run_here(LIST, form).communicate(timeout=TIMEOUT_S)[0].split(b"\0")
    triton_names = {triton.runtime.cache._base32(hashlib.sha256(key).hexdigest()) for key in listed}
    assert set(kernels_in(cache)) == triton_names
    summary = caplog.messages[-1]
    assert summary.startswith(f"{len(listed)} kernels compiled in "), caplog.messages
    assert stamp_of(form).read_text().strip() == summary
    times = {path: path.stat().st_mtime_ns for path in kernels_in(cache).values()}

    caplog.clear()
    with caplog.at_level("INFO", LOGGER), KernelCompilation(form) as compilation:
        assert len(processes_with(cache)) == 0
        compilation.wait()
    assert not caplog.messages

    # The stamp alone is lost: everything is read, nothing compiled.
    stamp_of(form).unlink()
    with caplog.at_level("INFO", LOGGER), KernelCompilation(form) as compilation:
        compilation.wait()
    assert caplog.messages[-1].startswith(f"{len(listed)} kernels compiled in ")
    assert times == {path: path.stat().st_mtime_ns for path in kernels_in(cache).values()}


def test_of_two_starts_one_compiles(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The other waits for it."""
    form = tiny_form()
    stamp = stamp_of(form)
    cache.mkdir()
    with stamp.open("a") as file:
        kernel_compiler._lock(file)
        with caplog.at_level("INFO", LOGGER), KernelCompilation(form) as compilation:
            assert compilation._process is not None
            assert compilation._process.stdout is not None
            first = compilation._process.stdout.readline()
            assert first == b"another process compiles the same kernels\n"
            file.write("compiled by the one with the lock")
            file.close()
            compilation.wait()
    assert caplog.messages == ["all kernels were compiled meanwhile"]
    assert not kernels_in(cache)


def test_a_worker_killed_while_it_compiles_leaves_no_process(cache: Path) -> None:
    worker = run_here(START, tiny_form())
    with worker:
        wait_until(lambda: len(processes_with(cache)) >= 3)  # it, the compiler, one that compiles
        worker.kill()
    wait_until(lambda: not processes_with(cache))


def test_a_start_that_fails_ends_the_compiler(cache: Path) -> None:
    form = tiny_form()
    with pytest.raises(ValueError, match="weights"), KernelCompilation(form):
        wait_until(lambda: len(processes_with(cache)) >= 2)
        raise ValueError("weights")
    wait_until(lambda: not processes_with(cache))
    assert not stamp_of(form).read_text()


def test_where_nothing_can_be_compiled_the_start_goes_on(
    cache: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    cache.write_text("not a folder")
    with KernelCompilation(tiny_form()) as compilation:
        compilation.wait()
    (line,) = caplog.messages
    assert line.startswith("kernels could not all be compiled ahead (status 1)")
    assert "FileExistsError" in capfd.readouterr().err


def test_jobs_that_fail_are_told_and_the_others_done(tmp_path: Path) -> None:
    def fail() -> None:
        raise ArithmeticError("no such instruction\nin detail")

    jobs = [functools.partial((tmp_path / str(number)).touch) for number in range(5)]
    assert do_all([*jobs[:2], fail, *jobs[2:]]) == ["ArithmeticError: no such instruction"]
    assert {path.name for path in tmp_path.iterdir()} == set("01234")


def test_a_killed_process_is_told() -> None:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    assert "a compiling process was killed" in do_all([die])


def test_a_long_compilation_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs are as long as it takes until the first line is out."""
    said: list[str] = []
    is_said = multiprocessing.get_context("fork").Event()

    def say(line: str) -> None:
        said.append(line)
        is_said.set()

    def compile_until_said() -> None:
        assert is_said.wait(60)

    monkeypatch.setattr(kernel_compiler, "PROGRESS_S", 0.0)
    monkeypatch.setattr(kernel_compiler, "say", say)
    assert not do_all([compile_until_said] * 3)
    assert said[0] == "kernels: 0 of 3 parts compiled so far"


@pytest.mark.usefixtures("cache")
def test_what_changes_kernels_changes_the_stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another number of layers does: blocks are then further apart. The model's identity does
    not."""
    stamp = stamp_of(tiny_form())
    assert stamp_of(tiny_form()) == stamp
    assert stamp_of(tiny_form(num_hidden_layers=3)) != stamp
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")
    assert stamp_of(tiny_form()) != stamp
