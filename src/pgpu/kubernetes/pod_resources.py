"""The kubelet's podresources socket, asked. What gRPC raises becomes ours here."""

from collections.abc import Sequence
from pathlib import Path

import grpc

from pgpu.errors import KubeletAwayError, NodeError
from pgpu.kubernetes.generated import pod_resources_v1_pb2 as wire
from pgpu.kubernetes.generated.pod_resources_v1_pb2_grpc import PodResourcesListerStub
from pgpu.kubernetes.node_pods import ClaimDevice, Container, ContainerClaim, ContainerUnits, Pod

SOCKET = Path("pod-resources/kubelet.sock")
"""In the kubelet's directory."""

ANSWER_SECONDS = 10.0
"""How long the kubelet may take: it holds locks while it starts pods."""

_MOST_BYTES = 64 * 2**20
"""Of one answer. A thousand ids of a hundred characters for each of 250 pods are 25 MB; gRPC's own limit is 4."""

_AWAY = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
_UNKNOWN_POD = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED}
"""A kubelet answers UNKNOWN for a pod that is not there; before 1.34 `Get` is off."""


class KubeletPods:
    """`PodResources` over the kubelet's socket, which may be replaced by another at any time."""

    def __init__(self, kubelet_directory: Path, answer_seconds: float = ANSWER_SECONDS) -> None:
        """Ask nothing yet.

        Args:
            kubelet_directory: Usually `/var/lib/kubelet`.
            answer_seconds: How long one answer may take.
        """
        self._socket = (kubelet_directory / SOCKET).absolute()
        self._answer_seconds = answer_seconds

    def pods(self) -> Sequence[Pod]:
        """See `PodResources`."""
        with self._channel() as channel:
            try:
                answer = PodResourcesListerStub(channel).List(
                    wire.ListPodResourcesRequest(), timeout=self._answer_seconds
                )
            except grpc.RpcError as exc:
                raise self._explained(exc) from exc
        return tuple(_pod(each) for each in answer.pod_resources)

    def pod(self, namespace: str, name: str) -> Pod | None:
        """See `PodResources`."""
        asked = wire.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace)
        with self._channel() as channel:
            try:
                answer = PodResourcesListerStub(channel).Get(asked, timeout=self._answer_seconds)
            except grpc.RpcError as exc:
                if _code(exc) in _UNKNOWN_POD:
                    return None
                raise self._explained(exc) from exc
        return _pod(answer.pod_resources)

    def _channel(self) -> grpc.Channel:
        """Connect anew: a channel to a socket that is gone waits before it tries again."""
        if not self._socket.exists():
            raise KubeletAwayError(
                f"there is no {self._socket}",
                hint="the kubelet makes it when it starts; in a pod, mount the directory and not the socket",
            )
        options = (("grpc.max_receive_message_length", _MOST_BYTES), ("grpc.use_local_subchannel_pool", 1))
        return grpc.insecure_channel(f"unix:{self._socket}", options=options)

    def _explained(self, error: grpc.RpcError) -> NodeError:
        code = _code(error)
        words = f"the kubelet at {self._socket} answered {code.name}: {error.details() or 'nothing more'}"
        return KubeletAwayError(words) if code in _AWAY else NodeError(words)


def _code(error: grpc.RpcError) -> grpc.StatusCode:
    return error.code()


def _pod(message: wire.PodResources) -> Pod:
    return Pod(message.namespace, message.name, tuple(_container(each) for each in message.containers))


def _container(message: wire.ContainerResources) -> Container:
    claims = tuple(
        ContainerClaim(each.claim_namespace, each.claim_name, tuple(_device(part) for part in each.claim_resources))
        for each in message.dynamic_resources
    )
    return Container(message.name, claims, _units(message))


def _device(message: wire.ClaimResource) -> ClaimDevice:
    return ClaimDevice(
        driver=message.driver_name,
        pool=message.pool_name,
        device=message.device_name,
        share_id=message.share_id if message.HasField("share_id") else None,
        cdi_ids=tuple(each.name for each in message.cdi_devices),
    )


def _units(message: wire.ContainerResources) -> tuple[ContainerUnits, ...]:
    """Join what belongs together: a kubelet tells the devices of one resource apart by NUMA node."""
    ids: dict[str, list[str]] = {}
    for each in message.devices:
        ids.setdefault(each.resource_name, []).extend(each.device_ids)
    return tuple(ContainerUnits(resource, tuple(dict.fromkeys(found))) for resource, found in ids.items())
