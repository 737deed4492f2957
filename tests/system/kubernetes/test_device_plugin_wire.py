"""The messages of device plugins and of pods' resources are the bytes that a kubelet sends and reads."""

from google.protobuf.message import Message

from pgpu.kubernetes.generated import device_plugin_v1beta1_pb2 as plugin
from pgpu.kubernetes.generated import pod_resources_v1_pb2 as pods


def _bytes(message: Message) -> bytes:
    return message.SerializeToString(deterministic=True)


def test_a_registration_names_version_socket_resource_and_options() -> None:
    options = plugin.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)
    asked = plugin.RegisterRequest(version="v", endpoint="e", resource_name="r", options=options)
    assert _bytes(asked) == b"\x0a\x01v\x12\x01e\x1a\x01r\x22\x04\x08\x01\x10\x01"


def test_a_device_is_id_health_and_topology() -> None:
    device = plugin.Device(ID="i", health="h", topology=plugin.TopologyInfo(nodes=[plugin.NUMANode(ID=3)]))
    assert (
        _bytes(plugin.ListAndWatchResponse(devices=[device])) == b"\x0a\x0c\x0a\x01i\x12\x01h\x1a\x04\x0a\x02\x08\x03"
    )


def test_a_preference_is_asked_with_what_is_free_what_must_be_and_how_many() -> None:
    asked = plugin.PreferredAllocationRequest.FromString(b"\x0a\x08\x0a\x01a\x12\x01m\x18\x07")
    assert asked.container_requests[0] == plugin.ContainerPreferredAllocationRequest(
        available_deviceIDs=["a"], must_include_deviceIDs=["m"], allocation_size=7
    )
    answer = plugin.ContainerPreferredAllocationResponse(deviceIDs=["d"])
    assert _bytes(plugin.PreferredAllocationResponse(container_responses=[answer])) == b"\x0a\x03\x0a\x01d"


def test_an_allocation_is_answered_with_what_the_container_gets() -> None:
    asked = plugin.AllocateRequest.FromString(b"\x0a\x03\x0a\x01d")
    assert list(asked.container_requests[0].devices_ids) == ["d"]
    answer = plugin.ContainerAllocateResponse(
        envs={"E": "1"},
        mounts=[plugin.Mount(container_path="c", host_path="h", read_only=True)],
        devices=[plugin.DeviceSpec(container_path="c", host_path="h", permissions="rw")],
        annotations={"A": "2"},
        cdi_devices=[plugin.CDIDevice(name="n")],
    )
    assert _bytes(answer) == (
        b"\x0a\x06\x0a\x01E\x12\x011"
        b"\x12\x08\x0a\x01c\x12\x01h\x18\x01"
        b"\x1a\x0a\x0a\x01c\x12\x01h\x1a\x02rw"
        b"\x22\x06\x0a\x01A\x12\x012"
        b"\x2a\x03\x0a\x01n"
    )


def test_a_start_of_a_container_names_its_devices() -> None:
    assert list(plugin.PreStartContainerRequest.FromString(b"\x0a\x01d").devices_ids) == ["d"]


def test_a_pod_is_its_containers_devices_and_claims() -> None:
    claimed = b"\x0a\x03\x0a\x01n\x12\x01d\x1a\x01p\x22\x01v\x2a\x01s"
    resource = b"\x12\x01c\x1a\x01m\x22" + bytes([len(claimed)]) + claimed
    devices = b"\x0a\x01r\x12\x01i"
    container = b"\x0a\x01k\x12" + bytes([len(devices)]) + devices + b"\x2a" + bytes([len(resource)]) + resource
    pod = pods.PodResources.FromString(b"\x0a\x01o\x12\x01s\x1a" + bytes([len(container)]) + container)
    read = pod.containers[0]
    claim = read.dynamic_resources[0]
    assert (pod.name, pod.namespace, read.name) == ("o", "s", "k")
    assert (read.devices[0].resource_name, list(read.devices[0].device_ids)) == ("r", ["i"])
    assert (claim.claim_name, claim.claim_namespace) == ("c", "m")
    assert claim.claim_resources[0] == pods.ClaimResource(
        cdi_devices=[pods.CDIDevice(name="n")], driver_name="d", pool_name="p", device_name="v", share_id="s"
    )
