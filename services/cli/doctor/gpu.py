"""torch, the driver below it, the GPUs, and what several ranks need. Imports torch only to look."""

import ctypes
import importlib
import importlib.util
from dataclasses import dataclass, replace
from typing import Any

from services.cli.doctor.finding import Finding, fail, ok, warn

LEAST_CAPABILITY = (8, 0)
"""of a GPU that the kernels are made for"""
GIB = 2**30
OTHER_BUILD = "`make install TORCH_INDEX=<url>` takes another build of torch"


@dataclass(frozen=True)
class Gpu:
    name: str
    capability: tuple[int, int]
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class GpuFacts:
    """What torch and the driver say."""

    torch: str = ""
    """version; empty: not installed"""
    import_error: str = ""
    built_for: tuple[int, int] | None = None
    """CUDA version of torch; None: a build for CPUs"""
    driver: tuple[int, int] | None = None
    """newest CUDA version that the driver runs; None: there is no driver"""
    gpus: tuple[Gpu, ...] = ()
    gpu_error: str = ""
    """why one of them could not even be asked"""
    has_nccl: bool = False
    has_triton: bool = False
    launch_error: str = ""
    """why no kernel could be compiled and run on the first GPU"""


def gather_gpu(*, wanted: bool) -> GpuFacts:
    """`wanted`: whether workers shall use GPUs; without that nothing is asked of them."""
    driver = _driver()
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError as error:
        missing = "" if error.name == "torch" else str(error)
        return GpuFacts(import_error=missing, driver=driver)
    except (ImportError, OSError) as error:  # one of its libraries is missing or broken
        return GpuFacts(import_error=str(error), driver=driver)
    built_for = _version(torch.version.cuda or "")
    facts = GpuFacts(torch.__version__, "", built_for, driver)
    if not wanted or built_for is None or not torch.cuda.is_available():
        return facts
    try:
        gpus = gpus_of(torch)
    except RuntimeError as fault:  # no memory is left for a context, or it is broken
        return replace(facts, gpu_error=" ".join(str(fault).split())[:200])
    has_nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    has_triton = importlib.util.find_spec("triton") is not None
    unusable = launch_error(torch, "cuda:0") if has_triton else ""
    return replace(
        facts, gpus=gpus, has_nccl=has_nccl, has_triton=has_triton, launch_error=unusable
    )


def judge_gpu(
    facts: GpuFacts, *, wanted: bool, present: bool, first: int, tp: int
) -> list[Finding]:
    """`present`: whether the machine has an NVIDIA device. `first`: the number of the one that is
    asked for."""
    found = [_judge_torch(facts, wanted=wanted)]
    if not wanted:
        return [*found, _judge_unused(facts, present=present)]
    found.append(_judge_driver(facts))
    if not facts.gpus:
        return found
    found += [_judge_one(number, gpu) for number, gpu in enumerate(facts.gpus)]
    return [*found, *_judge_ranks(facts, first, tp), _judge_kernel(facts)]


def _judge_torch(facts: GpuFacts, *, wanted: bool) -> Finding:
    if facts.built_for is not None:
        return ok("torch", f"{facts.torch}, a build for CUDA {_dotted(facts.built_for)}")
    if facts.torch:
        seen = f"{facts.torch}, a build for CPUs"
        return (
            fail("torch", f"{seen}, cannot use a GPU", OTHER_BUILD) if wanted else ok("torch", seen)
        )
    if facts.import_error:
        return fail("torch", f"cannot be imported: {facts.import_error}", "`make install` again")
    return warn("torch", "not installed: no worker can run here", "`make install` in a checkout")


def _judge_unused(facts: GpuFacts, *, present: bool) -> Finding:
    """Where workers compute on the CPU."""
    if not present:
        return ok("GPU", "none here: workers compute on the CPU")
    if facts.torch and facts.built_for is None:
        return warn("GPU", "there is one, and torch is a build for CPUs", OTHER_BUILD)
    return ok("GPU", "not used")


def _judge_driver(facts: GpuFacts) -> Finding:
    if facts.driver is None:
        return fail(
            "GPU",
            "no NVIDIA driver can be loaded (libcuda.so.1)",
            "install the driver, or give the container its GPU (docker: --gpus all); without a "
            "GPU, --device cpu",
        )
    seen = f"the driver runs up to CUDA {_dotted(facts.driver)}"
    if facts.built_for is not None and facts.driver[0] < facts.built_for[0]:
        seen += f", torch is built for {_dotted(facts.built_for)}"
        return fail("driver", seen, f"install a newer driver, or {OTHER_BUILD}")
    if facts.gpu_error:
        cure = "`nvidia-smi` shows its processes and errors; free it, or name another by --device"
        return fail("GPU", f"cannot be used: {facts.gpu_error}", cure)
    if not facts.gpus:
        return fail(
            "GPU",
            f"{seen}, and torch sees no GPU",
            "see that CUDA_VISIBLE_DEVICES names one and /dev/nvidia* is in the container; "
            "without a GPU, --device cpu",
        )
    return ok("driver", seen)


def _judge_one(number: int, gpu: Gpu) -> Finding:
    check = f"cuda:{number}"
    capability, least = _dotted(gpu.capability), _dotted(LEAST_CAPABILITY)
    seen = (
        f"{gpu.name}, compute capability {capability}, {gpu.free_bytes / GIB:.1f} of "
        f"{gpu.total_bytes / GIB:.1f} GiB free"
    )
    if gpu.capability < LEAST_CAPABILITY:
        return fail(check, f"{seen}; kernels need {least}", "an A100, L4 or newer GPU")
    return ok(check, seen)


def _judge_ranks(facts: GpuFacts, first: int, tp: int) -> list[Finding]:
    num_gpus = len(facts.gpus)
    if num_gpus < first + tp:
        seen = f"cuda:{first + tp - 1} is asked for, torch sees {num_gpus} GPUs"
        return [fail("--device", seen, "a lower number in --device, or a smaller --tp")]
    if tp == 1:
        return []
    if not facts.has_nccl:
        return [fail("NCCL", "this torch has none, and --tp needs it", OTHER_BUILD)]
    return [ok("NCCL", f"there, for {tp} ranks")]


def _judge_kernel(facts: GpuFacts) -> Finding:
    if not facts.has_triton:
        cure = f"install the one that this torch was made for: {OTHER_BUILD}"
        return fail("kernel", "Triton is not installed, and a GPU needs it", cure)
    if facts.launch_error:
        cure = "see the C compiler and the kernel cache below; TRITON_CACHE_DIR names another one"
        return fail("kernel", f"none can be compiled and run: {facts.launch_error}", cure)
    return ok("kernel", "one was compiled, loaded and run")


def gpus_of(torch: Any) -> tuple[Gpu, ...]:
    """RuntimeError where one cannot even be asked."""
    return tuple(_gpu(torch, number) for number in range(torch.cuda.device_count()))


def _gpu(torch: Any, number: int) -> Gpu:
    free, total = torch.cuda.mem_get_info(number)
    name, capability = torch.cuda.get_device_name(number), torch.cuda.get_device_capability(number)
    return Gpu(name, capability, total, free)


def launch_error(torch: Any, device: str) -> str:
    """Runs one of the kernels and looks at what it computed; empty when that is right."""
    try:
        rms_norm = importlib.import_module("kernels.elementwise.rms_norm").rms_norm
        row = torch.full((1, 64), 2.0, device=device)
        normed = torch.empty_like(row)
        rms_norm(row, torch.ones(64, device=device), 1e-6, normed)
        right = bool(torch.allclose(normed, torch.ones_like(normed), atol=1e-3))
    except Exception as error:  # noqa: BLE001 whatever the compiler, the driver or the cache raise
        return " ".join(str(error).split())[:200] or type(error).__name__
    return "" if right else "it computes something else"


def _driver() -> tuple[int, int] | None:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    number = ctypes.c_int(0)
    if cuda.cuDriverGetVersion(ctypes.byref(number)) != 0:
        return None
    return number.value // 1000, number.value % 1000 // 10


def _version(text: str) -> tuple[int, int] | None:
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def _dotted(numbers: tuple[int, int] | None) -> str:
    return ".".join(map(str, numbers or ()))
