"""How the kubelet gets to know a plugin: it asks who is there, and says whether it takes it. It refuses to be refused quietly."""

from collections.abc import Callable
from dataclasses import dataclass

import grpc

from pgpu.kubernetes.generated import plugin_registration_pb2 as wire
from pgpu.kubernetes.generated import plugin_registration_pb2_grpc as services


@dataclass(frozen=True, slots=True)
class Plugin:
    """What a plugin says of itself."""

    type: str
    """`DRAPlugin` or `DevicePlugin`."""

    name: str
    endpoint: str
    """Absolute path of the socket that serves."""

    versions: tuple[str, ...]


class RegistrationService(services.RegistrationServicer):
    """Answers on a socket in the kubelet's `plugins_registry`."""

    def __init__(self, plugin: Plugin, heard: Callable[[str | None], None]) -> None:
        """Args: the plugin, and who is told the kubelet's answer: None where it took it, else why not."""
        self._plugin = plugin
        self._heard = heard

    def add_to(self, server: grpc.Server) -> None:
        """Serve there."""
        services.add_RegistrationServicer_to_server(self, server)

    def GetInfo(self, request: wire.InfoRequest, context: grpc.ServicerContext) -> wire.PluginInfo:  # noqa: ARG002, N802 - the wire's
        """Say who this is."""
        plugin = self._plugin
        return wire.PluginInfo(
            type=plugin.type, name=plugin.name, endpoint=plugin.endpoint, supported_versions=plugin.versions
        )

    def NotifyRegistrationStatus(  # noqa: N802 - the wire's
        self,
        request: wire.RegistrationStatus,
        context: grpc.ServicerContext,  # noqa: ARG002 - likewise
    ) -> wire.RegistrationStatusResponse:
        """Hear what the kubelet made of it."""
        self._heard(None if request.plugin_registered else request.error or "it does not say why")
        return wire.RegistrationStatusResponse()
