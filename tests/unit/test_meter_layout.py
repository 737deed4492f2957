"""The host's view of the limit and usage files: the C header's layout, and no trust in what a job wrote."""

import fcntl
import os
import re
import struct
from pathlib import Path

import pytest

from pgpu.enforcement import compute_word, limit_file, meter
from pgpu.enforcement.compute_word import ComputeWord, Hold
from pgpu.enforcement.limit_file import LimitFile, LimitGpu
from pgpu.errors import EnforcementError
from pgpu.structs import replace
from pgpu.units import GIB, MIB

HEADER = (Path(__file__).parent.parent.parent / "native" / "include" / "meter_abi.h").read_text("utf-8")
UUIDS = ("GPU-00112233-4455-6677-8899-aabbccddeeff", "GPU-ffffffff-4455-6677-8899-aabbccddeeff")
LIMIT = LimitFile(
    job_id="0123456789ab",
    gpus=(LimitGpu(UUIDS[0], 2 * GIB, 254 * MIB), LimitGpu(UUIDS[1], 2 * GIB, 254 * MIB, resident_bytes=GIB)),
    real_cuda_path="/.pgpu/driver/libcuda.so.1",
    real_nvml_path="/.pgpu/driver/libnvidia-ml.so.1",
    usage_path="/.pgpu/usage",
    wait_for_memory_ns=30_000_000_000,
    flags=limit_file.OVERSUBSCRIBES | limit_file.TRACES,
    carve_out_percent=100,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("sizeof(struct pgpu_limit_gpu)", limit_file.LIMIT_GPU.size),
        ("offsetof(struct pgpu_limit_gpu, compute)", limit_file.COMPUTE_WORD_OFFSET),
        ("offsetof(struct pgpu_limit_gpu, growth_answer)", limit_file.GROWTH_WORD_OFFSET),
        ("offsetof(struct pgpu_usage_gpu, growth_wish)", meter.USAGE_GPU.size - 8),
        ("offsetof(struct pgpu_usage_slot, sizes_itself)", struct.calcsize("<IIQQQQ")),
        ("offsetof(struct pgpu_limit, gpu)", limit_file.LIMIT_HEADER.size),
        ("offsetof(struct pgpu_limit, carve_out)", limit_file.LIMIT_HEADER.size - 8),
        ("sizeof(struct pgpu_limit)", limit_file.LIMIT_BYTES),
        ("offsetof(struct pgpu_usage, gpu)", meter.USAGE_HEADER.size),
        ("sizeof(struct pgpu_usage_gpu)", meter.USAGE_GPU.size),
        ("offsetof(struct pgpu_usage_slot, in_flight)", struct.calcsize("<IIQQ")),
        ("offsetof(struct pgpu_usage_slot, in_flight_until_ns)", struct.calcsize("<IIQQQ")),
        ("offsetof(struct pgpu_usage_slot, gpu)", meter.USAGE_SLOT_HEADER.size),
        ("sizeof(struct pgpu_usage_entry)", meter.USAGE_ENTRY.size),
        ("sizeof(struct pgpu_usage_slot)", meter.USAGE_SLOT_BYTES),
        ("offsetof(struct pgpu_usage, slot)", meter.USAGE_HEADER_BYTES),
    ],
)
def test_the_layout_is_the_header_s(text: str, value: int) -> None:
    found = re.search(rf"static_assert\({re.escape(text)} == (\d+)", HEADER)
    assert found is not None
    assert int(found[1]) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PGPU_METER_ABI", limit_file.ABI),
        ("PGPU_LIMIT_MAGIC", limit_file.LIMIT_MAGIC),
        ("PGPU_USAGE_MAGIC", meter.USAGE_MAGIC),
        ("PGPU_MAX_GPUS", limit_file.MAX_GPUS),
        ("PGPU_MAX_SLOTS", meter.MAX_SLOTS),
        ("PGPU_PATH_BYTES", limit_file.PATH_BYTES),
        ("PGPU_MAX_PAGED_GPUS", meter.MAX_PAGED_GPUS),
        ("PGPU_LOCK_ALIVE", meter.LOCK_ALIVE),
        ("PGPU_LOCK_HOLDING", meter.LOCK_HOLDING),
        ("PGPU_COMPUTE_SHARE_MASK", compute_word.SHARE_MASK),
        ("PGPU_COMPUTE_WEIGHT_MASK", compute_word.WEIGHT_MASK),
        ("PGPU_COMPUTE_TIMES_HELD_SHIFT", compute_word.TIMES_HELD_SHIFT),
        ("PGPU_COMPUTE_TIMES_HELD_MASK", compute_word.TIMES_HELD_MASK),
        ("PGPU_COMPUTE_USER_SHIFT", compute_word.USER_SHIFT),
        ("PGPU_COMPUTE_USER_MASK", compute_word.USER_MASK),
    ],
)
def test_constants_are_the_header_s(name: str, value: int) -> None:
    found = re.search(rf"#define {name}\s+(\w+?)(u|ull|ll)?[ \n]", HEADER)
    assert found is not None
    assert int(found[1], 0) == value


def test_a_limit_is_read_as_it_was_written(tmp_path: Path) -> None:
    limit_file.write_limit(tmp_path / "limit", LIMIT)
    assert limit_file.read_limit(tmp_path / "limit") == LIMIT
    assert (tmp_path / "limit").stat().st_size == limit_file.LIMIT_BYTES
    assert (tmp_path / "limit").stat().st_mode & 0o777 == 0o644


def test_words_change_in_place(tmp_path: Path) -> None:
    path = tmp_path / "limit"
    limit_file.write_limit(path, LIMIT)
    inode = path.stat().st_ino
    limit_file.set_limit_bytes(path, UUIDS[1], 3 * GIB)
    limit_file.set_overhead_bytes(path, UUIDS[0], 7 * MIB)
    first, second = limit_file.read_limit(path).gpus
    assert (first.limit_bytes, first.overhead_bytes) == (2 * GIB, 7 * MIB)
    assert (second.limit_bytes, second.overhead_bytes) == (3 * GIB, 0)
    assert path.stat().st_ino == inode


@pytest.mark.parametrize(("name", "bit"), re.findall(r"#define (PGPU_COMPUTE_\w+)\s+\(1ull << (\d+)\)", HEADER))
def test_bits_of_the_word_of_compute_are_the_header_s(name: str, bit: str) -> None:
    assert getattr(compute_word, name.removeprefix("PGPU_COMPUTE_")) == 1 << int(bit)


@pytest.mark.parametrize(("name", "bit"), re.findall(r"#define PGPU_LIMIT_(\w+)\s+\(1u << (\d+)\)", HEADER))
def test_flags_are_the_header_s(name: str, bit: str) -> None:
    assert getattr(limit_file, name) == 1 << int(bit)


@pytest.mark.parametrize(
    "word",
    [
        ComputeWord(),
        ComputeWord(0.3, 100, is_measured=True, is_shared=True),
        ComputeWord(1.0, 65535, is_measured=True, is_shared=True, is_strict=True, holds=Hold.TURNS | Hold.TRIAL),
        ComputeWord(0.5, 1, holds=Hold.SUSPENSION, times_held=255),
    ],
)
def test_a_word_of_compute_is_read_as_it_was_written(word: ComputeWord, tmp_path: Path) -> None:
    assert ComputeWord.unpack(word.packed) == word
    gpus = (LimitGpu(UUIDS[0], 2 * GIB, 254 * MIB, compute=word), LIMIT.gpus[1])
    limit = replace(LIMIT, gpus=gpus, flags=limit_file.TRACES)
    limit_file.write_limit(tmp_path / "limit", limit)
    assert limit_file.read_limit(tmp_path / "limit") == limit


def test_a_share_changes_live_and_keeps_who_holds_the_job(tmp_path: Path) -> None:
    limit_file.write_limit(tmp_path / "limit", LIMIT)
    shared = ComputeWord(0.25, 50, is_shared=True)
    limit_file.set_held(tmp_path / "limit", UUIDS[1], Hold.TURNS, is_held=True)
    held = limit_file.set_compute_word(tmp_path / "limit", UUIDS[1], shared)
    assert held == replace(shared, holds=Hold.TURNS, times_held=1)
    left = limit_file.set_held(tmp_path / "limit", UUIDS[1], Hold.TURNS, is_held=False)
    assert left == replace(shared, times_held=1)
    assert left.without_holds == shared
    assert [gpu.compute for gpu in limit_file.read_limit(tmp_path / "limit").gpus] == [ComputeWord(), left]


def test_a_job_is_held_anew_only_once_nobody_held_it() -> None:
    word = ComputeWord(times_held=255).with_hold(Hold.TURNS, is_held=True)
    assert word.times_held == 0
    assert word.with_hold(Hold.SUSPENSION, is_held=True).times_held == 0
    assert word.with_hold(Hold.TURNS, is_held=False).with_hold(Hold.TURNS, is_held=True).times_held == 1


def test_a_job_of_a_version_without_shares_gets_none(tmp_path: Path) -> None:
    limit_file.write_limit(tmp_path / "limit", LIMIT)
    with (tmp_path / "limit").open("r+b") as file:
        file.seek(8)
        file.write(struct.pack("<I", 1))
    with pytest.raises(EnforcementError, match="shares no compute"):
        limit_file.set_compute_word(tmp_path / "limit", UUIDS[0], ComputeWord(0.5, is_shared=True))


def test_what_does_not_fit_into_the_layout_is_refused(tmp_path: Path) -> None:
    long_path = "/" + "x" * limit_file.PATH_BYTES
    for bad in (
        LimitFile("a", (), "/c", "/n", "/u"),
        LimitFile("a", LIMIT.gpus * 9, "/c", "/n", "/u"),
        LimitFile("a", LIMIT.gpus, long_path, "/n", "/u"),
    ):
        with pytest.raises(EnforcementError):
            limit_file.write_limit(tmp_path / "limit", bad)
    assert not (tmp_path / "limit").exists()


def test_a_gpu_that_is_not_in_the_lease_cannot_be_set(tmp_path: Path) -> None:
    limit_file.write_limit(tmp_path / "limit", LIMIT)
    with pytest.raises(EnforcementError):
        limit_file.set_limit_bytes(tmp_path / "limit", UUIDS[0].replace("0", "1"), GIB)


def test_an_unused_slice_holds_nothing(tmp_path: Path) -> None:
    limit_file.write_limit(tmp_path / "limit", LIMIT)
    (tmp_path / "usage").touch()
    uses = meter.read_use(limit_file.read_limit(tmp_path / "limit"), tmp_path / "usage")
    assert [(use.gpu_uuid, use.used_bytes, use.peak_bytes, use.refusals) for use in uses] == [
        (uuid, 0, 0, 0) for uuid in UUIDS
    ]
    assert meter.held_slots(tmp_path / "usage") == []


def test_memory_of_the_dead_does_not_count_and_of_the_living_does(tmp_path: Path) -> None:
    limit_file.write_limit(tmp_path / "limit", LIMIT)
    usage = tmp_path / "usage"
    usage.write_bytes(_usage(total_bytes=300, slots=[100, 200]))
    with usage.open("r+b") as file:
        lock = struct.pack("hh4xqqi4x", fcntl.F_WRLCK, os.SEEK_SET, meter.LOCK_ALIVE + 1, 1, 0)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
        assert meter.read_use(limit_file.read_limit(tmp_path / "limit"), usage)[0].used_bytes == 200
        [slot] = meter.held_slots(usage)
    assert (slot.pid, slot.is_alive, slot.used_bytes[0]) == (4001, True, 200)
    assert meter.held_slots(usage) == []


@pytest.mark.parametrize("data", [b"x" * 5000, b"GPUUSAGE", b"\xff" * 900_000])
def test_a_spoilt_usage_file_is_an_error_and_no_more(tmp_path: Path, data: bytes) -> None:
    limit_file.write_limit(tmp_path / "limit", LIMIT)
    (tmp_path / "usage").write_bytes(data)
    with pytest.raises(EnforcementError):
        meter.read_use(limit_file.read_limit(tmp_path / "limit"), tmp_path / "usage")


def test_a_ledger_can_store_any_number_that_a_job_writes(tmp_path: Path) -> None:
    limit_file.write_limit(tmp_path / "limit", LIMIT)
    data = bytearray(_usage(total_bytes=300, slots=[300]))
    struct.pack_into("<8Q", data, meter.USAGE_HEADER.size, *[(1 << 64) - 1] * 8)
    (tmp_path / "usage").write_bytes(data)
    use = meter.read_use(limit_file.read_limit(tmp_path / "limit"), tmp_path / "usage")[0]
    numbers = [use.used_bytes, use.peak_bytes, use.refusals, use.attempted_bytes, use.device_refusals]
    assert max(numbers) < 1 << 63


def test_more_slots_than_there_are_bytes_are_not_believed(tmp_path: Path) -> None:
    limit_file.write_limit(tmp_path / "limit", LIMIT)
    data = bytearray(_usage(total_bytes=300, slots=[300]))
    struct.pack_into("<I", data, 12, 0xFFFFFFFF)
    (tmp_path / "usage").write_bytes(data)
    assert meter.read_use(limit_file.read_limit(tmp_path / "limit"), tmp_path / "usage")[0].used_bytes == 0


def _usage(total_bytes: int, slots: list[int]) -> bytes:
    """Write a usage file as processes would that used the first GPU only."""
    header = meter.USAGE_HEADER.pack(meter.USAGE_MAGIC, limit_file.ABI, len(slots))
    gpu = meter.USAGE_GPU.pack(total_bytes, 0, total_bytes, 0, 0, 0, 0, 0)
    page = (header + gpu).ljust(meter.USAGE_HEADER_BYTES, b"\0")
    return page + b"".join(_slot(4000 + number, used_bytes) for number, used_bytes in enumerate(slots))


def _slot(pid: int, used_bytes: int) -> bytes:
    entry = meter.USAGE_ENTRY.pack(0, used_bytes, used_bytes, 1, 1, 1)
    return (meter.USAGE_SLOT_HEADER.pack(pid, 0, 0, 0, 1, 5, 0) + entry).ljust(meter.USAGE_SLOT_BYTES, b"\0")
