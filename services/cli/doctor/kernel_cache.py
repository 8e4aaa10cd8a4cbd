"""Whether Triton can compile a kernel's launcher and load it: compiler, headers, cache folder.

Does by itself what Triton does at the first launch of a kernel: compiles C, puts the library into
the cache folder and loads it from there.
"""

import ctypes
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from services.cli.doctor.finding import Finding, fail, ok

SOURCE = "#include <Python.h>\nint baton_doctor(void) { return 42; }\n"
COMPILE_LIMIT_S = 30.0
CHECK = "kernel cache"


@dataclass(frozen=True)
class KernelCacheFacts:
    """The first step that failed has an error, in the order of the fields."""

    folder: Path
    write_error: str = ""
    noexec: bool = False
    """nothing in the folder can be executed"""
    compiler: str = ""
    """empty: none is on PATH"""
    compile_error: str = ""
    load_error: str = ""


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Where Triton keeps compiled kernels."""
    home = Path(environ.get("TRITON_HOME") or Path.home())
    return Path(environ.get("TRITON_CACHE_DIR") or home / ".triton" / "cache")


def gather_kernel_cache(environ: Mapping[str, str]) -> KernelCacheFacts:
    """Leaves nothing behind in the folder, which it makes as Triton does."""
    folder = cache_folder(environ)
    compiler = environ.get("CC") or _found("gcc", environ) or _found("clang", environ) or ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix="baton-doctor-") as inside:
            noexec = bool(os.statvfs(inside).f_flag & os.ST_NOEXEC)
            compile_error, load_error = _compile_and_load(compiler, Path(inside))
    except OSError as error:
        return KernelCacheFacts(folder, error.strerror or str(error), compiler=compiler)
    return KernelCacheFacts(folder, "", noexec, compiler, compile_error, load_error)


def judge_kernel_cache(facts: KernelCacheFacts) -> list[Finding]:
    """One for the compiler, one for the folder."""
    return [_judge_compiler(facts), _judge_folder(facts)]


def _judge_compiler(facts: KernelCacheFacts) -> Finding:
    if not facts.compiler:
        return fail(
            "C compiler",
            "neither gcc nor clang is on PATH, and Triton compiles with one",
            "sudo apt-get install gcc libc6-dev, or name one with the variable CC",
        )
    if facts.compile_error:
        return fail(
            "C compiler",
            f"{facts.compiler} cannot compile an extension of Python: {facts.compile_error}",
            "sudo apt-get install gcc libc6-dev python3-dev",
        )
    return ok("C compiler", facts.compiler)


def _judge_folder(facts: KernelCacheFacts) -> Finding:
    elsewhere = "name a folder that can, with the variable TRITON_CACHE_DIR"
    if facts.write_error:
        seen = f"{facts.folder} cannot be written: {facts.write_error}"
        return fail(CHECK, seen, elsewhere)
    if facts.noexec:
        return fail(
            CHECK,
            f"{facts.folder} is mounted noexec, so no compiled kernel can be loaded from it",
            "mount it exec (docker: --tmpfs FOLDER:exec), or name another folder with the "
            "variable TRITON_CACHE_DIR",
        )
    if facts.load_error:
        seen = f"a library in {facts.folder} cannot be loaded: {facts.load_error}"
        return fail(CHECK, seen, elsewhere)
    return ok(CHECK, f"{facts.folder} takes kernels and they load")


def _compile_and_load(compiler: str, folder: Path) -> tuple[str, str]:
    """What either step says if it fails."""
    if not compiler:
        return "", ""
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")
    include = sysconfig.get_paths(scheme=scheme)["include"]
    with tempfile.TemporaryDirectory(prefix="baton-doctor-") as aside:
        source, library = Path(aside) / "probe.c", Path(aside) / "probe.so"
        source.write_text(SOURCE, encoding="ascii")
        command = [compiler, str(source), "-shared", "-fPIC", f"-I{include}", "-o", str(library)]
        try:
            subprocess.run(  # noqa: S603 the compiler that Triton would run
                command, check=True, capture_output=True, text=True, timeout=COMPILE_LIMIT_S
            )
        except subprocess.CalledProcessError as error:
            said = (error.stderr or "").strip().splitlines() or [f"status {error.returncode}"]
            return said[0], ""
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error), ""
        return "", _load_error(Path(shutil.copy(library, folder)))


def _load_error(library: Path) -> str:
    try:
        answer = ctypes.CDLL(str(library)).baton_doctor()
    except OSError as error:
        return str(error)
    return "" if answer == 42 else f"it answers {answer}"


def _found(name: str, environ: Mapping[str, str]) -> str | None:
    return shutil.which(name, path=environ.get("PATH"))
