"""Memory files shared between processes: bodies too large for a frame, and the started mark of a worker.

A memory file (memfd) has no name in any directory and is freed with its last descriptor. The process that receives a
descriptor closes it.
"""

import errno
import fcntl
import mmap
import os
import struct

from pgpu.functions.ipc.call_messages import INLINE_BYTES, Body

_SEALED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_NUMBER = struct.Struct("<Q")
_MOST_TAKEN = 511
"""Numbers of calls that were taken back and that the worker may not have read yet; with the started mark they fill a page."""


class GrowingFile:
    """A memory file for a body that arrives in pieces."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("pgpu-body", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.size_bytes = 0

    def add(self, piece: Body) -> None:
        view = memoryview(piece)
        # write() takes at most about 2 GiB at once.
        while view:
            written = os.write(self.fd, view)
            view = view[written:]
            self.size_bytes += written

    def seal(self) -> int:
        """Seal the file against changes and truncation, and return its descriptor, which the caller then owns."""
        # Without the seals a writer could truncate the file under its reader: SIGBUS.
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALED)
        fd, self.fd = self.fd, -1
        return fd

    def close(self) -> None:
        """Close the file, unless it was sealed."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def write_body(body: Body) -> int:
    """Write a whole body into a sealed memory file and return its descriptor, which the caller then owns."""
    growing = GrowingFile()
    try:
        growing.add(body)
        return growing.seal()
    finally:
        growing.close()


def split_body(body: bytes) -> tuple[bytes, int | None]:
    """Return a body as messages carry it: inline, or empty with the descriptor of a memory file, which the caller then owns."""
    return (body, None) if len(body) <= INLINE_BYTES else (b"", write_body(body))


def map_body(fd: int) -> memoryview:
    """Map a memory file and close its descriptor; the mapping lives as long as the view.

    The view is writable, as handlers expect of arrays: pages are copied on write and the file does not change.

    Raises:
        OSError: The descriptor cannot be mapped, or is not sealed: its writer could truncate it, and a read would then raise SIGBUS.
    """
    try:
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALED != _SEALED:
            raise OSError("the memory file of a body is not sealed")
        size_bytes = os.fstat(fd).st_size
        if size_bytes == 0:
            return memoryview(b"")
        # A mapping stays valid after its descriptor is closed.
        return memoryview(mmap.mmap(fd, size_bytes, access=mmap.ACCESS_COPY))
    finally:
        os.close(fd)


def close_file(fd: int | None) -> None:
    if fd is not None:
        os.close(fd)


class StartedMark:
    """Which calls a worker has started: a memory file shared with its replica, with a number and with record locks.

    The replica sends calls ahead of time. When a worker dies, the number separates the calls that its handler had started
    from those that were still in the socket and can be given to the next worker.

    While both live, each call belongs to the process that locks the byte of its number first: to the worker, which then
    starts it, or to the replica, which takes it back. The kernel decides, so no call is started and taken back. It drops the locks
    of a process that dies: so each side records what it has locked before it acts, and reads the other's record behind its lock.
    """

    def __init__(self, fd: int) -> None:
        """Map the memory file from `create()`; the caller still owns the descriptor."""
        self._memory = mmap.mmap(fd, _place(_MOST_TAKEN))
        # Closing any descriptor of the file drops this process's locks (fcntl(2)): the caller closes its own before the first call.
        self._fd = os.dup(fd)

    @staticmethod
    def create() -> int:
        """Create the memory file for one worker and return its descriptor, which the caller then owns."""
        fd = os.memfd_create("pgpu-started", os.MFD_CLOEXEC)
        os.ftruncate(fd, _place(_MOST_TAKEN))
        return fd

    def begin(self, number: int) -> bool:
        """Record that the handler of this call starts now; False: the replica has taken the call back."""
        # The record: a replica that died after it took the call back has dropped its lock, and another worker may run the call.
        if not self._lock(number) or _NUMBER.unpack_from(self._memory, _place(number % _MOST_TAKEN))[0] == number:
            return False
        # Calls may start out of order; the mark never goes back. Read only after the worker's death. A kill in the middle of the
        # store could tear the number: accepted, it takes nanoseconds.
        if number > self.last_begun:
            _NUMBER.pack_into(self._memory, 0, number)
        return True

    def take(self, number: int) -> bool:
        """Take a call back; False: the worker has begun it, or a later one."""
        if number <= self.last_begun or not self._lock(number):
            return False
        if number <= self.last_begun:
            # The worker has begun this call and died, or a later one and lives. Unlocked for the second case; should it have met
            # the lock in the microsecond between, the call is answered at its deadline. Accepted: it is not run twice.
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, number)
            return False
        _NUMBER.pack_into(self._memory, _place(number % _MOST_TAKEN), number)
        return True

    def _lock(self, number: int) -> bool:
        """Lock a call for this process; False: the other one has it."""
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except OSError as error:
            if error.errno not in {errno.EACCES, errno.EAGAIN}:
                raise
            return False
        return True

    @property
    def last_begun(self) -> int:
        """Number of the last call that started; 0: none."""
        number: int = _NUMBER.unpack_from(self._memory)[0]
        return number

    def close(self) -> None:
        self._memory.close()
        os.close(self._fd)


def _place(index: int) -> int:
    """Return the offset of an entry in the table of calls that were taken back, behind the number of the last one begun."""
    return _NUMBER.size * (1 + index)
