"""A driver's two sockets on a node: one where the kubelet finds it, one where it asks. Made, watched, and made again.

It refuses to make the kubelet's own directory: where that is missing no kubelet looks.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import grpc

from pgpu.errors import NodeError
from pgpu.kubernetes.dra.plugin_registration import Plugin, RegistrationService
from pgpu.kubernetes.kubelet_sockets import SocketServer

_TYPE = "DRAPlugin"
_REGISTRY = "plugins_registry"
_PLUGINS = "plugins"
_SOCKET = "dra.sock"
_DIRECTORY_MODE = 0o750


class Service(Protocol):
    """What answers on a socket."""

    def add_to(self, server: grpc.Server) -> None:
        """Serve there."""
        ...


class KubeletPlugin:
    """One DRA driver before one kubelet."""

    def __init__(
        self,
        kubelet_directory: Path,
        driver: str,
        services: Sequence[Service],
        versions: Sequence[str],
        heard: Callable[[str | None], None],
    ) -> None:
        """Nothing is made yet.

        Args:
            kubelet_directory: Usually `/var/lib/kubelet`; as the kubelet itself calls it.
            driver: Its name.
            services: What answers.
            versions: Which services there are, as kubelets call them.
            heard: Told the kubelet's answer: None where it took the driver, else why not. Called in a thread of gRPC.
        """
        directory = kubelet_directory.absolute()
        endpoint = directory / _PLUGINS / driver / _SOCKET
        plugin = Plugin(_TYPE, driver, str(endpoint), tuple(versions))
        registration = RegistrationService(plugin, heard)
        self._registry = SocketServer(directory / _REGISTRY / f"{driver}-reg.sock", registration.add_to)
        self._endpoint = SocketServer(endpoint, lambda server: _add_all(services, server))

    def start(self) -> None:
        """Answer, and then be found.

        Raises:
            NodeError: A socket cannot be made.
        """
        self.mend()

    def mend(self) -> None:
        """Make what is not there.

        Raises:
            NodeError: A socket cannot be made now.
        """
        if self._endpoint.is_there and self._registry.is_there:
            return
        self._make_directories()
        if not self._endpoint.is_there:
            self._endpoint.start()
        # Made again with the endpoint, too: that is how a kubelet hears that it has to connect anew.
        self._registry.start()

    def stop(self) -> None:
        """Leave: the kubelet calls no more once the socket where it found the driver is gone."""
        self._registry.stop()
        self._endpoint.stop()

    def _make_directories(self) -> None:
        if not self._registry.path.parent.is_dir():
            raise NodeError(
                f"{self._registry.path.parent} is not there: no kubelet looks for drivers",
                hint="is the kubelet up, and --kubelet-dir its directory?",
            )
        try:
            self._endpoint.path.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        except OSError as exc:
            raise NodeError(f"{self._endpoint.path.parent} cannot be made: {exc.strerror}") from exc


def _add_all(services: Sequence[Service], server: grpc.Server) -> None:
    for service in services:
        service.add_to(server)
