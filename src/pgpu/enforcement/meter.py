"""The limit and usage files of a slice, as the host writes and reads them.

The layout is native/include/meter_abi.h; a test holds both against each other. The usage file belongs to the job, so this
module refuses to trust it: it is read with `pread` and bounds checks, never mapped, and no lock in it is waited for.
"""

import ctypes
import fcntl
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pgpu.enforcement import SliceUse
from pgpu.enforcement.publishing import publish_new
from pgpu.errors import EnforcementError

ABI = 1
OLDEST_ABI = 1
"""The version before ABI is read, too, so that an upgrade keeps running jobs; there is none before the first."""

MAX_GPUS = 16
MAX_SLOTS = 1024
PATH_BYTES = 256
LIMIT_MAGIC = 0x54494D494C555047
USAGE_MAGIC = 0x4547415355555047
LOCK_ALIVE = 0x40000000
LOCK_HOLDING = 0x40010000

LIMIT_HEADER = struct.Struct(f"<QIIQII32s{PATH_BYTES}s{PATH_BYTES}s{PATH_BYTES}s64x")
LIMIT_GPU = struct.Struct("<16sQQQQ24x")
LIMIT_BYTES = LIMIT_HEADER.size + MAX_GPUS * LIMIT_GPU.size
LIMIT_WORD_OFFSET = 16
OVERHEAD_WORD_OFFSET = 32

USAGE_HEADER = struct.Struct("<QII48x")
USAGE_GPU = struct.Struct("<QQQQQQ16x")
USAGE_SLOT_HEADER = struct.Struct("<IIQQ40x")
USAGE_ENTRY = struct.Struct("<QQQQQQ")
USAGE_HEADER_BYTES = 4096
USAGE_SLOT_BYTES = USAGE_SLOT_HEADER.size + MAX_GPUS * USAGE_ENTRY.size
USAGE_BYTES = USAGE_HEADER_BYTES + MAX_SLOTS * USAGE_SLOT_BYTES

_FLOCK = struct.Struct("hh4xqqi4x")
"""`struct flock` of 64-bit Linux."""

_LIMIT_MODE = 0o644
_Totals = tuple[int, int, int, int]
_INSTANCE = "MIG-"


@dataclass(frozen=True, slots=True)
class LimitGpu:
    """One GPU of a limit file."""

    uuid: str
    """As NVML writes it, `MIG-…` for an instance."""

    limit_bytes: int
    context_bytes: int
    overhead_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LimitFile:
    """What a job's shim is told."""

    job_id: str
    gpus: tuple[LimitGpu, ...]
    real_cuda_path: str
    """The driver behind the shim, as the job sees it; so are the other paths."""

    real_nvml_path: str
    usage_path: str
    wait_for_memory_ns: int = 0
    requires_read_only: bool = True


@dataclass(frozen=True, slots=True)
class UsedSlot:
    """One process of a slice, or what its forked children still hold."""

    pid: int
    """In its own PID namespace."""

    start_time_ticks: int
    pid_namespace: int
    """Inode of /proc/PID/ns/pid; 0 if unknown."""

    is_alive: bool
    used_bytes: tuple[int, ...]
    """On each GPU, in the limit file's order."""


def write_limit(path: Path, limit: LimitFile) -> None:
    """Write a new limit file, readable by everybody.

    Raises:
        EnforcementError: It cannot be written, or says more than the layout has room for.
    """
    data = _limit_bytes(limit)
    with _explaining(path):
        publish_new(path, data, _LIMIT_MODE)


def read_limit(path: Path) -> LimitFile:
    """Read a limit file back.

    Raises:
        EnforcementError: It cannot be read, or is none.
    """
    with _explaining(path):
        data = path.read_bytes()
    if len(data) < LIMIT_BYTES:
        raise EnforcementError(f"the limit file {path} is cut short")
    magic, abi, count, wait_ns, read_only, _, job_id, cuda, nvml, usage = LIMIT_HEADER.unpack_from(data)
    if magic != LIMIT_MAGIC or not OLDEST_ABI <= abi <= ABI or count > MAX_GPUS:
        raise EnforcementError(f"{path} is no limit file of this version")
    return LimitFile(
        job_id=_text(job_id),
        gpus=tuple(_limit_gpu(data, index) for index in range(count)),
        real_cuda_path=_text(cuda),
        real_nvml_path=_text(nvml),
        usage_path=_text(usage),
        wait_for_memory_ns=wait_ns,
        requires_read_only=bool(read_only),
    )


def set_limit_bytes(path: Path, gpu_uuid: str, limit_bytes: int) -> None:
    """Change the slice of one GPU while its job runs.

    Raises:
        EnforcementError: The file cannot be written or has no such GPU.
    """
    _store(path, gpu_uuid, LIMIT_WORD_OFFSET, limit_bytes)


def set_overhead_bytes(path: Path, gpu_uuid: str, overhead_bytes: int) -> None:
    """Change what the driver holds beyond what is charged, while the job runs.

    Raises:
        EnforcementError: The file cannot be written or has no such GPU.
    """
    _store(path, gpu_uuid, OVERHEAD_WORD_OFFSET, overhead_bytes)


def read_use(limit_path: Path, usage_path: Path) -> Sequence[SliceUse]:
    """Read what each GPU's slice holds now, in the limit file's order.

    Raises:
        EnforcementError: A file cannot be read; the usage file is garbled.
    """
    limit = read_limit(limit_path)
    with _opened(usage_path) as descriptor:
        totals = _totals(descriptor, usage_path)
        dead = [slot for slot, is_held in _slots(descriptor) if not is_held]
    return [_slice_use(gpu, index, totals[index], dead) for index, gpu in enumerate(limit.gpus)]


def held_slots(usage_path: Path) -> Sequence[UsedSlot]:
    """Return the slots whose process lives, or whose driver descriptors a forked child may still hold.

    Raises:
        EnforcementError: The file cannot be read.
    """
    with _opened(usage_path) as descriptor:
        return [slot for slot, is_held in _slots(descriptor) if is_held]


def is_held(usage_path: Path) -> bool:
    """Whether anybody holds any lock of a slot, whatever the file's content says.

    Raises:
        EnforcementError: The file cannot be opened.
    """
    with _opened(usage_path) as descriptor:
        return any(_is_locked(descriptor, first, MAX_SLOTS) for first in (LOCK_ALIVE, LOCK_HOLDING))


def _slice_use(gpu: LimitGpu, index: int, total: _Totals, dead: Sequence[UsedSlot]) -> SliceUse:
    total_bytes, peak_bytes, refusals, attempted_bytes = total
    used_bytes = max(0, total_bytes - sum(slot.used_bytes[index] for slot in dead))
    if used_bytes:
        used_bytes += gpu.overhead_bytes
    peak_bytes = max(peak_bytes + gpu.overhead_bytes if peak_bytes else 0, used_bytes)
    attempted_bytes += gpu.overhead_bytes if attempted_bytes else 0
    return SliceUse(gpu.uuid, used_bytes, peak_bytes, refusals, attempted_bytes, gpu.context_bytes)


def _totals(descriptor: int, path: Path) -> list[_Totals]:
    """Return total, peak, refusals and attempted bytes of each GPU; zeros of a file that no process has used yet."""
    data = os.pread(descriptor, USAGE_HEADER_BYTES, 0)
    if not data or data[:8] == bytes(8):
        return [(0, 0, 0, 0)] * MAX_GPUS
    if len(data) < USAGE_HEADER_BYTES:
        raise EnforcementError(f"the usage file {path} is cut short")
    magic, abi, _ = USAGE_HEADER.unpack_from(data)
    if magic != USAGE_MAGIC or not OLDEST_ABI <= abi <= ABI:
        raise EnforcementError(f"{path} is no usage file of this version")
    found = (USAGE_GPU.unpack_from(data, USAGE_HEADER.size + index * USAGE_GPU.size) for index in range(MAX_GPUS))
    return [(total, peak, refusals, attempted) for total, _, peak, refusals, _, attempted in found]


def _slots(descriptor: int) -> Iterator[tuple[UsedSlot, bool]]:
    """Yield each slot that was ever claimed and whether anybody may still hold its memory."""
    header = os.pread(descriptor, USAGE_HEADER.size, 0)
    touched = USAGE_HEADER.unpack(header)[2] if len(header) == USAGE_HEADER.size else 0
    for number in range(min(touched, MAX_SLOTS)):
        data = os.pread(descriptor, USAGE_SLOT_BYTES, USAGE_HEADER_BYTES + number * USAGE_SLOT_BYTES)
        if len(data) < USAGE_SLOT_BYTES:
            return
        is_alive = _is_locked(descriptor, LOCK_ALIVE + number)
        yield _slot(data, is_alive=is_alive), is_alive or _is_locked(descriptor, LOCK_HOLDING + number)


def _slot(data: bytes, *, is_alive: bool) -> UsedSlot:
    pid, _, start_time_ticks, pid_namespace = USAGE_SLOT_HEADER.unpack_from(data)
    entries = (USAGE_ENTRY.unpack_from(data, USAGE_SLOT_HEADER.size + at * USAGE_ENTRY.size) for at in range(MAX_GPUS))
    used_bytes = tuple(entry[entry[4] & 1] for entry in entries)
    return UsedSlot(pid, start_time_ticks, pid_namespace, is_alive, used_bytes)


def _is_locked(descriptor: int, byte: int, length: int = 1) -> bool:
    """Whether somebody holds a lock; an error counts as held, so that nothing is taken back by mistake."""
    question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, length, 0)
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, question)
    except OSError:
        return True
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


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
        0,
        limit.job_id.encode(),
        *paths,
    )
    gpus = (
        LIMIT_GPU.pack(
            _uuid_bytes(gpu.uuid),
            gpu.limit_bytes,
            gpu.context_bytes,
            gpu.overhead_bytes,
            gpu.uuid.startswith(_INSTANCE),
        )
        for gpu in limit.gpus
    )
    return b"".join((header, *gpus)).ljust(LIMIT_BYTES, b"\0")


def _limit_gpu(data: bytes, index: int) -> LimitGpu:
    uuid, limit_bytes, context_bytes, overhead_bytes, is_instance = LIMIT_GPU.unpack_from(
        data, LIMIT_HEADER.size + index * LIMIT_GPU.size
    )
    digits = uuid.hex()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    kind = _INSTANCE if is_instance else "GPU-"
    return LimitGpu(f"{kind}{'-'.join(parts)}", limit_bytes, context_bytes, overhead_bytes)


def _uuid_bytes(uuid: str) -> bytes:
    return bytes.fromhex(uuid.partition("-")[2].replace("-", ""))


def _store(path: Path, gpu_uuid: str, word_offset: int, value: int) -> None:
    """Change one aligned word by one store, since the job reads it at any time."""
    uuids = [gpu.uuid for gpu in read_limit(path).gpus]
    if gpu_uuid not in uuids:
        raise EnforcementError(f"the limit file {path} has no GPU {gpu_uuid}")
    at = LIMIT_HEADER.size + uuids.index(gpu_uuid) * LIMIT_GPU.size + word_offset
    with _explaining(path), path.open("r+b") as file, mmap.mmap(file.fileno(), LIMIT_BYTES) as mapped:
        word = ctypes.c_uint64.from_buffer(mapped, at)
        word.value = value
        del word  # the map cannot be closed while something points into it


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    with _explaining(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


@contextmanager
def _explaining(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise EnforcementError(f"{path} cannot be used: {exc.strerror}") from exc


def _text(field: bytes) -> str:
    return os.fsdecode(field.partition(b"\0")[0])
