"""What is said where a job's tmpfs stays."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from pgpu.tmpfs import unmount

NOBODY = """
import os, sys
from pgpu.tmpfs import unmount
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)
assert os.geteuid() != 0
try:
    unmount("/proc")
except OSError as exc:
    print(exc.errno, exc.filename)
"""


def test_a_mount_that_cannot_be_taken_away_is_an_error() -> None:
    done = subprocess.run([sys.executable, "-c", NOBODY], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(errno.EPERM), "/proc"]


@pytest.mark.parametrize("name", ["there", "gone"])
def test_what_is_no_mount_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / "there").mkdir()
    unmount(tmp_path / name)
    assert (tmp_path / "there").is_dir()


def test_a_directory_that_is_not_there_is_not_mounted(tmp_path: Path) -> None:
    code = f"""
import ctypes, errno
from pgpu import tmpfs

def refused(directory: bytes, flags: int) -> int:
    ctypes.set_errno(errno.EPERM)
    return -1

tmpfs._libc = type("", (), {{"umount2": staticmethod(refused)}})
tmpfs.unmount({str(tmp_path / "meter")!r})
"""
    subprocess.run([sys.executable, "-c", code], check=True)
