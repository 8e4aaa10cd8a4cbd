"""Programmatic dependent launch (sm_90 and later): a kernel begins while the one before it ends."""

import triton
import triton.language as tl


@triton.jit
def follow(OVERLAP: tl.constexpr):
    """Go on once the kernel before has ended, and let the one after begin. Every program calls it
    before its first access to what another kernel of the step reads or writes."""
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
