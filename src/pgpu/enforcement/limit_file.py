"""The limit file of a slice, written by the host and read by the job's shim, and its words that change while the job runs.

The layout is native/include/meter_abi.h; a test compares both. The job reads the file at any time without a lock. So each
word changes by one aligned store, and writers of the compute word exclude each other by a lock on the slice's directory.
Memory use is in the usage file (`meter`).
"""

import ctypes
import mmap
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from pgpu.enforcement.compute_word import NOT_SHARED, ComputeWord, Hold
from pgpu.errors import EnforcementError
from pgpu.host.atomic_file import create_atomically
from pgpu.host.file_lock import exclusive_flock
from pgpu.structs import Struct

ABI = 2
"""Version 2 added the compute word and the flags. A shim of version 1 would ignore the share, so it fails CUDA calls instead."""

OLDEST_ABI = 1
"""The previous version is still read, so that running jobs survive an upgrade."""

MAX_GPUS = 16
PATH_BYTES = 256
LIMIT_MAGIC = 0x54494D494C555047

LIMIT_HEADER = struct.Struct(f"<QIIQII32s{PATH_BYTES}s{PATH_BYTES}s{PATH_BYTES}s56xQ")
LIMIT_GPU = struct.Struct("<16sQQQQQQQ")
LIMIT_BYTES = LIMIT_HEADER.size + MAX_GPUS * LIMIT_GPU.size
LIMIT_WORD_OFFSET = 16
OVERHEAD_WORD_OFFSET = 32
COMPUTE_WORD_OFFSET = 48
RESIDENT_WORD_OFFSET = 56
GROWTH_WORD_OFFSET = 64
OVERSUBSCRIBES = 1 << 0
TRACES = 1 << 1
GROWS = 1 << 2

_COMPUTE_ABI = 2
_LIMIT_MODE = 0o644
_INSTANCE = "MIG-"


class LimitGpu(Struct, frozen=True):
    """One GPU of a limit file."""

    uuid: str
    """In NVML's format; `MIG-…` for an instance."""

    limit_bytes: int
    context_bytes: int
    overhead_bytes: int = 0
    compute: ComputeWord = NOT_SHARED
    resident_bytes: int = 0
    """Upper limit of the slice's memory that stays on the device; used only if the job oversubscribes."""

    growth_answer: int = 0
    """See `growth_channel`."""


class LimitFile(Struct, frozen=True):
    """The content of a limit file."""

    job_id: str
    gpus: tuple[LimitGpu, ...]
    real_cuda_path: str
    """The driver behind the shim. All paths are as the job sees them."""

    real_nvml_path: str
    usage_path: str
    wait_for_memory_ns: int = 0
    requires_read_only: bool = True
    flags: int = 0
    """Bits such as `OVERSUBSCRIBES`."""

    carve_out_percent: int | None = None
    """Preferred shared memory carve-out for every kernel of a traced job, 0 to 100 % of L1 and shared memory; None: unchanged."""


def write_limit(path: Path, limit: LimitFile) -> None:
    """Write a new limit file, readable by all users.

    Raises:
        EnforcementError: It cannot be written, or the values exceed the layout.
    """
    data = _limit_bytes(limit)
    with explaining(path):
        create_atomically(path, data, _LIMIT_MODE)


def read_limit(path: Path) -> LimitFile:
    """Read a limit file back.

    Raises:
        EnforcementError: The file cannot be read, or is not a limit file.
    """
    return _limit_of(path, _read(path))


def _limit_of(path: Path, data: bytes) -> LimitFile:
    if len(data) < LIMIT_BYTES:
        raise EnforcementError(f"the limit file {path} is cut short")
    magic, abi, count, wait_ns, read_only, flags, job_id, cuda, nvml, usage, carve_out = LIMIT_HEADER.unpack_from(data)
    # The header is written once, before the file has its name; a mismatch is another version, never a write in progress.
    if magic != LIMIT_MAGIC or not OLDEST_ABI <= abi <= ABI or count > MAX_GPUS:
        raise EnforcementError(f"{path} is no limit file of this version")
    return LimitFile(
        job_id=_text(job_id),
        gpus=_limit_gpus(data[LIMIT_HEADER.size : LIMIT_HEADER.size + count * LIMIT_GPU.size]),
        real_cuda_path=_text(cuda),
        real_nvml_path=_text(nvml),
        usage_path=_text(usage),
        wait_for_memory_ns=wait_ns,
        requires_read_only=bool(read_only),
        flags=flags,
        # Stored as percent + 1, since 0 % is a valid preference and files without the field have 0.
        carve_out_percent=carve_out - 1 if carve_out else None,
    )


def _read(path: Path) -> bytes:
    # Not `path.read_bytes()`, which makes three times as many system calls: each round reads the files of all jobs.
    with explaining(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, LIMIT_BYTES)
        finally:
            os.close(descriptor)


def set_limit_bytes(path: Path, gpu_uuid: str, limit_bytes: int) -> None:
    """Change the memory limit of one GPU while its job runs.

    Raises:
        EnforcementError: The file cannot be written or has no such GPU.
    """
    _store(path, read_limit(path), gpu_uuid, LIMIT_WORD_OFFSET, limit_bytes)


def set_overhead_bytes(path: Path, gpu_uuid: str, overhead_bytes: int) -> None:
    """Change the uncharged driver overhead while the job runs.

    Raises:
        EnforcementError: The file cannot be written or has no such GPU.
    """
    _store(path, read_limit(path), gpu_uuid, OVERHEAD_WORD_OFFSET, overhead_bytes)


def set_resident_bytes(path: Path, gpu_uuid: str, resident_bytes: int) -> None:
    """Change the limit of memory that stays on the device, while a job that oversubscribes runs.

    Raises:
        EnforcementError: The file cannot be written or has no such GPU.
    """
    _store(path, read_limit(path), gpu_uuid, RESIDENT_WORD_OFFSET, resident_bytes)


def set_growth_answer(path: Path, gpu_uuid: str, word: int) -> None:
    """Answer a wish for a larger slice.

    Raises:
        EnforcementError: The limit file cannot be written or has no such GPU.
    """
    _store(path, read_limit(path), gpu_uuid, GROWTH_WORD_OFFSET, word)


def set_compute_word(path: Path, gpu_uuid: str, word: ComputeWord) -> ComputeWord:
    """Change the share of one GPU's time while the job runs; the hold bits stay.

    Returns:
        The word as stored.

    Raises:
        EnforcementError: The file cannot be written, has no such GPU, or is of a version without shares.
    """
    return _change_compute(path, gpu_uuid, word.with_holds_of)


def set_held(path: Path, gpu_uuid: str, hold: Hold, *, is_held: bool) -> ComputeWord:
    """Set or clear one hold on a job's launches and copies on one GPU; they continue once all hold bits are clear.

    Returns:
        The word as stored.

    Raises:
        EnforcementError: The file cannot be written, has no such GPU, or is of a version that cannot be held.
    """
    return _change_compute(path, gpu_uuid, lambda old: old.with_hold(hold, is_held=is_held))


def _limit_bytes(limit: LimitFile) -> bytes:
    paths = [os.fsencode(path) for path in (limit.real_cuda_path, limit.real_nvml_path, limit.usage_path)]
    if not 1 <= len(limit.gpus) <= MAX_GPUS:
        raise EnforcementError(f"a slice has 1 to {MAX_GPUS} GPUs, not {len(limit.gpus)}")
    if any(len(path) >= PATH_BYTES for path in paths):
        raise EnforcementError(
            f"a path of the slice is longer than {PATH_BYTES - 1} bytes: {max(paths, key=len).decode(errors='replace')}",
            hint="set runtime_dir to a shorter path",
        )
    header = LIMIT_HEADER.pack(
        LIMIT_MAGIC,
        ABI,
        len(limit.gpus),
        limit.wait_for_memory_ns,
        int(limit.requires_read_only),
        limit.flags,
        limit.job_id.encode(),
        *paths,
        0 if limit.carve_out_percent is None else limit.carve_out_percent + 1,
    )
    gpus = (
        LIMIT_GPU.pack(
            bytes.fromhex(gpu.uuid.partition("-")[2].replace("-", "")),
            gpu.limit_bytes,
            gpu.context_bytes,
            gpu.overhead_bytes,
            gpu.uuid.startswith(_INSTANCE),
            gpu.compute.packed,
            gpu.resident_bytes,
            gpu.growth_answer,
        )
        for gpu in limit.gpus
    )
    return b"".join((header, *gpus)).ljust(LIMIT_BYTES, b"\0")


@lru_cache(maxsize=512)
def _limit_gpus(data: bytes) -> tuple[LimitGpu, ...]:
    # Cached by the content, since each round reads the files of all jobs, and a file seldom changes. Not the rest: its texts are of one
    # job each, and would take kilobytes.
    return tuple(_limit_gpu(*fields) for fields in LIMIT_GPU.iter_unpack(data))


def _limit_gpu(  # noqa: PLR0917 - the fields of the layout
    uuid: bytes, limit_bytes: int, context_bytes: int, overhead_bytes: int, is_instance: int, word: int, *rest: int
) -> LimitGpu:
    digits = uuid.hex()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    kind = _INSTANCE if is_instance else "GPU-"
    return LimitGpu(
        f"{kind}{'-'.join(parts)}",
        limit_bytes,
        context_bytes,
        overhead_bytes,
        ComputeWord.unpack(word),
        *rest,
    )


def _store(path: Path, limit: LimitFile, gpu_uuid: str, word_offset: int, value: int) -> None:
    """Change one aligned 64-bit word by one store, since the job reads it at any time."""
    uuids = [gpu.uuid for gpu in limit.gpus]
    if gpu_uuid not in uuids:
        raise EnforcementError(f"the limit file {path} has no GPU {gpu_uuid}")
    at = LIMIT_HEADER.size + uuids.index(gpu_uuid) * LIMIT_GPU.size + word_offset
    with explaining(path), path.open("r+b") as file, mmap.mmap(file.fileno(), LIMIT_BYTES) as mapped:
        # A store through ctypes is one aligned 8-byte write; `mapped[at:at+8] = …` or write() could be seen half done.
        word = ctypes.c_uint64.from_buffer(mapped, at)
        word.value = value
        del word  # mmap.close() fails while an object exports its buffer


def _change_compute(path: Path, gpu_uuid: str, change: Callable[[ComputeWord], ComputeWord]) -> ComputeWord:
    # Read-modify-write under the lock: several processes of the host change bits of the same word.
    with _exclusive_writer(path):
        data = _read(path)
        abi = int.from_bytes(data[8:12], "little")
        # A shim of version 1 never reads the word: a job that cannot be held must not count as held.
        if abi < _COMPUTE_ABI:
            raise EnforcementError(
                "the job was started by a version of pgpu that shares no compute",
                hint="stop the job and start it again",
            )
        limit = _limit_of(path, data)
        words = {gpu.uuid: gpu.compute for gpu in limit.gpus}
        word = change(words.get(gpu_uuid, ComputeWord()))
        _store(path, limit, gpu_uuid, COMPUTE_WORD_OFFSET, word.packed)
        return word


@contextmanager
def _exclusive_writer(path: Path) -> Iterator[None]:
    """Exclusive lock against other writers of the word, on the slice's own directory: no job can open it and hold the lock."""
    with explaining(path.parent.parent):
        descriptor = os.open(path.parent.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with exclusive_flock(descriptor):
        yield


@contextmanager
def explaining(path: Path) -> Iterator[None]:
    """Convert an OSError to an EnforcementError that names the slice's file."""
    try:
        yield
    except OSError as exc:
        raise EnforcementError(f"{path} cannot be used: {exc.strerror}") from exc


def _text(field: bytes) -> str:
    return os.fsdecode(field.partition(b"\0")[0])
