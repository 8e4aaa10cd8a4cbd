"""Folders that processes write to: whether they can, the space, and the rights of other users."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from services.cli.doctor.finding import Finding, fail, failed, ok, warn
from shared.errors import BatonError
from shared.runtime_folder import runtime_folder
from shared.transfer.ways.folder import transfer_folder

MIB = 2**20
LEAST_BYTES = 100 * MIB
"""a few logs"""
GOOD_BYTES = 1024 * MIB
"""logs of many processes and compiled kernels"""


@dataclass(frozen=True)
class FolderFacts:
    """A folder, which may be yet to be made."""

    purpose: str
    path: Path
    free_bytes: int
    writable: bool


def folders_to_write(environ: Mapping[str, str]) -> dict[str, Path]:
    """Purpose -> folder. BatonError where the runtime folder is another user's."""
    home = Path(environ.get("HOME") or Path.home())
    return {
        "logs": runtime_folder(environ),
        "caches": Path(environ.get("XDG_CACHE_HOME") or home / ".cache"),
    }


def gather_folder(purpose: str, path: Path) -> FolderFacts:
    """Of a folder that is not there yet: of the nearest one above it that is."""
    there = next(each for each in (path, *path.absolute().parents) if each.exists())
    writable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    return FolderFacts(purpose, path, shutil.disk_usage(there).free, writable)


def judge_folder(facts: FolderFacts) -> Finding:
    check, free_mib = f"disk for {facts.purpose}", facts.free_bytes // MIB
    if not facts.writable:
        return warn(check, f"{facts.path} cannot be written", "mount or name one that can")
    seen = f"{free_mib:,} MiB free at {facts.path}"
    if facts.free_bytes < LEAST_BYTES:
        return fail(check, seen, f"free some, {GOOD_BYTES // MIB:,} MiB are enough")
    if facts.free_bytes < GOOD_BYTES:
        return warn(check, seen, f"free some, {GOOD_BYTES // MIB:,} MiB are enough")
    return ok(check, seen)


def check_folders(environ: Mapping[str, str]) -> list[Finding]:
    try:
        folders = folders_to_write(environ)
    except BatonError as error:
        return [failed("disk for logs", error, "make it a folder of this user, mode 0700")]
    return [judge_folder(gather_folder(purpose, path)) for purpose, path in folders.items()]


def check_transfer_folder(named: str, transport: str) -> Finding:
    """By the rules of the workers that meet in it. One that is not there is not made."""
    check = "transfer folder"
    if transport == "tcp":
        return ok(check, "none is needed with --transport tcp")
    if named and not Path(named).exists():
        facts = gather_folder(check, Path(named))
        if facts.writable:
            return ok(check, f"{named} will be made")
        return fail(check, f"{named} is missing and cannot be made", "make it, mode 0700")
    try:
        folder = transfer_folder(named)
    except BatonError as error:
        cure = f"`chown {os.getuid()} {named}; chmod 700 {named}`, or name another folder"
        return failed(check, error, cure)
    return ok(check, f"{folder} is this user's alone to write")
