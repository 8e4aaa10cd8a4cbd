"""One kernel to compile ahead of time, without a GPU. Triton must be imported without its
interpreter."""

import os
from collections.abc import Collection, Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

CAPABILITIES = (80, 90, 100)
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
"""of Triton's names"""
HEAD_SIZES = (64, 80, 96, 128, 256)
BLOCK_SIZES = (16, 32, 64, 128)
OVERLAPPING = 90
"""the first generation whose launches may overlap"""
EVERY = bool(os.environ.get("COMPILE_EVERY"))
"""`make compile-kernels` sets it"""


def combinations() -> Iterator[tuple[int, int, str, int]]:
    """(number, head size, type, generation) of all. What else a kernel knows should vary with the
    number: of neighbours in any one of the three it differs by one."""
    for numbered in product(enumerate(HEAD_SIZES), enumerate(DTYPES), enumerate(CAPABILITIES)):
        (head, head_dim), (kind, dtype), (generation, capability) = numbered
        yield head + kind + generation, head_dim, dtype, capability


def pairs() -> Iterator[tuple[int, int, str, int]]:
    """A third of the combinations, in which every two of head size, type and generation meet; all
    of them where COMPILE_EVERY is set."""
    for number, head_dim, dtype, capability in combinations():
        if is_paired(number, capability):
            yield number, head_dim, dtype, capability


def is_paired(number: int, capability: int) -> bool:
    return EVERY or (number + CAPABILITIES.index(capability)) % len(CAPABILITIES) == 0


class Variant(NamedTuple):
    """One kernel with all its constants, for one GPU generation."""

    kernel: str
    dtype: str
    """a name in DTYPES, or what else the kernel moves"""
    head_dim: int
    """0 for a kernel that knows no heads"""
    capability: int
    source: Any
    options: dict[str, Any]
    detail: str = ""
    """what tells it from others of the same kernel, type, head size and generation"""

    @property
    def name(self) -> str:
        words = [self.kernel, self.dtype, str(self.head_dim or "-"), f"sm_{self.capability}"]
        return " ".join([*words, self.detail]).strip()

    def compile(self) -> dict[str, Any]:
        """What test_compile.py reads, as JSON."""
        target = GPUTarget("cuda", self.capability, 32)
        kernel = triton.compile(self.source, target=target, options=self.options)
        return {
            "name": self.name,
            "capability": self.capability,
            "cubin_bytes": len(kernel.asm["cubin"]),
            "shared_bytes": kernel.metadata.shared,
        }


def make_source(
    kernel: Any,
    types: Mapping[str, str | tuple[str, ...]],
    constants: dict[str, Any],
    unaligned: Collection[str] = (),
    gluon: bool = False,
) -> Any:
    """Arguments not named in `types` are i32; a tuple of types is one of several. All but the
    `unaligned` are, as at run time, divisible by 16."""
    signature = {
        name: "constexpr" if name in constants else types.get(name, "i32")
        for name in kernel.arg_names
    }
    aligned = {
        place: [["tt.divisibility", 16]]
        for index, (name, kind) in enumerate(signature.items())
        for place, one in _places(index, kind)
        if name not in unaligned and (one.startswith("*") or one in {"i32", "i64"})
    }
    source = GluonASTSource if gluon else ASTSource
    return source(kernel, signature, constants, aligned)


def _places(index: int, kind: str | tuple[str, ...]) -> Iterator[tuple[tuple[int, ...], str]]:
    """(place, type) of an argument, or of every item of one."""
    if isinstance(kind, str):
        yield (index,), kind
    else:
        yield from (((index, item), one) for item, one in enumerate(kind))
