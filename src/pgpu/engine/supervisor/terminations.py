"""The signals that this process gets itself: a SIGTERM means the job too, those of terminals mean nobody here."""

import signal
import socket
from collections.abc import Callable

from pgpu.engine.event_loop import READABLE, EventLoop


class Terminations:
    """Turns a SIGTERM of this process into a call from the loop; the signals of terminals are none of its business."""

    def __init__(self, loop: EventLoop, call: Callable[[], None]) -> None:
        self._loop = loop
        self._call = call
        self._reader, self._writer = socket.socketpair(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # A handler that does nothing, since a job would inherit that a signal is ignored.
            signal.signal(number, lambda *_: None)
        # Who started this process may have blocked them; a job would inherit that, too.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        loop.watch(self._reader.fileno(), READABLE, lambda _: self._read())

    def close(self) -> None:
        """Leave SIGTERM without effect and let go of the sockets."""
        signal.set_wakeup_fd(-1)
        self._loop.forget(self._reader.fileno())
        self._reader.close()
        self._writer.close()

    def _read(self) -> None:
        if signal.SIGTERM in self._reader.recv(64):
            self._call()
