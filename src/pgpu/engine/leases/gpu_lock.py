"""One ledger for each real GPU: two ledgers on one GPU would each grant all of its memory.

Every process of a ledger holds a shared `flock` on one machine-wide file for each GPU while it runs jobs. The file names the
ledger: by device and inode of its directory, since a path may mean another directory in another container, and by its path,
for error messages. A process of another ledger is refused. Another user can hold a lock without using the GPU (never the
reverse): an accepted risk where no server owns the GPUs. Simulated GPUs belong to their state directory and need no lock.
"""

import fcntl
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from pgpu.errors import NodeError
from pgpu.host.file_lock import try_flock
from pgpu.model import Gpu

LOCK_DIRECTORIES = (Path("/run/lock/pgpu"), Path("/dev/shm/pgpu-locks"))  # noqa: S108 - made sticky, files are checked
"""The first usable one. All users find the same one where /run/lock is writable for all, or where an operator made
/run/lock/pgpu with mode 1777."""

_DIRECTORY_MODE = 0o1777
_FILE_MODE = 0o666
_MOST_BYTES = 4096
_MOST_TRIES = 100
_TRY_SECONDS = 0.01


class GpuLocks:
    """The locks that this process holds, until it ends."""

    def __init__(self, ledger_path: Path, directories: Sequence[Path] = LOCK_DIRECTORIES) -> None:
        """Make an empty set of locks.

        Args:
            ledger_path: Of this process's ledger; its directory is made with the first lock.
            directories: Of the lock files, in order of preference.
        """
        self._ledger_path = ledger_path
        self._directories = directories
        self._descriptors: dict[str, int] = {}

    def hold(self, gpus: Sequence[Gpu]) -> None:
        """Lock every real GPU among these; does nothing for those that are locked already.

        Raises:
            NodeError: Another ledger or user holds one, or the locks' directory cannot be used.
        """
        for gpu in gpus:
            if gpu.is_simulated or gpu.uuid in self._descriptors:
                continue
            descriptor = self._open(gpu.uuid)
            try:
                self._take(descriptor, gpu)
            except BaseException:  # Ctrl-C too: an open descriptor would keep the lock, and all other ledgers out.
                os.close(descriptor)
                raise
            self._descriptors[gpu.uuid] = descriptor

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Descriptors of the locks that are held; a process that inherits one holds the lock as well."""
        return tuple(self._descriptors.values())

    def close(self) -> None:
        """Release all locks, as far as no other process inherited them."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def _open(self, gpu_uuid: str) -> int:
        directory = _choose_directory(self._directories)
        path = directory / f"{gpu_uuid}.lock"
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            try:
                # First without O_CREAT: the kernel refuses it on other users' files in sticky directories
                # (fs.protected_regular).
                return os.open(path, flags)
            except FileNotFoundError:
                descriptor = os.open(path, flags | os.O_CREAT, _FILE_MODE)
                os.fchmod(descriptor, _FILE_MODE)
                return descriptor
        except OSError as exc:
            raise NodeError(f"the lock {path} of a GPU cannot be opened: {exc.strerror}") from exc

    def _take(self, descriptor: int, gpu: Gpu) -> None:
        # The first process of a ledger gets the exclusive lock and writes the ledger's name; all of them hold a shared one
        # then.
        own = _describe_ledger(self._ledger_path)
        if try_flock(descriptor, fcntl.LOCK_EX):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(own).encode(), 0)
        # flock does not convert atomically: another ledger may get the lock in between. So the name is read again under the
        # shared one.
        for _ in range(_MOST_TRIES):
            if try_flock(descriptor, fcntl.LOCK_SH):
                break
            threading.Event().wait(_TRY_SECONDS)  # another process is writing its name
        try:
            found = json.loads(os.pread(descriptor, _MOST_BYTES, 0))
        except ValueError:  # damaged: all users may write to the file
            found = {}
        found = found if isinstance(found, dict) else {}
        if found.get("identity") != own["identity"]:
            has_names = {"ledger", "user"} <= found.keys()
            name = f"the ledger {found['ledger']} of user {found['user']}" if has_names else "another pgpu"
            raise NodeError(
                f"GPU {gpu.place} ({gpu.name}, {gpu.uuid}) is shared out by {name}",
                hint="use that --state-dir, or wait until its jobs have ended",
            )


def _choose_directory(directories: Sequence[Path]) -> Path:
    for directory in directories:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if directory.stat().st_uid == os.geteuid():
                directory.chmod(_DIRECTORY_MODE)
        except OSError:
            continue
        if os.access(directory, os.W_OK | os.X_OK):
            return directory
    raise NodeError(f"no directory for the locks of GPUs: tried {', '.join(map(str, directories))}")


def _describe_ledger(ledger_path: Path) -> dict[str, object]:
    path = ledger_path.resolve()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory = path.parent.stat()
    except OSError as exc:
        raise NodeError(f"the ledger's directory {path.parent} cannot be used: {exc.strerror}") from exc
    try:
        import getpass  # noqa: PLC0415 - processes without real GPUs hold no locks

        user = getpass.getuser()
    except (KeyError, OSError):  # a UID without a name
        user = str(os.geteuid())
    identity = [directory.st_dev, directory.st_ino, path.name, os.geteuid()]
    return {"ledger": str(path), "user": user, "identity": identity}
