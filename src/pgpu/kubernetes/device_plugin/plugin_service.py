"""What the kubelet asks of a device plugin, answered. Errors of ours become a status and one line, which ends in the pod's events."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import grpc

from pgpu.errors import CapacityError, PgpuError, RequestError
from pgpu.kubernetes.device_plugin.slice_delivery import SliceDelivery
from pgpu.kubernetes.device_plugin.unit_ids import preferred
from pgpu.kubernetes.device_plugin.unit_inventory import OfferedUnit, UnitInventory
from pgpu.kubernetes.device_plugin.unit_slices import UnitSlices
from pgpu.kubernetes.generated import device_plugin_v1beta1_pb2 as wire
from pgpu.kubernetes.generated import device_plugin_v1beta1_pb2_grpc as services

_HEALTHY, _UNHEALTHY = "Healthy", "Unhealthy"
_LOOK_SECONDS = 0.5
"""How often a stream looks whether its kubelet is still there; no answer waits for it."""


def options() -> wire.DevicePluginOptions:
    """Return what we want to be asked: the choice of units, and a word before each start of a container."""
    return wire.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)


class DevicePluginService(services.DevicePluginServicer):
    """The plugin's side of the kubelet's device manager."""

    def __init__(self, roster: UnitInventory, allocations: UnitSlices, delivering: SliceDelivery) -> None:
        """Args: what there is, who has what, and how containers get it."""
        self._roster = roster
        self._allocations = allocations
        self._delivering = delivering
        self._listeners = 0
        self._guard = threading.Lock()

    def add_to(self, server: grpc.Server) -> None:
        """Serve there."""
        services.add_DevicePluginServicer_to_server(self, server)

    @property
    def is_heard(self) -> bool:
        """Whether a kubelet listens to the list of units."""
        return self._listeners > 0

    def GetDevicePluginOptions(self, request: wire.Empty, context: grpc.ServicerContext) -> wire.DevicePluginOptions:  # noqa: ARG002, N802 - the wire's
        """Say what we want to be asked."""
        return options()

    def ListAndWatch(  # noqa: N802 - the wire's
        self,
        request: wire.Empty,  # noqa: ARG002 - likewise
        context: grpc.ServicerContext,
    ) -> Iterator[wire.ListAndWatchResponse]:
        """Tell all units, and all of them again whenever one changes, as long as the kubelet listens."""
        with self._listening():
            version, offered = self._roster.now()
            yield _list(offered)
            while context.is_active() and not self._roster.is_over:
                if self._roster.wait_beyond(version, _LOOK_SECONDS) and not self._roster.is_over:
                    version, offered = self._roster.now()
                    yield _list(offered)

    def GetPreferredAllocation(  # noqa: N802 - the wire's
        self, request: wire.PreferredAllocationRequest, context: grpc.ServicerContext
    ) -> wire.PreferredAllocationResponse:
        """Choose units of one GPU, or refuse the pod: the kubelet would take some of several."""
        with _explaining(context):
            chosen = [
                preferred(each.available_deviceIDs, each.must_include_deviceIDs, each.allocation_size)
                for each in request.container_requests
            ]
        return wire.PreferredAllocationResponse(
            container_responses=[wire.ContainerPreferredAllocationResponse(deviceIDs=ids) for ids in chosen]
        )

    def Allocate(self, request: wire.AllocateRequest, context: grpc.ServicerContext) -> wire.AllocateResponse:  # noqa: N802 - the wire's
        """Make a slice for each container, or refuse the pod."""
        with _explaining(context):
            held = [self._allocations.allocate(each.devices_ids) for each in request.container_requests]
        return wire.AllocateResponse(container_responses=[self._delivering.answer(each) for each in held])

    def PreStartContainer(  # noqa: N802 - the wire's
        self, request: wire.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> wire.PreStartContainerResponse:
        """Make sure that the slice binds before a container starts, for the first time or again; else it does not start."""
        with _explaining(context):
            self._allocations.start(request.devices_ids)
        return wire.PreStartContainerResponse()

    @contextmanager
    def _listening(self) -> Iterator[None]:
        with self._guard:
            self._listeners += 1
        try:
            yield
        finally:
            with self._guard:
                self._listeners -= 1


def _list(offered: Sequence[OfferedUnit]) -> wire.ListAndWatchResponse:
    return wire.ListAndWatchResponse(
        devices=[wire.Device(ID=each.unit.id, health=_HEALTHY if each.is_healthy else _UNHEALTHY) for each in offered]
    )


@contextmanager
def _explaining(context: grpc.ServicerContext) -> Iterator[None]:
    try:
        yield
    except PgpuError as exc:
        context.abort(_status(exc), str(exc) if exc.hint is None else f"{exc}; {exc.hint}")


def _status(error: PgpuError) -> grpc.StatusCode:
    if isinstance(error, RequestError):
        return grpc.StatusCode.INVALID_ARGUMENT
    if isinstance(error, CapacityError):
        return grpc.StatusCode.RESOURCE_EXHAUSTED
    return grpc.StatusCode.FAILED_PRECONDITION
