"""Bodies too large for a frame: memory files that one process writes and the other maps.

Nothing of them is ever in a directory, and they are gone with their last descriptor. It refuses to keep one open for
the reader: who takes it, closes it.
"""

import fcntl
import mmap
import os

from pgpu.functions.ipc.call_frames import INLINE_BYTES
from pgpu.functions.ipc.messages import Body

_SEALED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class GrowingFile:
    """A body that comes in pieces."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("pgpu-body", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.size_bytes = 0

    def add(self, piece: Body) -> None:
        """Write one more piece at the end."""
        view = memoryview(piece)
        while view:
            written = os.write(self.fd, view)
            view = view[written:]
            self.size_bytes += written

    def seal(self) -> int:
        """End it, so that nobody changes or cuts it under its reader; the descriptor is the caller's from now on."""
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALED)
        fd, self.fd = self.fd, -1
        return fd

    def close(self) -> None:
        """Give it up, unless it was sealed."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def write_body(body: Body) -> int:
    """Put a whole body into a memory file.

    Returns:
        Its descriptor, the caller's to close.
    """
    growing = GrowingFile()
    try:
        growing.add(body)
        return growing.seal()
    finally:
        growing.close()


def split_body(body: bytes) -> tuple[bytes, int | None]:
    """Return a body as it goes into a message: itself, or empty with the descriptor of a memory file, the caller's to close."""
    return (body, None) if len(body) <= INLINE_BYTES else (b"", write_body(body))


def map_body(fd: int) -> memoryview:
    """Map a memory file; it stays mapped as long as somebody holds the view. The descriptor is closed.

    The view may be written to, as handlers do with arrays: pages are copied when they are, and the file stays as it is.

    Raises:
        OSError: It is no file that can be mapped, or one that its writer could still cut short: a fault for the reader.
    """
    try:
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALED != _SEALED:
            raise OSError("a body that is not sealed")
        size_bytes = os.fstat(fd).st_size
        if size_bytes == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(fd, size_bytes, access=mmap.ACCESS_COPY))
    finally:
        os.close(fd)
