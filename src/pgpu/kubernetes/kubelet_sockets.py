"""gRPC servers on Unix sockets in the kubelet's directories: made whole, closed to others, and made again when taken away.

A socket is bound under a hidden name and then moved to its place, so nobody ever finds one that does not answer, or that
others may open. It refuses a place that holds something else than a socket.
"""

import contextlib
import itertools
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from pgpu.errors import NodeError

_MODE = 0o600
_THREADS = 32
_LONGEST_PATH = 107
"""Bytes of a Unix socket's path, sun_path of unix(7) without its end."""

_GRACE_SECONDS = 5.0
_OPTIONS = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 16 << 20))


class SocketServer:
    """A gRPC server at one path."""

    def __init__(self, path: Path, add_services: Callable[[grpc.Server], None]) -> None:
        """Nothing is made yet.

        Args:
            path: Absolute; its directory must be there when the server starts.
            add_services: Adds them to a server; called again for each server that is made.
        """
        self.path = path
        self._add_services = add_services
        self._server: grpc.Server | None = None
        self._identity: tuple[int, int] | None = None
        self._numbers = itertools.count()

    @property
    def is_there(self) -> bool:
        """Whether the socket that is found at the path is this server's."""
        return self._identity is not None and _identity(self.path) == self._identity

    def start(self) -> None:
        """Serve, in place of whoever served there before.

        Raises:
            NodeError: The socket cannot be made.
        """
        scratch = self.path.with_name(f".{self.path.name}.{os.getpid()}.{next(self._numbers)}")
        _refuse_long(self.path, scratch)
        _refuse_other_files(self.path)
        server = grpc.server(ThreadPoolExecutor(_THREADS, thread_name_prefix=self.path.name), options=_OPTIONS)
        self._add_services(server)
        try:
            identity = self._put_in_place(server, scratch)
        except (OSError, RuntimeError) as exc:
            server.stop(None)
            scratch.unlink(missing_ok=True)
            why = exc.strerror if isinstance(exc, OSError) else "see the line of gRPC above"
            raise NodeError(f"{self.path} cannot be made: {why}") from exc
        self._stop_server()
        self._server, self._identity = server, identity

    def _put_in_place(self, server: grpc.Server, scratch: Path) -> tuple[int, int] | None:
        server.add_insecure_port(f"unix:{scratch}")
        scratch.chmod(_MODE)
        server.start()
        identity = _identity(scratch)
        scratch.replace(self.path)
        return identity

    def stop(self) -> None:
        """Stop serving, once the calls that run are answered; the socket goes first, so that nobody calls in vain."""
        if self.is_there:
            with contextlib.suppress(OSError):
                self.path.unlink()
        self._stop_server()
        self._identity = None

    def _stop_server(self) -> None:
        if self._server is not None:
            self._server.stop(_GRACE_SECONDS).wait()
            self._server = None


def _refuse_long(path: Path, scratch: Path) -> None:
    if len(os.fsencode(scratch)) > _LONGEST_PATH:
        raise NodeError(f"{path} is longer than a socket's path may be", hint="choose a shorter --kubelet-dir")


def _refuse_other_files(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise NodeError(f"{path} is no socket, and stays", hint="remove it")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
