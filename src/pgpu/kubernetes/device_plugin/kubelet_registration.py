"""How the kubelet gets to know the plugin, and a kubelet that was started anew does again.

A kubelet that starts removes every socket of its directory and knows no plugin: until we register there are no units on the node.
It is told from the one before by its socket: device, inode and time of change, since inodes are used again.
"""

from collections.abc import Callable
from pathlib import Path

import grpc

from pgpu.errors import NodeError
from pgpu.kubernetes.device_plugin.plugin_service import options
from pgpu.kubernetes.device_plugin.unit_ids import RESOURCE
from pgpu.kubernetes.generated import device_plugin_v1beta1_pb2 as wire
from pgpu.kubernetes.generated.device_plugin_v1beta1_pb2_grpc import RegistrationStub
from pgpu.kubernetes.kubelet_sockets import SocketServer

DIRECTORY = Path("device-plugins")
"""In the kubelet's directory."""

SOCKET = "pgpu-gpu-memory.sock"
"""Ours, beside the kubelet's."""

_KUBELET_SOCKET = "kubelet.sock"
_VERSION = "v1beta1"
_ANSWER_SECONDS = 15.0
"""The kubelet calls us back before it answers, for at most 10 s."""

_MOST_SILENT_LOOKS = 3
"""After as many it is told again: it forgets a plugin to which it lost its connection, and does not come back."""

_Identity = tuple[int, int, int]


class Registrar:
    """Keeps the plugin registered; `look` is called again and again."""

    def __init__(self, kubelet_directory: Path, server: SocketServer, is_heard: Callable[[], bool]) -> None:
        """Ask nothing yet.

        Args:
            kubelet_directory: Usually `/var/lib/kubelet`.
            server: Of the plugin, at `SOCKET`.
            is_heard: Whether a kubelet listens to the list of units.
        """
        self._socket = (kubelet_directory / DIRECTORY / _KUBELET_SOCKET).absolute()
        self._server = server
        self._is_heard = is_heard
        self._known: _Identity | None = None
        self._is_registered = False
        self._silent_looks = 0

    def look(self) -> None:
        """Register where that is needed; return where the kubelet knows us and listens.

        Raises:
            NodeError: It does not: it is away, or refuses, or was told a moment ago.
        """
        found = self._identity()
        if found != self._known:
            self._known, self._is_registered = found, False
        if not self._server.is_there:
            self._is_registered = False
            self._server.start()
        if not self._is_registered or self._silent_looks >= _MOST_SILENT_LOOKS:
            self._register()
            self._is_registered, self._silent_looks = True, 0
        self._silent_looks = 0 if self._is_heard() else self._silent_looks + 1
        if self._silent_looks:
            raise NodeError("the kubelet knows us and does not listen yet")

    def _identity(self) -> _Identity:
        try:
            found = self._socket.stat()
        except OSError as exc:
            self._known, self._is_registered = None, False
            raise NodeError(f"there is no {self._socket}: {exc.strerror}", hint="the kubelet is away") from exc
        return found.st_dev, found.st_ino, found.st_ctime_ns

    def _register(self) -> None:
        asked = wire.RegisterRequest(
            version=_VERSION, endpoint=self._server.path.name, resource_name=RESOURCE, options=options()
        )
        with grpc.insecure_channel(f"unix:{self._socket}", options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
            try:
                RegistrationStub(channel).Register(asked, timeout=_ANSWER_SECONDS)
            except grpc.RpcError as exc:
                code = exc.code()
                raise NodeError(f"the kubelet does not take {RESOURCE}: {code.name}, {exc.details()}") from exc
