"""An engine's container as a running job: its end, its signals, its processes.

Its streams are connected to the engine. The container is never removed here, and an unknown exit code stays None.
"""

import contextlib
import fcntl
import os
import select
import signal
import struct
from pathlib import Path

from pgpu.errors import RuntimeUnavailableError
from pgpu.model import ProcessHolder
from pgpu.runtimes.container_record import Container
from pgpu.runtimes.oci.engine import AwaitedExit, signal_container

_KILL_DEADLINE_SECONDS = 10.0
_SIGNAL_EXIT_BASE = 128

_GET_INFO = 0xC040FF0B
_INFO = struct.Struct("=QQ11Ii")
_INFO_EXIT = 1 << 3
"""Source: <linux/pidfd.h>: PIDFD_GET_INFO returns the exit status since Linux 6.15."""


class OciJob:
    """The `RunningJob` of a container in its slice."""

    def __init__(self, container: Container, holder: ProcessHolder, pidfd: int, awaited: AwaitedExit) -> None:
        """Attach to a container.

        Args:
            container: Its record.
            holder: Its first process.
            pidfd: Of that process; closed by `close`.
            awaited: The pending request for its exit code.
        """
        self._container = container
        self._holder = holder
        self._pidfd = pidfd
        self._awaited = awaited
        self._namespace = _pid_namespace(holder.pid)
        self._exit_code: int | None = None

    @property
    def holder(self) -> ProcessHolder:
        return self._holder

    def fileno(self) -> int:
        """Return the pidfd: it polls readable once the first process, and so the container, has ended."""
        return self._pidfd

    def exit_code(self) -> int | None:
        """Return the container's exit code after its end; None while it runs, or if it is unknown."""
        if self._exit_code is None and not self.is_alive():
            self._exit_code = _code_of_kernel(self._pidfd)
            if self._exit_code is None:
                self._exit_code = self._awaited.code()
        return self._exit_code

    def is_alive(self) -> bool:
        """True while the first process runs."""
        return not select.select([self._pidfd], [], [], 0)[0]

    def owns(self, pid: int) -> bool:
        """True if a process of the host runs in this container, started by it or by `docker exec`."""
        namespace = _pid_namespace(pid)
        if namespace is not None and namespace == self._namespace:
            return True
        with contextlib.suppress(OSError):
            return self._container.container_id in Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii")
        return False

    def signal(self, number: int) -> None:
        """Send a signal to the first process; no effect if it has ended."""
        if self.is_alive() and not signal_container(self._container.engine, self._container.container_id, number):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """End the container.

        Raises:
            RuntimeUnavailableError: Its first process is still there after 10 s.
        """
        self.signal(signal.SIGKILL)
        if not select.select([self._pidfd], [], [], _KILL_DEADLINE_SECONDS)[0]:
            raise RuntimeUnavailableError(f"the container {self._container.container_id[:12]} does not end")

    def resize_terminal(self, size: os.terminal_size) -> None:
        """No effect: its terminal is the engine's."""

    def close(self) -> None:
        """Release the descriptors; a running container continues."""
        self._awaited.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def _pid_namespace(pid: int) -> str | None:
    """Return a process's PID namespace; None for this process's own, which all processes of the host share."""
    try:
        found = str(Path(f"/proc/{pid}/ns/pid").readlink())
        return None if found == str(Path("/proc/self/ns/pid").readlink()) else found
    except OSError:
        return None


def _code_of_kernel(pidfd: int) -> int | None:
    """Return the exit code that the kernel keeps for a pidfd; None if it keeps none."""
    buffer = bytearray(_INFO.pack(_INFO_EXIT, 0, *([0] * 11), 0))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, buffer)
    except OSError:
        return None
    fields = _INFO.unpack(buffer)
    if not fields[0] & _INFO_EXIT:
        return None
    return _exit_code_of(fields[-1])


def _exit_code_of(status: int) -> int:
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else _SIGNAL_EXIT_BASE + os.WTERMSIG(status)
