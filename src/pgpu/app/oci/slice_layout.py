"""Lays out a slice for a container that may have to wait for it: all files but the limit, without which CUDA is refused.

The files are those of `pgpu.enforcement.slice_files` (a test compares both) and three more: the program that holds the
container back, the pipe that releases it, and the variables that are added to its environment.
"""

import json
import os
from typing import Any

from pgpu import board_files
from pgpu.capped_tmpfs import mount_capped, unmount

USAGE_BYTES = 4096 + 1024 * (64 + 16 * 48)
HOLD = "pgpu-hold"
GATE = "gate"
ENVIRONMENT = "environment"
RECORD = "container.json"


def lay_out(prepared: dict[str, Any], job_id: str, preload_lines: list[str]) -> str:
    """Make a slice's files and return their directory.

    Args:
        prepared: The facts that `preparation` wrote.
        job_id: The job that will be granted the slice.
        preload_lines: The lines of the image's own /etc/ld.so.preload.

    Raises:
        OSError: The runtime tmpfs is full or not writable.
    """
    home = f"{prepared['runtime_directory']}/slices/{job_id}"
    os.makedirs(home, 0o700)
    _make_meter(f"{home}/meter")
    board_files.join(prepared["runtime_directory"], f"{home}/meter")
    view = f"{home}/view"
    for directory in (
        view,
        f"{view}/driver",
        f"{view}/{board_files.BOARD}",
        *([f"{view}/simgpu"] if prepared["simulated"] else ()),
    ):
        os.mkdir(directory)
        os.chmod(directory, 0o755)  # noqa: S103 - the container's user reads it
    for name, source in prepared["libraries"].items():
        os.link(source, f"{view}/{name}")
    for name in prepared["driver_files"]:
        _write(f"{view}/driver/{name}", b"", 0o444)
    ours = ["/.pgpu/libpgpu.so", "/.pgpu/libpgpu-ml.so"]
    _write(
        f"{view}/ld.so.preload", "".join(f"{line}\n" for line in dict.fromkeys(ours + preload_lines)).encode(), 0o644
    )
    _write(f"{view}/usage", b"", 0o444)
    _write(f"{view}/{board_files.TIME}", b"", 0o444)
    _write(f"{view}/{ENVIRONMENT}", b"", 0o444)
    os.mkfifo(f"{view}/{GATE}")
    os.chmod(f"{view}/{GATE}", 0o444)
    return home


def take_away(home: str) -> None:
    """Remove a slice that no container uses yet."""
    board_files.leave(os.path.dirname(os.path.dirname(home)), f"{home}/meter")
    unmount(f"{home}/meter")
    for directory, directories, files in os.walk(home, topdown=False):
        for name in files:
            os.unlink(f"{directory}/{name}")
        for name in directories:
            os.rmdir(f"{directory}/{name}")
    os.rmdir(home)


def write_record(home: str, record: dict[str, Any]) -> None:
    """Write the container's record atomically."""
    _write(f"{home}/.{RECORD}", json.dumps(record).encode(), 0o600)
    os.rename(f"{home}/.{RECORD}", f"{home}/{RECORD}")


def _make_meter(directory: str) -> None:
    os.mkdir(directory, 0o700)
    mount_capped(directory)
    usage = f"{directory}/usage"
    _write(usage, b"", 0o666)
    descriptor = os.open(usage, os.O_RDWR)
    try:
        os.posix_fallocate(descriptor, 0, USAGE_BYTES)
    finally:
        os.close(descriptor)


def _write(path: str, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, mode)
        while content:
            content = content[os.write(descriptor, content) :]
    finally:
        os.close(descriptor)
