"""gRPC over the Unix sockets in the kubelet's directories, without generated service code.

A server's socket is bound under a hidden name, gets its mode, and is then renamed into place: no process ever finds a socket
that does not answer yet or that other users can open. Handlers and callers are built from the service descriptors.
"""

import contextlib
import itertools
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from pgpu.errors import NodeError

_MODE = 0o600
# More than a node has pods (250 on large ones): Prepare calls may wait for the Unprepare of other pods, which needs a
# thread, too. Threads are made as calls need them.
_THREADS = 512
# Size of `sun_path` in unix(7), without its terminating zero.
_LONGEST_PATH_BYTES = 107

_GRACE_SECONDS = 5.0
_SERVER_OPTIONS = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 16 << 20))
# Limit of one answer of the kubelet. 1,000 ids of 100 characters for each of 250 pods are 25 MB; gRPC's default is 4
# MB.
_LONGEST_MESSAGE_BYTES = 64 << 20


def add_service(
    server: grpc.Server, service: ServiceDescriptor, implementation: object, full_name: str | None = None
) -> None:
    """Register an object whose methods are named as the service's.

    Args:
        server: Not started yet.
        service: Gives methods and message types.
        implementation: Has one method `(request, context)` for each method of the service.
        full_name: Under which the service is found; None: the descriptor's own name.
    """
    handlers = {}
    for method in service.methods:
        make = grpc.unary_stream_rpc_method_handler if method.server_streaming else grpc.unary_unary_rpc_method_handler
        handlers[method.name] = make(
            getattr(implementation, method.name),
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
    # Only names and bytes appear on the wire: a service may be served under another version's name.
    name = full_name or service.full_name
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))


def method_caller(
    channel: grpc.Channel, service: ServiceDescriptor, method_name: str, full_name: str | None = None
) -> Callable[..., Any]:
    """Return a callable `(request, timeout=…)` for one method; arguments as of `add_service`."""
    method: MethodDescriptor = service.methods_by_name[method_name]
    make = channel.unary_stream if method.server_streaming else channel.unary_unary
    caller: Callable[..., Any] = make(
        f"/{full_name or service.full_name}/{method_name}",
        request_serializer=GetMessageClass(method.input_type).SerializeToString,
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )
    return caller


def open_channel(socket: Path) -> grpc.Channel:
    """Connect to a Unix socket, with a connection of its own.

    gRPC shares connections between channels of the same address by default, and a shared connection to a replaced socket
    waits in its back-off before it connects anew.
    """
    options = (("grpc.max_receive_message_length", _LONGEST_MESSAGE_BYTES), ("grpc.use_local_subchannel_pool", 1))
    return grpc.insecure_channel(f"unix:{socket}", options=options)


class SocketServer:
    """A gRPC server at one path; `start` may be called again when the socket was removed."""

    def __init__(self, path: Path, add_services: Callable[[grpc.Server], None]) -> None:
        """Create nothing yet.

        Args:
            path: Absolute; its directory must exist when the server starts.
            add_services: Registers the services; called for each server that is created.
        """
        self.path = path
        self._add_services = add_services
        self._server: grpc.Server | None = None
        self._identity: tuple[int, int] | None = None
        self._numbers = itertools.count()

    @property
    def is_in_place(self) -> bool:
        """Whether the socket at the path is this server's: others may remove or replace it."""
        return self._identity is not None and _identity(self.path) == self._identity

    def start(self) -> None:
        """Serve at the path, in place of any socket that is there.

        Raises:
            NodeError: The socket cannot be created, or a file that is no socket is in its place.
        """
        hidden = self.path.with_name(f".{self.path.name}.{os.getpid()}.{next(self._numbers)}")
        if len(os.fsencode(hidden)) > _LONGEST_PATH_BYTES:
            raise NodeError(f"{self.path} is longer than a socket's path may be", hint="choose a shorter --kubelet-dir")
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(self.path.lstat().st_mode):
                raise NodeError(f"{self.path} is no socket, and stays", hint="remove it")
        server = grpc.server(ThreadPoolExecutor(_THREADS, thread_name_prefix=self.path.name), options=_SERVER_OPTIONS)
        self._add_services(server)
        try:
            server.add_insecure_port(f"unix:{hidden}")
            # Before the rename, while no other process knows the name. gRPC binds with the umask's mode.
            hidden.chmod(_MODE)
            server.start()
            identity = _identity(hidden)
            hidden.replace(self.path)
        except (OSError, RuntimeError) as exc:
            server.stop(None)
            hidden.unlink(missing_ok=True)
            why = exc.strerror if isinstance(exc, OSError) else "see the line of gRPC above"
            raise NodeError(f"{self.path} cannot be created: {why}") from exc
        # The former server stops only now, so that its running calls end while the new one accepts calls already.
        self._stop_server()
        self._server, self._identity = server, identity

    def stop(self) -> None:
        """Remove the socket first, so that no new call arrives, then wait for the calls that run."""
        # Another driver may have replaced the socket already: its file is left alone.
        if self.is_in_place:
            with contextlib.suppress(OSError):
                self.path.unlink()
        self._stop_server()
        self._identity = None

    def _stop_server(self) -> None:
        if self._server is not None:
            self._server.stop(_GRACE_SECONDS).wait()
            self._server = None


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
