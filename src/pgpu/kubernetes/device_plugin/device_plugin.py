"""The device plugin of one node: its list of units, gRPC service, registration with the kubelet, and the thread that updates them."""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc

from pgpu.engine.claims import ClaimableGpu, Claims
from pgpu.errors import CapacityError, NodeError, PgpuError, RequestError
from pgpu.kubernetes.device_plugin.slice_delivery import SliceDelivery
from pgpu.kubernetes.device_plugin.unit_slices import GRACE_SECONDS, UnitSlices
from pgpu.kubernetes.generated import device_plugin_v1beta1_pb2 as wire
from pgpu.kubernetes.kubelet_sockets import SocketServer, add_service, method_caller, open_channel
from pgpu.kubernetes.node_health import DriverReadiness, HealthSource, HealthState
from pgpu.kubernetes.pod_shares import PodResources
from pgpu.kubernetes.unit_ids import RESOURCE, UNIT_BYTES, Unit, preferred
from pgpu.structs import Struct

_log = logging.getLogger(__name__)

REGISTERED = "registered with the kubelet"
GPUS = "GPUs read"
PODS = "pods known"
SUBJECTS = (REGISTERED, GPUS, PODS)
"""Subjects of the plugin's `DriverReadiness`."""

POLL_SECONDS = 1.0

DIRECTORY = Path("device-plugins")
"""Relative to the kubelet's directory."""

SOCKET = "pgpu-gpu-memory.sock"
"""Of the plugin, beside the kubelet's own."""

_KUBELET_SOCKET = "kubelet.sock"
_VERSION = "v1beta1"
# The kubelet calls the plugin back before it answers, for at most 10 s.
_REGISTER_SECONDS = 15.0

# Then the plugin registers again: a kubelet that lost the connection to a plugin forgets it and does not reconnect.
_MOST_SILENT_POLLS = 3

# Interval at which a stream checks whether its kubelet is still connected; changes are sent at once.
_STREAM_POLL_SECONDS = 0.5

_HEALTHY, _UNHEALTHY = "Healthy", "Unhealthy"
_SERVICES = wire.DESCRIPTOR.services_by_name


def plugin_options() -> wire.DevicePluginOptions:
    """Return which optional calls the kubelet shall make: the choice of units, and one before each container start."""
    return wire.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)


class OfferedUnit(Struct, frozen=True):
    """One unit as it is listed to the kubelet."""

    unit: Unit
    is_healthy: bool


class UnitInventory:
    """The units that the kubelet may allocate now, from the GPUs' free memory and health. Thread-safe.

    Each change of the list gets a new version, for which the open `ListAndWatch` streams wait.
    """

    def __init__(
        self, claims: Claims, in_use: Callable[[], frozenset[Unit]], health: HealthSource | None = None
    ) -> None:
        """List nothing before `refresh`.

        Args:
            claims: Of this node.
            in_use: Returns the units that containers have.
            health: Fatal errors of GPUs; None: not watched.
        """
        self._claims = claims
        self._in_use = in_use
        self._health = health
        self._most: dict[str, int] = {}
        self._offered: tuple[OfferedUnit, ...] = ()
        self._version = 0
        self._changed = threading.Condition()
        self._is_closed = False

    def refresh(self) -> None:
        """Read the GPUs, and wake the streams if the list has changed.

        Raises:
            NodeError: They cannot be read; until they can, all units are unhealthy.
        """
        before = self._in_use()
        try:
            offers = {each.gpu.uuid: each for each in self._claims.gpus()}
        except NodeError:
            self._publish(_list_units(self._most, {}, frozenset()))
            raise
        # Ids stay listed as long as this process lives: a GPU that shrinks has unhealthy units instead of fewer.
        for uuid, offer in offers.items():
            self._most[uuid] = max(self._most.get(uuid, 0), offer.memory_bytes // UNIT_BYTES)
        known = {} if self._health is None else self._health.health()
        for each in known.values():
            if each.state is HealthState.UNHEALTHY:
                offers.pop(each.gpu_uuid, None)
        # Units allocated or freed during the reading count as in use: one healthy unit too few is corrected by the next
        # refresh, but an unhealthy unit of a container could cost its pod the place on this node.
        self._publish(_list_units(self._most, offers, before | self._in_use()))

    def _publish(self, offered: tuple[OfferedUnit, ...]) -> None:
        with self._changed:
            if offered != self._offered:
                self._offered = offered
                self._version += 1
                self._changed.notify_all()

    def current(self) -> tuple[int, Sequence[OfferedUnit]]:
        """Return the version and the list."""
        with self._changed:
            return self._version, self._offered

    def wait_beyond(self, version: int, timeout_seconds: float) -> bool:
        """Wait until the list has another version or the inventory is closed; returns False after the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self._version != version or self._is_closed, timeout_seconds)

    @property
    def is_closed(self) -> bool:
        """Whether streams shall end."""
        return self._is_closed

    def close(self) -> None:
        """Wake and end all streams."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


def _list_units(
    most: Mapping[str, int], offers: Mapping[str, ClaimableGpu], held: frozenset[Unit]
) -> tuple[OfferedUnit, ...]:
    """List the units of each GPU: those in use are healthy, and as many others as there is room for."""
    listed: list[OfferedUnit] = []
    for uuid, count in sorted(most.items()):
        units = [Unit(uuid, number) for number in range(count)]
        healthy: set[Unit] = set()
        if (offer := offers.get(uuid)) is not None:
            # A unit that a container has stays healthy: a restarting kubelet evicts pods with unhealthy devices.
            healthy = {unit for unit in held if unit.gpu_uuid == uuid}
            free_bytes = 0 if offer.is_closed else offer.memory_bytes - offer.held_bytes
            others = [unit for unit in units if unit not in healthy]
            healthy.update(others[: max(0, free_bytes // UNIT_BYTES)])
        listed += (OfferedUnit(unit, unit in healthy) for unit in units)
    return tuple(listed)


class DevicePluginService:
    """The calls of the kubelet's device manager, in threads of gRPC.

    Errors become a gRPC status with one line, which the kubelet shows in the pod's events.
    """

    def __init__(self, inventory: UnitInventory, slices: UnitSlices, delivery: SliceDelivery) -> None:
        self._inventory = inventory
        self._slices = slices
        self._delivery = delivery
        self._listeners = 0
        self._guard = threading.Lock()

    def add_to(self, server: grpc.Server) -> None:
        """Register the service."""
        add_service(server, _SERVICES["DevicePlugin"], self)

    @property
    def has_listener(self) -> bool:
        """Whether a kubelet is connected to `ListAndWatch`."""
        return self._listeners > 0

    def GetDevicePluginOptions(self, request: wire.Empty, context: grpc.ServicerContext) -> wire.DevicePluginOptions:  # noqa: ARG002, N802 - the wire's
        """See `plugin_options`."""
        return plugin_options()

    def ListAndWatch(  # noqa: N802 - the wire's
        self,
        request: wire.Empty,  # noqa: ARG002 - likewise
        context: grpc.ServicerContext,
    ) -> Iterator[wire.ListAndWatchResponse]:
        """Stream all units, and all again whenever one changes, until the kubelet disconnects."""
        # Counted, not a flag: a restarted kubelet may open its stream before gRPC ends the former one.
        with self._guard:
            self._listeners += 1
        try:
            version, offered = self._inventory.current()
            yield _list(offered)
            while context.is_active() and not self._inventory.is_closed:
                # A short wait: gRPC does not wake this thread when the kubelet disconnects.
                if self._inventory.wait_beyond(version, _STREAM_POLL_SECONDS) and not self._inventory.is_closed:
                    version, offered = self._inventory.current()
                    yield _list(offered)
        finally:
            with self._guard:
                self._listeners -= 1

    def GetPreferredAllocation(  # noqa: N802 - the wire's
        self, request: wire.PreferredAllocationRequest, context: grpc.ServicerContext
    ) -> wire.PreferredAllocationResponse:
        """Choose units of one GPU, or refuse the pod: the kubelet by itself would combine several GPUs."""
        with _as_status(context):
            chosen = [
                preferred(each.available_deviceIDs, each.must_include_deviceIDs, each.allocation_size)
                for each in request.container_requests
            ]
        return wire.PreferredAllocationResponse(
            container_responses=[wire.ContainerPreferredAllocationResponse(deviceIDs=ids) for ids in chosen]
        )

    def Allocate(self, request: wire.AllocateRequest, context: grpc.ServicerContext) -> wire.AllocateResponse:  # noqa: N802 - the wire's
        """Make a slice for each container, or refuse the pod."""
        with _as_status(context):
            held = [self._slices.allocate(each.devices_ids) for each in request.container_requests]
        # The kubelet stores this answer in its checkpoint and reuses it for every restart of the container.
        return wire.AllocateResponse(container_responses=[self._delivery.response(each) for each in held])

    def PreStartContainer(  # noqa: N802 - the wire's
        self, request: wire.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> wire.PreStartContainerResponse:
        """Ensure that the slice binds before each start of a container; an error keeps it from starting."""
        with _as_status(context):
            self._slices.start(request.devices_ids)
        return wire.PreStartContainerResponse()


def _list(offered: Sequence[OfferedUnit]) -> wire.ListAndWatchResponse:
    return wire.ListAndWatchResponse(
        devices=[wire.Device(ID=each.unit.id, health=_HEALTHY if each.is_healthy else _UNHEALTHY) for each in offered]
    )


@contextmanager
def _as_status(context: grpc.ServicerContext) -> Iterator[None]:
    try:
        yield
    except PgpuError as exc:
        status = grpc.StatusCode.FAILED_PRECONDITION
        if isinstance(exc, RequestError):
            status = grpc.StatusCode.INVALID_ARGUMENT
        elif isinstance(exc, CapacityError):
            status = grpc.StatusCode.RESOURCE_EXHAUSTED
        context.abort(status, str(exc) if exc.hint is None else f"{exc}; {exc.hint}")


class Registrar:
    """Keeps the plugin registered with the kubelet, which may restart at any time.

    A starting kubelet removes every socket of its directory and has no plugin. A new kubelet is recognized by device, inode and
    change time of its socket, since inode numbers are reused.
    """

    def __init__(self, kubelet_directory: Path, server: SocketServer, has_listener: Callable[[], bool]) -> None:
        """Args: usually `/var/lib/kubelet`, the plugin's server at `SOCKET`, and whether a kubelet listens to the units."""
        self._socket = (kubelet_directory / DIRECTORY / _KUBELET_SOCKET).absolute()
        self._server = server
        self._has_listener = has_listener
        self._known: tuple[int, int, int] | None = None
        self._is_registered = False
        self._silent_polls = 0

    def poll(self) -> None:
        """Register if needed; returns without error if the kubelet is registered and listens.

        Raises:
            NodeError: The kubelet is away, refuses, or does not listen yet.
        """
        try:
            found = self._socket.stat()
        except OSError as exc:
            self._known, self._is_registered = None, False
            raise NodeError(f"there is no {self._socket}: {exc.strerror}", hint="the kubelet is away") from exc
        identity = (found.st_dev, found.st_ino, found.st_ctime_ns)
        # Another kubelet process, which knows no plugin.
        if identity != self._known:
            self._known, self._is_registered = identity, False
        # A starting kubelet removes all sockets of its directory: the server must be back before it is registered.
        if not self._server.is_in_place:
            self._is_registered = False
            self._server.start()
        if not self._is_registered or self._silent_polls >= _MOST_SILENT_POLLS:
            self._register()
            self._is_registered, self._silent_polls = True, 0
        self._silent_polls = 0 if self._has_listener() else self._silent_polls + 1
        if self._silent_polls:
            raise NodeError("the kubelet has registered the plugin and does not listen yet")

    def _register(self) -> None:
        request = wire.RegisterRequest(
            version=_VERSION, endpoint=self._server.path.name, resource_name=RESOURCE, options=plugin_options()
        )
        with open_channel(self._socket) as channel:
            try:
                method_caller(channel, _SERVICES["Registration"], "Register")(request, timeout=_REGISTER_SECONDS)
            except grpc.RpcError as exc:
                raise NodeError(f"the kubelet does not accept {RESOURCE}: {exc.code().name}, {exc.details()}") from exc


class DevicePlugin:
    """Offers GiB of GPU memory to this node's kubelet until it is closed; slices stay."""

    def __init__(
        self,
        *,
        claims: Claims,
        pods: PodResources,
        delivery: SliceDelivery,
        readiness: DriverReadiness,
        kubelet_directory: Path,
        health: HealthSource | None = None,
        grace_seconds: float = GRACE_SECONDS,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        """Start nothing yet.

        Args:
            claims: Of this node; nothing else makes slices for containers of its pods.
            pods: Source of the units that containers have.
            delivery: How containers get a slice.
            readiness: Of this driver, with `SUBJECTS`.
            kubelet_directory: Usually `/var/lib/kubelet`.
            health: Fatal errors of GPUs; None: not watched.
            grace_seconds: A slice is freed after its units were missing from all pods for so long.
            poll_seconds: Interval at which kubelet, GPUs and pods are read.
        """
        self._pods = pods
        self._readiness = readiness
        self._poll_seconds = poll_seconds
        self._slices = UnitSlices(claims, delivery, grace_seconds=grace_seconds)
        self._inventory = UnitInventory(claims, self._slices.in_use, health)
        service = DevicePluginService(self._inventory, self._slices, delivery)
        self._server = SocketServer((kubelet_directory / DIRECTORY / SOCKET).absolute(), service.add_to)
        self._registrar = Registrar(kubelet_directory, self._server, lambda: service.has_listener)
        self._thread = threading.Thread(target=self._run, name="device-plugin")
        self._stop = threading.Event()

    def start(self) -> None:
        """Take over the slices of an earlier driver and start the polling thread.

        Raises:
            NodeError: The held slices cannot be read.
        """
        # Before the first list of units: what containers hold must be known as in use.
        self._slices.take_over()
        self._thread.start()

    def close(self) -> None:
        """Stop serving; slices and the containers that have them stay."""
        # The inventory first: open streams hold threads of the server, which waits for them.
        self._stop.set()
        self._inventory.close()
        if self._thread.is_alive():
            self._thread.join()
        self._server.stop()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._readiness.attempt(GPUS, self._inventory.refresh)
            self._readiness.attempt(REGISTERED, self._registrar.poll)
            self._readiness.attempt(PODS, self._free_unlisted)
            self._stop.wait(self._poll_seconds)

    def _free_unlisted(self) -> None:
        listed = {
            unit
            for pod in self._pods.pods()
            for container in pod.containers
            for each in container.units
            if each.resource == RESOURCE
            for unit in each.ids
        }
        for uid in self._slices.free_unlisted(listed):
            _log.info("slice %s is free: no pod has its units any more", uid)
