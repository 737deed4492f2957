"""Whether a slice is held is asked of the kernel's locks, not of what a job wrote."""

import fcntl
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgpu.enforcement import meter


@pytest.fixture
def usage() -> Iterator[Path]:
    with tempfile.NamedTemporaryFile(prefix="pgpu-usage-", dir="/dev/shm") as file:
        yield Path(file.name)


def test_a_slice_that_nobody_locks_is_free(usage: Path) -> None:
    assert not meter.is_held(usage)


@pytest.mark.parametrize("first", [meter.LOCK_ALIVE, meter.LOCK_HOLDING])
@pytest.mark.parametrize("slot", [0, meter.MAX_SLOTS - 1])
def test_one_lock_of_a_process_or_of_its_forked_child_holds_it(usage: Path, first: int, slot: int) -> None:
    with usage.open("r+b") as file:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("@hhqqi", fcntl.F_WRLCK, 0, first + slot, 1, 0))
        assert meter.is_held(usage)
    assert not meter.is_held(usage)
