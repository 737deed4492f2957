"""One number in memory that front and worker share: the last call whose handler began.

A worker that dies cannot say what it had begun. The front sends calls ahead, so that the worker never waits for one, and
reads here which of them were only lying in the socket: those go to the next worker, whatever they do. It costs the
worker a store, no system call. It refuses to know when a call ended: replies say that.
"""

import mmap
import os
import struct

_NUMBER = struct.Struct("<Q")


class StartedMark:
    """The number of the last call that was begun; calls are begun in the order of their numbers."""

    def __init__(self, fd: int) -> None:
        """Map the memory file of `create()`; the descriptor stays the caller's."""
        self._memory = mmap.mmap(fd, _NUMBER.size)

    @staticmethod
    def create() -> int:
        """Make the memory file for one worker.

        Returns:
            Its descriptor, the caller's to close.
        """
        fd = os.memfd_create("pgpu-started", os.MFD_CLOEXEC)
        os.ftruncate(fd, _NUMBER.size)
        return fd

    def begin(self, number: int) -> None:
        """Say that this call's handler begins now, and with it that every earlier one has begun."""
        _NUMBER.pack_into(self._memory, 0, number)

    @property
    def last_begun(self) -> int:
        """The last call that was begun; 0: none."""
        number: int = _NUMBER.unpack_from(self._memory)[0]
        return number

    def close(self) -> None:
        """Unmap it."""
        self._memory.close()
