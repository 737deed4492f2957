"""The files of a slice on the runtime tmpfs, laid out as described in `pgpu.model.lease`.

A slice has hard links to copies of the C libraries, so that an upgrade does not remove one from a running job. Callers
check that a slice is not held before they remove it.
"""

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path

from pgpu import tmpfs
from pgpu.enforcement import meter, trace
from pgpu.errors import EnforcementError
from pgpu.host.atomic_file import write_atomically
from pgpu.host.file_tree import remove_tree
from pgpu.libraries import CUDA_SHIM, NVML_SHIM
from pgpu.structs import Struct
from pgpu.tmpfs import CAP_BYTES, mount_capped, unmount

DRIVER_FILES = ("libcuda.so.1", "libnvidia-ml.so.1")
"""Names of the driver's libraries, behind the shims, in a slice's `driver/`."""

IN_JOB = Path("/.pgpu")
"""Path of the slice in a job with its own mount namespace."""

LAID_OUT = "container.json"
"""In a slice's directory if a container was created for it and waits: the record of that container."""

_PRELOAD_LINES = f"{IN_JOB / CUDA_SHIM}\n{IN_JOB / NVML_SHIM}\n".encode()
_HINTS = {
    errno.ENOSPC: "free memory on that tmpfs",
    errno.EFBIG: "run pgpu with a larger `ulimit -f`, at least 1024",
}
_LIBRARY_MODE = 0o555
_USAGE_MODE = 0o666


class SliceFiles(Struct, frozen=True, dict=True):
    """Paths of one slice. `home` is closed to other users; the parts that a job sees are below it."""

    home: Path

    @property
    def view(self) -> Path:
        """Mounted as `/.pgpu`."""
        return self.home / "view"

    @cached_property
    def limit(self) -> Path:
        return self.view / "limit"

    @property
    def meter(self) -> Path:
        """Directory of the usage file, on a file system of limited size, since the job can write to it."""
        return self.home / "meter"

    @cached_property
    def usage(self) -> Path:
        return self.meter / "usage"

    @cached_property
    def time(self) -> Path:
        """The job's report of its GPU time."""
        return self.meter / tmpfs.TIME

    @property
    def board(self) -> Path:
        """Directory with the reports of all jobs of this machine."""
        return self._runtime_directory / tmpfs.BOARD

    @property
    def _runtime_directory(self) -> Path:
        return self.home.parent.parent

    def make(
        self, libraries: Mapping[str, Path], owner_uid: int, gpu_uuids: Sequence[str] = (), *, is_traced: bool = False
    ) -> None:
        """Create all files except the limit.

        Args:
            libraries: Path inside the slice (`driver/libcuda.so.1`) and the file that is linked there.
            owner_uid: The job's owner.
            gpu_uuids: The GPUs of its lease.
            is_traced: Reserve space for a log of the job's GPU work.

        Raises:
            EnforcementError: The tmpfs is full, not writable, or mounted noexec.
        """
        with _explaining(self.home):
            self.home.mkdir(mode=0o700, parents=True)
            self._make_meter(owner_uid, gpu_uuids, is_traced=is_traced)
            _make_public_directory(self.view)
            _make_public_directory(self.view / "driver")
            # Empty files and directories are mount points: inside the job, the view itself is mounted read-only.
            view = os.fspath(self.view)
            _make_file(f"{view}/usage", 0o444)
            _make_file(f"{view}/{tmpfs.TIME}", 0o444)
            _make_public_directory(f"{view}/{tmpfs.BOARD}")
            _make_file(f"{view}/ld.so.preload", 0o644, _PRELOAD_LINES)
            for name, source in libraries.items():
                os.link(source, f"{view}/{name}")
        # A file system that is mounted noexec refuses mmap(PROT_EXEC): every program of the job would start without the shim.
        if os.statvfs(self.view).f_flag & os.ST_NOEXEC:
            raise EnforcementError(
                f"libraries cannot be loaded from {self.view}: it is mounted noexec",
                hint="set runtime_dir to a tmpfs without noexec, such as a directory below /dev/shm",
            )

    @property
    def is_laid_out(self) -> bool:
        """True if a waiting container sees the slice's files already, so that only the limit is missing."""
        return os.path.exists(f"{self.home}/{LAID_OUT}")  # noqa: PTH110 - twice for each job

    def forget_limit(self) -> None:
        """Remove the limit of a laid out slice after a failed start."""
        with _explaining(self.home):
            self.limit.unlink(missing_ok=True)

    def make_placeholders(self) -> None:
        """Create empty files as mount points for the real driver's libraries."""
        with _explaining(self.home):
            for name in DRIVER_FILES:
                _make_file(self.view / "driver" / name, 0o444)

    def make_simulated_mount_point(self) -> None:
        """Create the mount point for the simulated GPUs' state."""
        with _explaining(self.home):
            _make_public_directory(self.view / "simgpu")

    def link_simulated_state(self, state_directory: Path) -> None:
        """Link the simulated GPUs' state to the place where a mount would be."""
        with _explaining(self.home):
            (self.view / "simgpu").symlink_to(state_directory)

    def remember_limit_bytes(self, limit_bytes: int) -> None:
        """Store the largest limit of the slice so far: memory allocated under it may still be held."""
        with _explaining(self.home):
            write_atomically(self._largest, str(max(limit_bytes, self.largest_limit_bytes())).encode(), 0o600)

    def largest_limit_bytes(self) -> int:
        """Return the largest stored limit; 0 if the limit never changed."""
        try:
            return int(self._largest.read_text(encoding="ascii"))
        except FileNotFoundError:
            return 0

    def remember_cgroup(self, cgroup: Path) -> None:
        """Store the control group that has the slice's limits."""
        with _explaining(self.home):
            write_atomically(self.home / "cgroup", os.fsencode(cgroup), 0o600)

    def cgroup(self) -> Path | None:
        """Return the stored control group; None if there is none."""
        try:
            return Path(os.fsdecode((self.home / "cgroup").read_bytes()))
        except FileNotFoundError:
            return None

    @cached_property
    def _largest(self) -> Path:
        return self.home / "largest-limit"

    def remove(self) -> None:
        """Remove the slice; no effect if it is gone.

        Raises:
            EnforcementError: It cannot be removed.
        """
        with _explaining(self.home), contextlib.suppress(FileNotFoundError):
            if not os.path.lexists(self.home):
                return
            tmpfs.leave_board(str(self._runtime_directory), str(self.meter))
            unmount(self.meter)  # a mount point cannot be removed (EBUSY)
            remove_tree(self.home)

    def _make_meter(self, owner_uid: int, gpu_uuids: Sequence[str], *, is_traced: bool) -> None:
        self.meter.mkdir(mode=0o700)
        mount_capped(self.meter, CAP_BYTES + (trace.USAGE_BYTES if is_traced else 0))
        # Allocate all pages now. A page that is allocated on first access raises SIGBUS in cuInit if the tmpfs has become full,
        # and a file that a process extends raises SIGXFSZ under `ulimit -f`.
        _make_file(self.usage, _USAGE_MODE, allocated_bytes=meter.USAGE_BYTES)
        if is_traced:
            trace.prepare(self.usage)
        tmpfs.join_board(str(self._runtime_directory), str(self.meter), owner_uid, gpu_uuids)


class LibraryStore:
    """Copies of the C libraries on the runtime tmpfs, one for each content; slices link to them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def copy_of(self, library: Path) -> Path:
        """Return the copy of a library, creating it if it is missing. Safe for concurrent processes (atomic rename).

        Raises:
            EnforcementError: The copy cannot be created.
        """
        with _explaining(self._directory):
            found = library.stat()
            copy = self._directory / _copy_name(library, found.st_ino, found.st_mtime_ns, found.st_size)
            if not copy.exists():
                content = library.read_bytes()
                copy = self._directory / _name_of(library, content)  # it may have been upgraded since
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_atomically(copy, content, _LIBRARY_MODE)
            return copy


def _name_of(library: Path, content: bytes) -> str:
    from hashlib import sha256  # noqa: PLC0415 - faster for whole libraries than `pgpu.digests`

    return f"{sha256(content).hexdigest()[:16]}-{library.name}"


@lru_cache(maxsize=64)
def _copy_name(library: Path, _inode: int, _changed_ns: int, _size: int) -> str:
    """Return the name of a library's copy; cached until the file is another one or was changed."""
    return _name_of(library, library.read_bytes())


def _make_file(path: str | Path, mode: int, content: bytes = b"", *, allocated_bytes: int = 0) -> None:
    # Not `Path.write_bytes`: a slice has many files, and a job waits for all of them.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        os.fchmod(descriptor, mode)  # independent of the umask
        if content:
            os.write(descriptor, content)
        if allocated_bytes:
            os.posix_fallocate(descriptor, 0, allocated_bytes)
    finally:
        os.close(descriptor)


def _make_public_directory(path: str | Path) -> None:
    os.mkdir(path)  # noqa: PTH102 - as for files
    os.chmod(path, 0o755)  # noqa: PTH101, S103 - independent of the umask; users other than root have their jobs' views


@contextlib.contextmanager
def _explaining(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        message = f"the slice's files in {path} cannot be handled: {exc.strerror}"
        raise EnforcementError(message, hint=_HINTS.get(exc.errno or 0)) from exc
