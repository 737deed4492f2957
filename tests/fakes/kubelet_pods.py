"""A kubelet's device manager and its podresources server, over real sockets, as a kubelet of 1.36 behaves.

When it starts it removes every socket of its directory; it then has no plugin and no pods, but its former allocations. It calls Allocate
once for each container, in the order of admission, reuses the units of a pod's init containers for its other containers, and
never reports that a unit is free. Source: pkg/kubelet/cm/devicemanager and pkg/kubelet/apis/podresources of Kubernetes.
"""

import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from pgpu.kubernetes.generated import device_plugin_v1beta1_pb2 as plugin
from pgpu.kubernetes.generated import pod_resources_v1_pb2 as pods
from pgpu.kubernetes.kubelet_sockets import add_service, method_caller

_SERVICES = plugin.DESCRIPTOR.services_by_name
RESOURCE = "pgpu.io/gpu-memory-gib"


class UnexpectedAdmissionError(Exception):
    """The kubelet fails a pod at admission, with this reason."""


@dataclass
class FakePod:
    """A pod's requests: units of each container, by name, in order."""

    name: str
    containers: dict[str, int] = field(default_factory=lambda: {"c": 1})
    init: dict[str, int] = field(default_factory=dict)
    namespace: str = "default"
    claims: dict[str, list[pods.DynamicResource]] = field(default_factory=dict)
    """By container."""


@dataclass
class _Allocated:
    ids: frozenset[str]
    answer: plugin.ContainerAllocateResponse


@dataclass
class _Endpoint:
    """A registered plugin."""

    channel: grpc.Channel
    options: plugin.DevicePluginOptions

    def call(self, method: str, request: object, **more: Any) -> Any:
        return method_caller(self.channel, _SERVICES["DevicePlugin"], method)(request, **more)


class FakeKubelet:
    """One node's kubelet; `stop` and `start` restart it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.registrations = 0
        self.lists = 0
        """Number of List calls."""

        self.healthy: frozenset[str] = frozenset()
        self.unhealthy: frozenset[str] = frozenset()
        self.knows_its_pods = True
        """Whether it has read its pods from the API server since it started."""

        self.allocated: dict[tuple[str, str], dict[str, _Allocated]] = {}
        """By pod and container, as in the checkpoint file."""

        self.pods: dict[tuple[str, str], FakePod] = {}
        self.refusal: str | None = None
        """Error of the next registration; None: it is accepted."""

        self._endpoint: _Endpoint | None = None
        self._servers: list[grpc.Server] = []
        self._guard = threading.Lock()

    # Lifecycle

    def start(self) -> None:
        """Remove all sockets and serve."""
        for folder in ("device-plugins", "pod-resources"):
            (self.directory / folder).mkdir(parents=True, exist_ok=True)
            for path in (self.directory / folder).iterdir():
                if path.is_socket():
                    path.unlink()
        self.healthy = self.unhealthy = frozenset()
        pod_resources = pods.DESCRIPTOR.services_by_name["PodResourcesLister"]
        self._servers = [
            self._serve("pod-resources", pod_resources),
            self._serve("device-plugins", _SERVICES["Registration"]),
        ]

    def _serve(self, folder: str, service: ServiceDescriptor) -> grpc.Server:
        server = grpc.server(ThreadPoolExecutor(8), options=(("grpc.so_reuseport", 0),))
        add_service(server, service, self)
        server.add_insecure_port(f"unix:{self.directory.absolute()}/{folder}/kubelet.sock")
        server.start()
        return server

    def stop(self) -> None:
        """End without cleaning up: dead sockets stay, and containers go on."""
        for server in self._servers:
            server.stop(None).wait()
        for folder in ("device-plugins", "pod-resources") if self._servers else ():
            with socket.socket(socket.AF_UNIX) as left:
                left.bind(str(self.directory.absolute() / folder / "kubelet.sock"))
        self._servers = []
        self.forget_plugin()

    def forget_plugin(self) -> None:
        """Drop the connection to the plugin; a kubelet does not reconnect."""
        with self._guard:
            endpoint, self._endpoint = self._endpoint, None
            self.unhealthy, self.healthy = self.unhealthy | self.healthy, frozenset()
        if endpoint is not None:
            endpoint.channel.close()

    @property
    def socket(self) -> Path:
        """Path of the registration socket."""
        return self.directory / "device-plugins" / "kubelet.sock"

    # Called by plugins

    def Register(self, request: plugin.RegisterRequest, context: Any) -> plugin.Empty:  # noqa: N802
        """Register a plugin; connects to it before answering, as a kubelet does."""
        if self.refusal is not None:
            refusal, self.refusal = self.refusal, None
            context.abort(grpc.StatusCode.UNKNOWN, refusal)
        assert (request.version, request.resource_name) == ("v1beta1", RESOURCE)
        channel = grpc.insecure_channel(f"unix:{self.socket.parent.absolute()}/{request.endpoint}")
        endpoint = _Endpoint(channel, plugin.DevicePluginOptions())
        endpoint.options = endpoint.call("GetDevicePluginOptions", plugin.Empty(), timeout=10)
        with self._guard:
            old, self._endpoint = self._endpoint, endpoint
            self.registrations += 1
        if old is not None:
            old.channel.close()
        threading.Thread(target=self._listen, args=(endpoint,), daemon=True).start()
        return plugin.Empty()

    def _listen(self, endpoint: _Endpoint) -> None:
        try:
            for told in endpoint.call("ListAndWatch", plugin.Empty()):
                if self._endpoint is not endpoint:
                    break
                self.healthy = frozenset(each.ID for each in told.devices if each.health == "Healthy")
                self.unhealthy = frozenset(each.ID for each in told.devices) - self.healthy
        except (grpc.RpcError, ValueError):  # the stream broke, or the channel was closed
            pass
        with self._guard:
            if self._endpoint is endpoint:
                self._endpoint = None
                self.unhealthy |= self.healthy
                self.healthy = frozenset()

    # Pods

    def admit(self, pod: FakePod) -> None:
        """Admit a pod: allocate for its init containers first, then for the others.

        Raises:
            UnexpectedAdmissionError: An allocation failed, and so does the pod.
        """
        key = (pod.namespace, pod.name)
        self.pods[key] = pod
        reusable: set[str] = set()
        try:
            for name, units in pod.init.items():
                reusable |= self._allocate(key, name, units, reusable)
            for name, units in pod.containers.items():
                reusable -= self._allocate(key, name, units, reusable)
        except UnexpectedAdmissionError:
            self.remove(pod)
            raise

    def _allocate(self, key: tuple[str, str], name: str, units: int, reusable: set[str]) -> frozenset[str]:
        if units == 0:
            return frozenset()
        chosen = self._chosen(units, reusable)
        try:
            answer = self._plugin().call(
                "Allocate",
                plugin.AllocateRequest(container_requests=[plugin.ContainerAllocateRequest(devices_ids=chosen)]),
            )
        except grpc.RpcError as exc:
            raise UnexpectedAdmissionError(f"Allocate failed due to {exc.details()}, which is unexpected") from exc
        self.allocated.setdefault(key, {})[name] = _Allocated(frozenset(chosen), answer.container_responses[0])
        return frozenset(chosen)

    def _chosen(self, units: int, reusable: set[str]) -> list[str]:
        taken = sorted(reusable)[:units]
        if len(taken) == units:
            return taken
        free = self.free()
        if len(free) < units - len(taken):
            raise UnexpectedAdmissionError(f"requested number of devices unavailable for {RESOURCE}")
        asked = plugin.ContainerPreferredAllocationRequest(
            available_deviceIDs=[*free, *taken], must_include_deviceIDs=taken, allocation_size=units
        )
        try:
            told = self._plugin().call(
                "GetPreferredAllocation", plugin.PreferredAllocationRequest(container_requests=[asked])
            )
        except grpc.RpcError as exc:
            why = f"device plugin GetPreferredAllocation rpc failed with err: {exc.details()}"
            raise UnexpectedAdmissionError(f"Allocate failed due to {why}, which is unexpected") from exc
        wanted = [each for each in told.container_responses[0].deviceIDs if each in free]
        return [*taken, *wanted, *(free - set(wanted))][:units]

    def allocate_by_hand(self, ids: Sequence[str]) -> plugin.ContainerAllocateResponse:
        """Allocate chosen units, also ones that no kubelet would choose.

        Raises:
            grpc.RpcError: The plugin refuses.
        """
        asked = plugin.ContainerAllocateRequest(devices_ids=ids)
        answer: plugin.AllocateResponse = self._plugin().call(
            "Allocate", plugin.AllocateRequest(container_requests=[asked])
        )
        return answer.container_responses[0]

    def _plugin(self) -> _Endpoint:
        endpoint = self._endpoint
        if endpoint is None:
            raise UnexpectedAdmissionError(f"no healthy devices present; cannot allocate unhealthy devices {RESOURCE}")
        return endpoint

    def free(self) -> frozenset[str]:
        """Return the units that can be allocated."""
        used = {each for containers in self.allocated.values() for kept in containers.values() for each in kept.ids}
        return self.healthy - used

    def start_container(self, pod: FakePod, name: str) -> plugin.ContainerAllocateResponse:
        """Start or restart a container; nothing is allocated.

        Raises:
            grpc.RpcError: The plugin refuses; a kubelet tries again later.
        """
        kept = self.allocated[pod.namespace, pod.name][name]
        endpoint = self._plugin()
        if endpoint.options.pre_start_required:
            endpoint.call("PreStartContainer", plugin.PreStartContainerRequest(devices_ids=sorted(kept.ids)))
        return kept.answer

    def remove(self, pod: FakePod) -> None:
        """Remove a pod after its containers have ended; the plugin gets no call."""
        self.pods.pop((pod.namespace, pod.name), None)
        self.allocated.pop((pod.namespace, pod.name), None)

    def ids(self, pod: FakePod, container: str = "c") -> frozenset[str]:
        """Return a container's units."""
        return self.allocated[pod.namespace, pod.name][container].ids

    def set_ids(self, pod: FakePod, container: str, ids: Sequence[str]) -> None:
        """Set a container's units without calling the plugin."""
        kept = _Allocated(frozenset(ids), plugin.ContainerAllocateResponse())
        self.allocated.setdefault((pod.namespace, pod.name), {})[container] = kept

    # Podresources

    def List(self, request: pods.ListPodResourcesRequest, context: Any) -> pods.ListPodResourcesResponse:  # noqa: N802
        """List all pods; none before they were read from the API server."""
        self.lists += 1
        known = list(self.pods.values()) if self.knows_its_pods else []
        return pods.ListPodResourcesResponse(pod_resources=[self._told(each) for each in known])

    def Get(self, request: pods.GetPodResourcesRequest, context: Any) -> pods.GetPodResourcesResponse:  # noqa: N802
        """Return one pod."""
        found = self.pods.get((request.pod_namespace, request.pod_name))
        if found is None:
            context.abort(
                grpc.StatusCode.UNKNOWN, f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
            )
        assert found is not None
        return pods.GetPodResourcesResponse(pod_resources=self._told(found))

    def GetAllocatableResources(  # noqa: N802
        self, request: pods.AllocatableResourcesRequest, context: Any
    ) -> pods.AllocatableResourcesResponse:
        """Return the healthy devices."""
        devices = pods.ContainerDevices(resource_name=RESOURCE, device_ids=sorted(self.healthy))
        return pods.AllocatableResourcesResponse(devices=[devices])

    def _told(self, pod: FakePod) -> pods.PodResources:
        containers = [self._told_container(pod, name) for name in pod.containers]
        return pods.PodResources(name=pod.name, namespace=pod.namespace, containers=containers)

    def _told_container(self, pod: FakePod, name: str) -> pods.ContainerResources:
        kept = self.allocated.get((pod.namespace, pod.name), {}).get(name)
        devices = [] if kept is None else _by_numa(sorted(kept.ids))
        return pods.ContainerResources(name=name, devices=devices, dynamic_resources=pod.claims.get(name, []))


def _by_numa(ids: Sequence[str]) -> list[pods.ContainerDevices]:
    """Split the ids in two, as on a machine with two NUMA nodes."""
    halves = [ids[: len(ids) // 2], ids[len(ids) // 2 :]]
    return [pods.ContainerDevices(resource_name=RESOURCE, device_ids=half) for half in halves if half]


def claimed(
    name: str, uid: str, device: str, share_id: str | None, *, driver: str = "gpu.pgpu.io"
) -> pods.DynamicResource:
    """Return a container's claim as podresources lists it."""
    resource = pods.ClaimResource(
        cdi_devices=[pods.CDIDevice(name=f"pgpu.io/gpu={uid}")],
        driver_name=driver,
        pool_name="node1",
        device_name=device,
        share_id=share_id,
    )
    return pods.DynamicResource(claim_name=name, claim_namespace="default", claim_resources=[resource])
