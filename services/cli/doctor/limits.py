"""What the kernel allows a process: open files, memory that processes share."""

import fcntl
import os
import resource
import shutil
from dataclasses import dataclass
from pathlib import Path

from services.cli.doctor.finding import Finding, fail, ok, warn

FEWEST_FILES = 256
"""a gateway's or worker's own, with room for links, pulls and few clients"""
MIB = 2**20
NCCL_BYTES = 64 * MIB
"""of /dev/shm: what some container engines give if nobody asks, and several ranks run out of"""
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 where NCCL looks


@dataclass(frozen=True)
class LimitFacts:
    most_files: int
    """the hard limit, which a gateway raises its own to; -1 is none"""
    memfd_error: str
    """why no anonymous memory can be made for processes to share"""
    shm_bytes: int
    """size of /dev/shm"""


def gather_limits() -> LimitFacts:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        shm_bytes = shutil.disk_usage(SHARED_MEMORY).total
    except OSError:
        shm_bytes = 0
    return LimitFacts(hard, _memfd_error(), shm_bytes)


def judge_limits(facts: LimitFacts, *, max_clients: int, tp: int) -> list[Finding]:
    """`max_clients`: requests a gateway owns at once."""
    found = [_judge_files(facts.most_files, max_clients)]
    if facts.memfd_error:
        found.append(
            fail(
                "memfd",
                f"processes cannot share memory here: {facts.memfd_error}",
                "allow memfd_create and its seals in the container's seccomp profile",
            )
        )
    else:
        found.append(ok("memfd", "processes can share memory"))
    if tp > 1:
        found.append(_judge_shm(facts.shm_bytes))
    return found


def _judge_files(most: int, max_clients: int) -> Finding:
    cure = "raise it: LimitNOFILE=65536 of systemd, --ulimit nofile=65536 of docker"
    if most == resource.RLIM_INFINITY:
        return ok("open files", "no limit")
    if most < FEWEST_FILES:
        seen = f"at most {most} per process, needs {FEWEST_FILES}"
        return fail("open files", seen, cure)
    if most < max_clients + FEWEST_FILES:
        return warn("open files", f"at most {most}, too few for {max_clients} clients", cure)
    return ok("open files", f"at most {most}")


def _judge_shm(num_bytes: int) -> Finding:
    seen = f"{SHARED_MEMORY} has {num_bytes // MIB} MiB"
    if num_bytes > NCCL_BYTES:
        return ok("shared memory", seen)
    return fail(
        "shared memory",
        f"{seen}, too little for the ranks of --tp",
        "--shm-size=1g of docker, shmSize of the chart",
    )


def _memfd_error() -> str:
    """As the KV pool is made."""
    try:
        fd = os.memfd_create("baton-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, MIB)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        finally:
            os.close(fd)
    except OSError as error:
        return error.strerror or str(error)
    return ""
