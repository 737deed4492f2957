"""A kubelet's device manager and its podresources server, over real sockets, as a kubelet of 1.36 behaves.

What it does on purpose: it removes every socket of its directory when it starts; it knows no plugin then and no pods, but what it
answered containers before; it calls Allocate once for each container, in the order of admission; it lets a pod's
containers have the units of its init containers again; it never says that a unit is free. Read from
pkg/kubelet/cm/devicemanager and pkg/kubelet/apis/podresources of Kubernetes.
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
    """A pod that the scheduler sent here is failed: `UnexpectedAdmissionError` is its reason."""


@dataclass
class FakePod:
    """What a pod asks for: units of each container, by name, in order."""

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
    """The plugin as one kubelet knows it."""

    channel: grpc.Channel
    options: plugin.DevicePluginOptions

    def call(self, method: str, request: object, **more: Any) -> Any:
        return method_caller(self.channel, _SERVICES["DevicePlugin"], method)(request, **more)


class FakeKubelet:
    """One node's kubelet; `stop` and `start` are its restart."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.registrations = 0
        self.lists = 0
        """How often it was asked for its pods."""

        self.healthy: frozenset[str] = frozenset()
        self.unhealthy: frozenset[str] = frozenset()
        self.knows_its_pods = True
        """Whether the API server has told it of its pods since it started."""

        self.allocated: dict[tuple[str, str], dict[str, _Allocated]] = {}
        """By pod and container; the checkpoint file."""

        self.pods: dict[tuple[str, str], FakePod] = {}
        self.refusal: str | None = None
        """With which the next registration is answered."""

        self._endpoint: _Endpoint | None = None
        self._servers: list[grpc.Server] = []
        self._guard = threading.Lock()

    # Its life

    def start(self) -> None:
        """Begin, on empty directories."""
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
        """Die: sockets stay where they are and answer no more; containers run on."""
        for server in self._servers:
            server.stop(None).wait()
        for folder in ("device-plugins", "pod-resources") if self._servers else ():
            with socket.socket(socket.AF_UNIX) as left:
                left.bind(str(self.directory.absolute() / folder / "kubelet.sock"))
        self._servers = []
        self.forget_plugin()

    def forget_plugin(self) -> None:
        """Lose the connection to the plugin, as a kubelet does for good."""
        with self._guard:
            endpoint, self._endpoint = self._endpoint, None
            self.unhealthy, self.healthy = self.unhealthy | self.healthy, frozenset()
        if endpoint is not None:
            endpoint.channel.close()

    @property
    def socket(self) -> Path:
        """Where plugins register."""
        return self.directory / "device-plugins" / "kubelet.sock"

    # What plugins call

    def Register(self, request: plugin.RegisterRequest, context: Any) -> plugin.Empty:  # noqa: N802
        """Connect to the plugin before it is answered, as a kubelet does."""
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

    # What happens to pods

    def admit(self, pod: FakePod) -> None:
        """Let a pod in: its init containers first, then the others.

        Raises:
            UnexpectedAdmissionError: One gets nothing; the pod is failed.
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
        """Ask for certain units, as no kubelet would.

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
        """Return the units that it would give away."""
        used = {each for containers in self.allocated.values() for kept in containers.values() for each in kept.ids}
        return self.healthy - used

    def start_container(self, pod: FakePod, name: str) -> plugin.ContainerAllocateResponse:
        """Start a container, for the first time or again; nothing is allocated anew.

        Raises:
            grpc.RpcError: The plugin does not let it start; a kubelet tries again later.
        """
        kept = self.allocated[pod.namespace, pod.name][name]
        endpoint = self._plugin()
        if endpoint.options.pre_start_required:
            endpoint.call("PreStartContainer", plugin.PreStartContainerRequest(devices_ids=sorted(kept.ids)))
        return kept.answer

    def remove(self, pod: FakePod) -> None:
        """Forget a pod whose containers are gone; nobody is told."""
        self.pods.pop((pod.namespace, pod.name), None)
        self.allocated.pop((pod.namespace, pod.name), None)

    def ids(self, pod: FakePod, container: str = "c") -> frozenset[str]:
        """Return what a container got."""
        return self.allocated[pod.namespace, pod.name][container].ids

    def set_ids(self, pod: FakePod, container: str, ids: Sequence[str]) -> None:
        """Let a container have certain units, without asking anybody."""
        kept = _Allocated(frozenset(ids), plugin.ContainerAllocateResponse())
        self.allocated.setdefault((pod.namespace, pod.name), {})[container] = kept

    # What it tells of pods

    def List(self, request: pods.ListPodResourcesRequest, context: Any) -> pods.ListPodResourcesResponse:  # noqa: N802
        """Tell all pods; none before the API server told it of them."""
        self.lists += 1
        known = list(self.pods.values()) if self.knows_its_pods else []
        return pods.ListPodResourcesResponse(pod_resources=[self._told(each) for each in known])

    def Get(self, request: pods.GetPodResourcesRequest, context: Any) -> pods.GetPodResourcesResponse:  # noqa: N802
        """Tell one pod."""
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
        """Tell what is healthy."""
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
    """Cut in two, as a kubelet does on machines with two NUMA nodes."""
    halves = [ids[: len(ids) // 2], ids[len(ids) // 2 :]]
    return [pods.ContainerDevices(resource_name=RESOURCE, device_ids=half) for half in halves if half]


def claimed(
    name: str, uid: str, device: str, share_id: str | None, *, driver: str = "gpu.pgpu.io"
) -> pods.DynamicResource:
    """Return what a kubelet tells of a container's claim."""
    resource = pods.ClaimResource(
        cdi_devices=[pods.CDIDevice(name=f"pgpu.io/gpu={uid}")],
        driver_name=driver,
        pool_name="node1",
        device_name=device,
        share_id=share_id,
    )
    return pods.DynamicResource(claim_name=name, claim_namespace="default", claim_resources=[resource])
