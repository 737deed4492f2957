"""A process that has loaded everything a supervisor needs and forks one whenever the keeper says so.

It is forked before the keeper opens ledger, driver or thread, and never opens any itself: what it forks starts clean. Its
supervisors are sessions of their own and outlive it and the keeper. If the keeper dies it becomes the next one.
"""

import gc
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn

from pgpu.host.stderr_log import say, say_traceback

_MOST_BYTES = 256
_FAREWELL = b"go"
_LEISURE_SECONDS = 0.2
"""Without an order, before it loads what only some supervisors need."""

_MOURNING_SECONDS = 0.2
"""Before it takes a dead keeper's place: whatever kills each of them is not to busy the machine."""


class Zygote:
    """The keeper's side of it."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self._connection = connection

    def fileno(self) -> int:
        """Return a descriptor that is readable once it died."""
        return self._connection.fileno()

    def start(self, job_id: str) -> bool:
        """Have a supervisor forked; False if there is nobody any more who could."""
        try:
            self._connection.send(job_id.encode())
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Let it go in peace."""
        with suppress(OSError):
            self._connection.send(_FAREWELL)
        self._connection.close()
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _nothing() -> None:
    """Load nothing."""


def fork_zygote(
    load: Callable[[], None],
    become: Callable[[str], None],
    successor: Sequence[str],
    kept_out: Sequence[int],
    load_at_leisure: Callable[[], None] = _nothing,
) -> Zygote:
    """Fork; returns in the keeper alone.

    Args:
        load: Imports what a supervisor needs.
        become: Lives the life of one job's supervisor, whose id it is given.
        successor: argv of another keeper, for the case that this one dies.
        kept_out: Descriptors that are the keeper's alone.
        load_at_leisure: Imports what only some supervisors need, once nothing is asked of it.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if not pid:
        ours.close()
        for descriptor in kept_out:
            os.close(descriptor)
        _be_zygote(theirs, load, become, successor, load_at_leisure)
    theirs.close()
    return Zygote(pid, ours)


def _be_zygote(
    orders: socket.socket,
    load: Callable[[], None],
    become: Callable[[str], None],
    successor: Sequence[str],
    load_at_leisure: Callable[[], None],
) -> NoReturn:
    order = b""
    try:
        load()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody asks how a supervisor ended: the kernel reaps it.
        gc.freeze()  # Pages that nobody collects stay shared.
        if not select.select([orders], [], [], _LEISURE_SECONDS)[0]:
            load_at_leisure()
            gc.freeze()
        while (order := orders.recv(_MOST_BYTES)) and order != _FAREWELL:
            _fork_supervisor(orders, order.decode(), become)
        if not order:
            threading.Event().wait(_MOURNING_SECONDS)
            os.execv(successor[0], list(successor))  # noqa: S606 - another keeper, through no shell
    except BaseException:  # noqa: BLE001 - nothing of the keeper's own code may run on in this copy of it
        say_traceback()
    finally:
        os._exit(0)


def _fork_supervisor(orders: socket.socket, job_id: str, become: Callable[[str], None]) -> None:
    try:
        pid = os.fork()
    except OSError as exc:
        say(f"no supervisor of job {job_id} can be forked: {exc.strerror}")
        return  # The keeper sees in the ledger that nobody came.
    if pid:
        return
    try:
        orders.close()
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        become(job_id)
    except BaseException:  # noqa: BLE001 - likewise: the zygote's loop is not this process's
        say_traceback()
    finally:
        os._exit(0)
