"""A file of a slice appears whole or not at all."""

import os
import threading
from pathlib import Path

import pytest

from pgpu.enforcement.limit_file import LIMIT_BYTES, LimitFile, LimitGpu, read_limit, write_limit
from pgpu.errors import EnforcementError
from pgpu.host.atomic_file import create_atomically, write_atomically

UUID = "GPU-00000000-0000-4000-8000-000000000000"
CONTENTS = (b"a" * 65536, b"b" * 65536)


def _limit(job_id: str) -> LimitFile:
    return LimitFile(
        job_id=job_id,
        gpus=(LimitGpu(uuid=UUID, limit_bytes=1 << 30, context_bytes=0),),
        real_cuda_path="/driver/libcuda.so.1",
        real_nvml_path="/driver/libnvidia-ml.so.1",
        usage_path="/.pgpu/usage",
    )


def test_a_reader_never_sees_part_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "largest-limit"
    write_atomically(path, CONTENTS[0], 0o600)
    is_done = threading.Event()

    def write() -> None:
        for turn in range(400):
            write_atomically(path, CONTENTS[turn % 2], 0o600)
        is_done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        assert path.read_bytes() in CONTENTS
    assert is_done.is_set()


def test_a_limit_file_appears_whole(tmp_path: Path) -> None:
    """Whoever lists jobs while a slice is made reads a whole limit file, or finds none."""
    paths = [tmp_path / f"limit-{number}" for number in range(200)]
    is_done = threading.Event()

    def write() -> None:
        for path in paths:
            write_limit(path, _limit("0123456789ab"))
        is_done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        for path in paths:
            assert not path.exists() or path.stat().st_size == LIMIT_BYTES
    assert is_done.is_set()
    assert read_limit(paths[0]).job_id == "0123456789ab"


def test_a_file_that_is_there_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "limit"
    write_limit(path, _limit("first"))
    with pytest.raises(EnforcementError):
        write_limit(path, _limit("second"))
    assert read_limit(path).job_id == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["limit"]


def test_permissions_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        create_atomically(tmp_path / "limit", b"content", 0o644)
    finally:
        os.umask(before)
    assert (tmp_path / "limit").stat().st_mode & 0o777 == 0o644
