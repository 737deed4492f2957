"""The calls of the kubelet about claims, in both versions of the wire: an answer for every claim, whatever becomes of another.

It refuses to let an error of one claim be the error of a call: the kubelet would take nothing of the answer then.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import grpc

from pgpu.errors import PgpuError
from pgpu.kubernetes.dra.claim_preparation import ClaimName, PreparedDevice
from pgpu.kubernetes.generated import dra_v1_pb2, dra_v1_pb2_grpc, dra_v1beta1_pb2, dra_v1beta1_pb2_grpc

VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin")


class ClaimDesk(Protocol):
    """Who prepares claims and takes them back; see `claims.preparing.Preparer`."""

    def prepare(self, name: ClaimName) -> Sequence[PreparedDevice]:
        """Raises PgpuError."""
        ...

    def unprepare(self, uid: str) -> None:
        """Raises PgpuError."""
        ...


class Complaints(Protocol):
    """Who is told of claims that could not be."""

    def refused(self, what: str, name: ClaimName, error: PgpuError) -> None:
        """Something that pgpu refuses on purpose."""
        ...

    def failed(self, what: str, name: ClaimName, error: Exception) -> None:
        """Something that should not happen."""
        ...


class ClaimService:
    """Both versions of the service, before one desk."""

    def __init__(self, desk: ClaimDesk, complaints: Complaints) -> None:
        self._desk = desk
        self._complaints = complaints

    def add_to(self, server: grpc.Server) -> None:
        """Serve there."""
        dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(_V1(self), server)
        dra_v1beta1_pb2_grpc.add_DRAPluginServicer_to_server(_V1Beta1(self), server)

    def prepare(self, name: ClaimName) -> tuple[Sequence[PreparedDevice], str]:
        """Return a claim's devices, or why it has none."""
        devices: list[PreparedDevice] = []
        error = self._error_of("prepare", name, lambda: devices.extend(self._desk.prepare(name)))
        return devices, error

    def unprepare(self, name: ClaimName) -> str:
        """Return why something of a claim is left; empty where nothing is."""
        return self._error_of("unprepare", name, lambda: self._desk.unprepare(name.uid))

    def _error_of(self, what: str, name: ClaimName, act: Callable[[], None]) -> str:
        try:
            act()
        except PgpuError as exc:
            self._complaints.refused(what, name, exc)
            return f"{exc} ({exc.hint})" if exc.hint else str(exc)
        except Exception as exc:  # noqa: BLE001 - the edge: a bug at one claim must not leave the others without an answer
            self._complaints.failed(what, name, exc)
            return f"pgpu failed: {type(exc).__name__}: {exc} (see the driver's log)"
        return ""


class _V1(dra_v1_pb2_grpc.DRAPluginServicer):
    def __init__(self, services: ClaimService) -> None:
        self._services = services

    def NodePrepareResources(  # noqa: N802 - the wire's
        self,
        request: dra_v1_pb2.NodePrepareResourcesRequest,
        context: grpc.ServicerContext,  # noqa: ARG002 - likewise
    ) -> dra_v1_pb2.NodePrepareResourcesResponse:
        answer = dra_v1_pb2.NodePrepareResourcesResponse()
        for name in _names(request.claims):
            devices, error = self._services.prepare(name)
            answer.claims[name.uid].error = error
            answer.claims[name.uid].devices.extend(_v1_device(device) for device in devices)
        return answer

    def NodeUnprepareResources(  # noqa: N802 - the wire's
        self,
        request: dra_v1_pb2.NodeUnprepareResourcesRequest,
        context: grpc.ServicerContext,  # noqa: ARG002 - likewise
    ) -> dra_v1_pb2.NodeUnprepareResourcesResponse:
        answer = dra_v1_pb2.NodeUnprepareResourcesResponse()
        for name in _names(request.claims):
            answer.claims[name.uid].error = self._services.unprepare(name)
        return answer


class _V1Beta1(dra_v1beta1_pb2_grpc.DRAPluginServicer):
    """The same, but nobody asks for the share of a device: kubelets of that time knew none."""

    def __init__(self, services: ClaimService) -> None:
        self._services = services

    def NodePrepareResources(  # noqa: N802 - the wire's
        self,
        request: dra_v1beta1_pb2.NodePrepareResourcesRequest,
        context: grpc.ServicerContext,  # noqa: ARG002 - likewise
    ) -> dra_v1beta1_pb2.NodePrepareResourcesResponse:
        answer = dra_v1beta1_pb2.NodePrepareResourcesResponse()
        for name in _names(request.claims):
            devices, error = self._services.prepare(name)
            answer.claims[name.uid].error = error
            answer.claims[name.uid].devices.extend(_v1beta1_device(device) for device in devices)
        return answer

    def NodeUnprepareResources(  # noqa: N802 - the wire's
        self,
        request: dra_v1beta1_pb2.NodeUnprepareResourcesRequest,
        context: grpc.ServicerContext,  # noqa: ARG002 - likewise
    ) -> dra_v1beta1_pb2.NodeUnprepareResourcesResponse:
        answer = dra_v1beta1_pb2.NodeUnprepareResourcesResponse()
        for name in _names(request.claims):
            answer.claims[name.uid].error = self._services.unprepare(name)
        return answer


class _WireClaim(Protocol):
    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def uid(self) -> str: ...


def _names(claims: Iterable[_WireClaim]) -> list[ClaimName]:
    """Return the claims of a call, none twice."""
    return list({each.uid: ClaimName(each.namespace, each.name, each.uid) for each in claims}.values())


def _v1_device(device: PreparedDevice) -> dra_v1_pb2.Device:
    return dra_v1_pb2.Device(
        request_names=device.requests,
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=device.cdi_ids,
        share_id=device.share_id,
    )


def _v1beta1_device(device: PreparedDevice) -> dra_v1beta1_pb2.Device:
    return dra_v1beta1_pb2.Device(
        request_names=device.requests,
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=device.cdi_ids,
    )
