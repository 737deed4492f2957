"""Client of the kubelet's podresources socket: which container of this node has which devices.

It needs no API server and no right but access to the kubelet's directory. Nothing is cached: each call reads the kubelet's
present state.

Source: k8s.io/kubelet/pkg/apis/podresources/v1.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from pgpu.errors import KubeletAwayError, NodeError
from pgpu.kubernetes.generated import pod_resources_v1_pb2 as wire
from pgpu.kubernetes.kubelet_sockets import method_caller, open_channel
from pgpu.kubernetes.pod_shares import ClaimDevice, ContainerClaim, ContainerUnits, Pod, PodContainer

SOCKET = Path("pod-resources/kubelet.sock")
"""Relative to the kubelet's directory."""

ANSWER_SECONDS = 10.0
"""Timeout of one call: the kubelet holds locks while it starts pods."""

_SERVICE = wire.DESCRIPTOR.services_by_name["PodResourcesLister"]
_AWAY = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
# The kubelet returns UNKNOWN for a pod that it does not have; before 1.34 `Get` is not implemented.
_UNKNOWN_POD = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED}


class KubeletPods:
    """`PodResources` over the kubelet's socket; each call connects anew, since a restarted kubelet replaces the socket."""

    def __init__(self, kubelet_directory: Path, answer_seconds: float = ANSWER_SECONDS) -> None:
        """Connect to nothing yet; the directory is usually `/var/lib/kubelet`."""
        self._socket = (kubelet_directory / SOCKET).absolute()
        self._answer_seconds = answer_seconds

    def pods(self) -> Sequence[Pod]:
        """See `PodResources`."""
        try:
            answer = self._call("List", wire.ListPodResourcesRequest())
        except grpc.RpcError as exc:
            raise self._translated(exc) from exc
        return tuple(_pod(each) for each in answer.pod_resources)

    def pod(self, namespace: str, name: str) -> Pod | None:
        """See `PodResources`."""
        try:
            answer = self._call("Get", wire.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace))
        except grpc.RpcError as exc:
            if exc.code() in _UNKNOWN_POD:
                return None
            raise self._translated(exc) from exc
        return _pod(answer.pod_resources)

    def _call(self, method: str, request: object) -> Any:
        if not self._socket.exists():
            raise KubeletAwayError(
                f"there is no {self._socket}",
                hint="the kubelet creates it when it starts; in a pod, mount the directory and not the socket",
            )
        with open_channel(self._socket) as channel:
            return method_caller(channel, _SERVICE, method)(request, timeout=self._answer_seconds)

    def _translated(self, error: grpc.RpcError) -> NodeError:
        code = error.code()
        text = f"the kubelet at {self._socket} answered {code.name}: {error.details() or 'no details'}"
        return KubeletAwayError(text) if code in _AWAY else NodeError(text)


def _pod(message: wire.PodResources) -> Pod:
    return Pod(message.namespace, message.name, tuple(_container(each) for each in message.containers))


def _container(message: wire.ContainerResources) -> PodContainer:
    claims = tuple(
        ContainerClaim(each.claim_namespace, each.claim_name, tuple(_device(part) for part in each.claim_resources))
        for each in message.dynamic_resources
    )
    # The kubelet lists the devices of one resource separately for each NUMA node.
    ids: dict[str, list[str]] = {}
    for each in message.devices:
        ids.setdefault(each.resource_name, []).extend(each.device_ids)
    units = tuple(ContainerUnits(resource, tuple(dict.fromkeys(found))) for resource, found in ids.items())
    return PodContainer(message.name, claims, units)


def _device(message: wire.ClaimResource) -> ClaimDevice:
    return ClaimDevice(
        driver=message.driver_name,
        pool=message.pool_name,
        device=message.device_name,
        share_id=message.share_id if message.HasField("share_id") else None,
        cdi_ids=tuple(each.name for each in message.cdi_devices),
    )
