"""`python -m pgpu.app.oci.nursery CONFIG STATE_DIR SOCKET JOB`: has loaded all of pgpu already when a container is created.

Loading takes longer than a container's creation may. So the first of these looks after its own container in a child, stays
for a while, and makes a child for each container that `create` names on its socket. It opens no ledger and asks no driver
itself, since neither may be carried over a fork. A pgpu that was replaced meanwhile makes it go.
"""

import contextlib
import fcntl
import gc
import os
import select
import socket
import sys
from collections.abc import Iterator
from typing import NoReturn

from pgpu.app.oci.attendant import attend_to
from pgpu.app.oci.runc_call import stamp
from pgpu.host.stderr_log import log_to_stderr, say_traceback

IDLE_SECONDS = 900.0
"""How long it stays after the last container; a development session creates one now and then."""

_BACKLOG = 128
_REQUEST_BYTES = 256
_PATIENCE_SECONDS = 1.0
_LOOK_SECONDS = 30.0


def main() -> None:
    """Look after one container, then after others."""
    log_to_stderr()
    config, state_dir, address, job_id = sys.argv[1:]
    gc.freeze()
    nursery = _Nursery(config, state_dir)
    nursery.attend(job_id)
    with contextlib.suppress(OSError), _listening(address) as listener:
        nursery.serve(listener)


class _Nursery:
    """Makes a child for each container."""

    def __init__(self, config: str, state_dir: str) -> None:
        self._config = config
        self._state_dir = state_dir
        self._listener: socket.socket | None = None
        self._loaded = _loaded()

    def attend(self, job_id: str) -> None:
        """Have a child look after one container."""
        if os.fork() == 0:
            self._become_attendant(job_id)

    def serve(self, listener: socket.socket) -> None:
        """Take requests until there was none for long, or this program was replaced."""
        self._listener = listener
        while _is_asked(listener):
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.settimeout(_PATIENCE_SECONDS)
                job_id = connection.recv(_REQUEST_BYTES).decode("ascii", "replace").strip()
                if _loaded() != self._loaded:
                    return
                self.attend(job_id)
                connection.sendall(b"+")

    def _become_attendant(self, job_id: str) -> NoReturn:
        code = 1
        try:
            os.setsid()
            if self._listener is not None:
                self._listener.close()
            attend_to(self._config, self._state_dir, job_id)
            code = 0
        except BaseException:  # noqa: BLE001 - whatever it is, the child must not go on as its parent
            say_traceback()
        finally:
            os._exit(code)


def _is_asked(listener: socket.socket) -> bool:
    """Wait until somebody asks; False where nobody did for long. Children that ended are let go meanwhile."""
    for _ in range(round(IDLE_SECONDS / _LOOK_SECONDS)):
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if select.select([listener], [], [], _LOOK_SECONDS)[0]:
            return True
    return False


def _loaded() -> dict[str, list[int] | None]:
    """Return what tells whether any module of ours that is loaded was replaced."""
    files = (module.__file__ for name, module in tuple(sys.modules.items()) if name.partition(".")[0] == "pgpu")
    return {path: stamp(path) for path in files if path}


@contextlib.contextmanager
def _listening(address: str) -> Iterator[socket.socket]:
    """Be the only one on this socket."""
    descriptor = os.open(f"{address}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(address)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(address)
            listener.listen(_BACKLOG)
            yield listener
            os.unlink(address)
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    main()
