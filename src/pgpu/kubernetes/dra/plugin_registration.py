"""The two sockets of a DRA driver: one in `plugins_registry`, where the kubelet finds it, and one that serves its calls.

Both are created again when they are removed. The kubelet's own directories are never created: without them no kubelet looks
there.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import grpc

from pgpu.errors import NodeError
from pgpu.kubernetes.generated import plugin_registration_pb2 as wire
from pgpu.kubernetes.kubelet_sockets import SocketServer, add_service

_DIRECTORY_MODE = 0o750


class Service(Protocol):
    """A service that registers itself with a server."""

    def add_to(self, server: grpc.Server) -> None:
        """Register it; called for each server that is created."""
        ...


class RegistrationService:
    """Answers the kubelet's plugin watcher."""

    def __init__(self, info: wire.PluginInfo, registered: Callable[[str | None], None]) -> None:
        self._info = info
        self._registered = registered

    def GetInfo(self, request: wire.InfoRequest, context: grpc.ServicerContext) -> wire.PluginInfo:  # noqa: ARG002, N802 - the wire's
        """Return name, endpoint and versions of the plugin."""
        return self._info

    def NotifyRegistrationStatus(  # noqa: N802 - the wire's
        self,
        request: wire.RegistrationStatus,
        context: grpc.ServicerContext,  # noqa: ARG002 - likewise
    ) -> wire.RegistrationStatusResponse:
        """Take the kubelet's decision."""
        self._registered(None if request.plugin_registered else request.error or "the kubelet gives no reason")
        return wire.RegistrationStatusResponse()


class KubeletPlugin:
    """One DRA driver and its sockets in one kubelet's directory."""

    def __init__(
        self,
        kubelet_directory: Path,
        driver: str,
        services: Sequence[Service],
        versions: Sequence[str],
        registered: Callable[[str | None], None],
    ) -> None:
        """Create nothing yet.

        Args:
            kubelet_directory: Usually `/var/lib/kubelet`; the same path as in the kubelet's own mount namespace.
            driver: Name of the driver.
            services: Served at the endpoint.
            versions: Services as kubelets name them.
            registered: Called with None when the kubelet has accepted the driver, else with its error. Runs in a thread of gRPC.
        """
        directory = kubelet_directory.absolute()
        endpoint = directory / "plugins" / driver / "dra.sock"
        info = wire.PluginInfo(type="DRAPlugin", name=driver, endpoint=str(endpoint), supported_versions=versions)
        registration = RegistrationService(info, registered)

        def add_registration(server: grpc.Server) -> None:
            add_service(server, wire.DESCRIPTOR.services_by_name["Registration"], registration)

        def add_services(server: grpc.Server) -> None:
            for service in services:
                service.add_to(server)

        self._registry = SocketServer(directory / "plugins_registry" / f"{driver}-reg.sock", add_registration)
        self._endpoint = SocketServer(endpoint, add_services)

    def mend(self) -> None:
        """Create the sockets that are missing; also the first start.

        Raises:
            NodeError: A socket cannot be created now.
        """
        if self._endpoint.is_in_place and self._registry.is_in_place:
            return
        self._create_directories()
        # The endpoint first: the kubelet connects to it as soon as it finds the registry's socket.
        if not self._endpoint.is_in_place:
            self._endpoint.start()
        # Created again together with the endpoint: only a new registry socket makes the kubelet connect to the endpoint anew.
        self._registry.start()

    def stop(self) -> None:
        """Stop serving; the registry's socket goes first, since its removal unregisters the driver."""
        self._registry.stop()
        self._endpoint.stop()

    def _create_directories(self) -> None:
        if not self._registry.path.parent.is_dir():
            raise NodeError(
                f"{self._registry.path.parent} is not there: no kubelet looks for drivers",
                hint="is the kubelet up, and --kubelet-dir its directory?",
            )
        try:
            self._endpoint.path.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        except OSError as exc:
            raise NodeError(f"{self._endpoint.path.parent} cannot be created: {exc.strerror}") from exc
