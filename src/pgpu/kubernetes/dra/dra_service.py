"""The gRPC services of a DRA driver: claims in both versions of the kubelet's API, and the health stream of devices.

The messages of v1 and v1beta1 are the same on the wire, except that v1beta1 has no `share_id`, so one implementation with the
messages of v1 serves both under their own service names.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import grpc

from pgpu.errors import PgpuError
from pgpu.kubernetes import names
from pgpu.kubernetes.dra.claim_allocation import ClaimName
from pgpu.kubernetes.dra.claim_events import ClaimEvents
from pgpu.kubernetes.dra.claim_preparation import PreparedDevice
from pgpu.kubernetes.generated import dra_health_v1alpha1_pb2 as health_wire
from pgpu.kubernetes.generated import dra_v1_pb2 as wire
from pgpu.kubernetes.kubelet_sockets import add_service
from pgpu.kubernetes.node_health import HealthReport, HealthSource, HealthState
from pgpu.structs import Struct


class DraVersion(Struct, frozen=True):
    """One version of the kubelet's DRA API."""

    name: str
    """As the plugin registers it."""

    service: str
    """gRPC service name."""

    has_share_ids: bool


DRA_VERSIONS = (
    DraVersion("v1.DRAPlugin", "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", has_share_ids=True),
    DraVersion("v1beta1.DRAPlugin", "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin", has_share_ids=False),
)
HEALTH_VERSION = "v1alpha1.DRAResourceHealth"

WAIT_SECONDS = 30.0
"""A Prepare waits so long for room that leaving pods still have."""

ANSWER_SECONDS = 15.0
"""And it is answered so long before the kubelet's own timeout (45 s in all versions): slices must still be made then."""

REPEAT_SECONDS = 10.0
"""The kubelet sets a device's health to unknown after 30 s without a message."""

_POLL_SECONDS = 1.0
_LONGEST_MESSAGE = 1000
_HEALTH_STATES = {
    HealthState.HEALTHY: health_wire.HEALTHY,
    HealthState.UNHEALTHY: health_wire.UNHEALTHY,
    HealthState.UNKNOWN: health_wire.UNKNOWN,
}


class ClaimHandler(Protocol):
    """Prepares claims and takes them back; see `ClaimPreparer`."""

    def prepare(self, name: ClaimName, must_answer: Callable[[], bool]) -> Sequence[PreparedDevice]:
        """Raises PgpuError."""
        ...

    def unprepare(self, uid: str) -> None:
        """Raises PgpuError."""
        ...


class ClaimService:
    """The claim calls of both versions. Every claim of a call gets its own answer or error.

    A gRPC error for one claim would make the kubelet discard the answers for all others of the call.
    """

    def __init__(self, handler: ClaimHandler, events: ClaimEvents, stop: threading.Event) -> None:
        """Serve with a handler, and report what it refuses; `stop` ends waits for room."""
        self._handler = handler
        self._events = events
        self._stop = stop

    def add_to(self, server: grpc.Server) -> None:
        """Register both versions."""
        service = wire.DESCRIPTOR.services_by_name["DRAPlugin"]
        # A kubelet calls the newest version that both support.
        for version in DRA_VERSIONS:
            add_service(server, service, _VersionedService(self, version), version.service)

    def prepare(self, name: ClaimName, must_answer: Callable[[], bool]) -> tuple[Sequence[PreparedDevice], str]:
        """Return a claim's devices and an empty error, or none and the error."""
        devices: list[PreparedDevice] = []
        error = self._attempt("prepare", name, lambda: devices.extend(self._handler.prepare(name, must_answer)))
        return devices, error

    def limit_wait(self, context: grpc.ServicerContext) -> Callable[[], bool]:
        """Return whether a call of a kubelet cannot wait any longer: its time is up, it was cancelled, or the driver stops."""
        left_seconds = context.time_remaining()
        wait_seconds = WAIT_SECONDS if left_seconds is None else min(WAIT_SECONDS, left_seconds - ANSWER_SECONDS)
        deadline = time.monotonic() + wait_seconds
        return lambda: self._stop.is_set() or not context.is_active() or time.monotonic() >= deadline

    def unprepare(self, name: ClaimName) -> str:
        """Return why something of a claim is left; empty if nothing is."""
        return self._attempt("unprepare", name, lambda: self._handler.unprepare(name.uid))

    def _attempt(self, action: str, name: ClaimName, act: Callable[[], None]) -> str:
        try:
            act()
        except PgpuError as exc:
            self._events.refused(action, name, exc)
            return f"{exc} ({exc.hint})" if exc.hint else str(exc)
        except Exception as exc:  # noqa: BLE001 - the edge: a bug at one claim must not leave the others without an answer
            self._events.failed(action, name, exc)
            return f"pgpu failed: {type(exc).__name__}: {exc} (see the driver's log)"
        return ""


class _VersionedService:
    """The methods of one version, named as on the wire; gRPC calls them in its worker threads."""

    def __init__(self, claims: ClaimService, version: DraVersion) -> None:
        self._claims = claims
        self._version = version

    def NodePrepareResources(  # noqa: N802 - the wire's
        self,
        request: wire.NodePrepareResourcesRequest,
        context: grpc.ServicerContext,
    ) -> wire.NodePrepareResourcesResponse:
        answer = wire.NodePrepareResourcesResponse()
        must_answer = self._claims.limit_wait(context)  # all claims of a call wait together
        for name in _distinct_claims(request.claims):
            devices, error = self._claims.prepare(name, must_answer)
            answer.claims[name.uid].error = error
            answer.claims[name.uid].devices.extend(
                wire.Device(
                    request_names=device.requests,
                    pool_name=device.pool,
                    device_name=device.device,
                    cdi_device_ids=device.cdi_ids,
                    share_id=device.share_id if self._version.has_share_ids else None,
                )
                for device in devices
            )
        return answer

    def NodeUnprepareResources(  # noqa: N802 - the wire's
        self,
        request: wire.NodeUnprepareResourcesRequest,
        context: grpc.ServicerContext,  # noqa: ARG002 - likewise
    ) -> wire.NodeUnprepareResourcesResponse:
        answer = wire.NodeUnprepareResourcesResponse()
        for name in _distinct_claims(request.claims):
            answer.claims[name.uid].error = self._claims.unprepare(name)
        return answer


def _distinct_claims(claims: Sequence[wire.Claim]) -> list[ClaimName]:
    return list({each.uid: ClaimName(each.namespace, each.name, each.uid) for each in claims}.values())


class HealthService:
    """Streams the health of every device to each kubelet that connects: at once, on every change, and every 10 s."""

    def __init__(self, source: HealthSource, pool: str, stop: threading.Event) -> None:
        """Serve the devices of one pool; `stop` ends all streams."""
        self._source = source
        self._pool = pool
        self._stop = stop

    def add_to(self, server: grpc.Server) -> None:
        """Register the service."""
        add_service(server, health_wire.DESCRIPTOR.services_by_name["DRAResourceHealth"], self)

    def NodeWatchResources(  # noqa: N802 - the wire's
        self,
        request: health_wire.NodeWatchResourcesRequest,  # noqa: ARG002 - likewise
        context: grpc.ServicerContext,
    ) -> Iterator[health_wire.NodeWatchResourcesResponse]:
        """Yield until the kubelet disconnects; runs in a thread of gRPC for as long as the stream lives."""
        last: Mapping[str, HealthReport] | None = None
        # The first response is sent at once: a kubelet shows devices as unknown until then.
        polls_left = 0
        while context.is_active() and not self._stop.is_set():
            now = self._source.health()
            if now != last or not polls_left:
                yield self._response(now)
                last, polls_left = now, round(REPEAT_SECONDS / _POLL_SECONDS)
            polls_left -= 1
            self._stop.wait(_POLL_SECONDS)

    def _response(self, health: Mapping[str, HealthReport]) -> health_wire.NodeWatchResourcesResponse:
        return health_wire.NodeWatchResourcesResponse(
            devices=[
                health_wire.DeviceHealth(
                    device=health_wire.DeviceIdentifier(
                        pool_name=self._pool, device_name=names.device_of(each.gpu_uuid, kind)
                    ),
                    health=_HEALTH_STATES[each.state],
                    last_updated_time=int(each.since_seconds),
                    message=each.reason[:_LONGEST_MESSAGE],
                )
                for each in health.values()
                for kind in names.DeviceKind
            ]
        )
