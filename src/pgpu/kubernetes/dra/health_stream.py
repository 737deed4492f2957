"""Tells the kubelet how well each device is, for as long as it listens: at once, on every change, and now and then again.

It refuses to judge: what is healthy is `kubernetes.health`'s to say.
"""

import threading
from collections.abc import Iterator, Mapping

import grpc

from pgpu.kubernetes import names
from pgpu.kubernetes.generated import dra_health_v1alpha1_pb2 as wire
from pgpu.kubernetes.generated import dra_health_v1alpha1_pb2_grpc as services
from pgpu.kubernetes.gpu_health import Health, HealthSource, HealthState

VERSION = "v1alpha1.DRAResourceHealth"

LOOK_SECONDS = 1.0
REPEAT_SECONDS = 10.0
"""A kubelet calls a device's health unknown that it has not heard of for 30 s."""

_LONGEST_MESSAGE = 1000
_STATES = {
    HealthState.HEALTHY: wire.HEALTHY,
    HealthState.UNHEALTHY: wire.UNHEALTHY,
    HealthState.UNKNOWN: wire.UNKNOWN,
}


class HealthService(services.DRAResourceHealthServicer):
    """A stream for each kubelet that asks."""

    def __init__(self, source: HealthSource, pool: str, stop: threading.Event) -> None:
        """Args: who knows, the name of this node's pool, and what ends all streams."""
        self._source = source
        self._pool = pool
        self._stop = stop

    def add_to(self, server: grpc.Server) -> None:
        """Serve there."""
        services.add_DRAResourceHealthServicer_to_server(self, server)

    def NodeWatchResources(  # noqa: N802 - the wire's
        self,
        request: wire.NodeWatchResourcesRequest,  # noqa: ARG002 - likewise
        context: grpc.ServicerContext,
    ) -> Iterator[wire.NodeWatchResourcesResponse]:
        """Say it until the kubelet hangs up."""
        last: Mapping[str, Health] | None = None
        looks_left = 0
        while context.is_active() and not self._stop.is_set():
            now = self._source.health()
            if now != last or not looks_left:
                yield self._answer(now)
                last, looks_left = now, round(REPEAT_SECONDS / LOOK_SECONDS)
            looks_left -= 1
            self._stop.wait(LOOK_SECONDS)

    def _answer(self, health: Mapping[str, Health]) -> wire.NodeWatchResourcesResponse:
        answer = wire.NodeWatchResourcesResponse()
        for each in health.values():
            for kind in names.DeviceKind:
                answer.devices.append(self._device(each, names.device_of(each.gpu_uuid, kind)))
        return answer

    def _device(self, health: Health, device: str) -> wire.DeviceHealth:
        return wire.DeviceHealth(
            device=wire.DeviceIdentifier(pool_name=self._pool, device_name=device),
            health=_STATES[health.state],
            last_updated_time=int(health.since_seconds),
            message=health.reason[:_LONGEST_MESSAGE],
        )
