"""What an allocation becomes: what was consumed is what is enforced, and whatever could be more is refused."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.claims import gpu

from pgpu.errors import NodeError, PgpuError, RequestError
from pgpu.kubernetes import names
from pgpu.kubernetes.api import AllocatedDevice, Configuration, ResourceClaim
from pgpu.kubernetes.dra.claim_allocation import API_VERSION, KIND, SliceParameters, parse_parameters, read_allocation
from pgpu.kubernetes.names import DeviceKind
from pgpu.model import SharingWish
from pgpu.structs import replace
from pgpu.units import GIB, MIB

HERE, OTHER = gpu(0), gpu(1)
GPU_BYTES = {HERE.uuid: 78 * GIB, OTHER.uuid: 70 * GIB}
SHARED = AllocatedDevice(
    "gpu", names.DRIVER, "node1", names.shared_device(HERE.uuid), "s1", {"memory": GIB, "compute": 0}
)
WHOLE = AllocatedDevice("gpu", names.DRIVER, "node1", names.whole_device(HERE.uuid))


def claim(*devices: AllocatedDevice, said: tuple[Configuration, ...] = ()) -> ResourceClaim:
    return ResourceClaim("default", "c", "u-1", devices, said)


def parameters(*, is_from_class: bool = False, requests: tuple[str, ...] = (), **fields: Any) -> Configuration:
    said = {"apiVersion": API_VERSION, "kind": KIND, **fields}
    return Configuration(is_from_class, names.DRIVER, said, requests)


def test_what_was_consumed_is_the_slice() -> None:
    found = read_allocation(claim(replace(SHARED, consumed={"memory": 30 * GIB, "compute": 25})), "node1", GPU_BYTES)
    (part,) = found.claim.slices
    assert (part.gpu_uuid, part.memory_bytes, part.compute_share) == (HERE.uuid, 30 * GIB, 0.25)
    assert (found.claim.uid, found.claim.namespace, found.claim.name) == ("u-1", "default", "c")
    assert found.claim.sharing is SharingWish.TIME_SLICE


def test_no_compute_asked_is_no_share() -> None:
    assert read_allocation(claim(SHARED), "node1", GPU_BYTES).claim.slices[0].compute_share is None


def test_several_shares_of_a_gpu_are_one_slice_of_their_sum() -> None:
    again = replace(SHARED, request="second", share_id="s2", consumed={"memory": 256 * MIB, "compute": 10})
    found = read_allocation(claim(SHARED, again), "node1", GPU_BYTES)
    (part,) = found.claim.slices
    assert (part.memory_bytes, part.compute_share) == (GIB + 256 * MIB, 0.1)
    assert [each.share_id for each in found.devices] == ["s1", "s2"]


def test_gpus_come_in_the_order_of_the_results() -> None:
    other = replace(SHARED, device=names.shared_device(OTHER.uuid))
    found = read_allocation(claim(other, SHARED), "node1", GPU_BYTES)
    assert [part.gpu_uuid for part in found.claim.slices] == [OTHER.uuid, HERE.uuid]


def test_a_whole_gpu_is_all_of_its_memory_for_one() -> None:
    found = read_allocation(claim(WHOLE), "node1", GPU_BYTES).claim
    assert found.sharing is SharingWish.EXCLUSIVE
    assert found.slices[0].memory_bytes == 78 * GIB


@pytest.mark.parametrize(
    ("kind", "sharing", "pages"),
    [(DeviceKind.MPS, SharingWish.MPS, False), (DeviceKind.OVERSUBSCRIBED, SharingWish.TIME_SLICE, True)],
)
def test_the_device_says_how_its_gpu_is_shared(kind: DeviceKind, sharing: SharingWish, *, pages: bool) -> None:
    device = replace(SHARED, device=names.device_of(HERE.uuid, kind))
    found = read_allocation(claim(device, said=(parameters(is_from_class=True, sharing=kind),)), "node1", GPU_BYTES)
    assert (found.claim.sharing, found.claim.oversubscribes) == (sharing, pages)
    assert found.claim.slices[0].gpu_uuid == HERE.uuid


def test_a_class_that_says_another_kind_than_its_device_is_refused() -> None:
    with pytest.raises(RequestError, match="says mps, and time-slice is how its device is shared"):
        read_allocation(claim(SHARED, said=(parameters(is_from_class=True, sharing="mps"),)), "node1", GPU_BYTES)


def test_devices_of_other_drivers_are_passed_over() -> None:
    foreign = replace(SHARED, driver="gpu.nvidia.com", pool="elsewhere", device="gpu-0")
    assert len(read_allocation(claim(foreign, SHARED), "node1", GPU_BYTES).devices) == 1


@pytest.mark.parametrize(
    ("devices", "says"),
    [
        ((), "nothing of gpu.pgpu.io is allocated"),
        ((replace(SHARED, driver="other"),), "nothing of gpu.pgpu.io is allocated"),
        ((replace(SHARED, pool="node2"),), "in pool 'node2', and this is node 'node1'"),
        ((replace(SHARED, has_admin_access=True),), "adminAccess is refused"),
        ((replace(SHARED, consumed={}),), "does not say how much memory"),
        ((replace(SHARED, consumed={"memory": 0}),), "does not say how much memory"),
        ((replace(SHARED, consumed={"memory": GIB, "compute": 101}),), "101 percent"),
        ((SHARED, replace(WHOLE, device=names.whole_device(OTHER.uuid))), "shared in different ways"),
    ],
)
def test_what_cannot_be_a_slice_is_refused(devices: tuple[AllocatedDevice, ...], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        read_allocation(claim(*devices), "node1", GPU_BYTES)


def test_a_gpu_that_is_not_there_is_the_node_s_fault() -> None:
    with pytest.raises(NodeError, match="is not on node1 now"):
        read_allocation(claim(replace(SHARED, device="gpu-gone")), "node1", GPU_BYTES)


def test_a_subrequest_is_called_by_the_name_that_pods_use() -> None:
    device = replace(SHARED, request="gpu/small")
    said = parameters(requests=("gpu",), strict=True)
    assert read_allocation(claim(device, said=(said,)), "node1", GPU_BYTES).claim.is_strict


def test_a_class_may_say_everything() -> None:
    said = parameters(is_from_class=True, waitForMemory="30s", strict=True, sharing="mps", priority=-5)
    heard = parse_parameters([said], frozenset({"gpu"}))
    assert heard.parameters == SliceParameters(30.0, True, DeviceKind.MPS, -5)
    assert heard.ignored == ()


def test_a_claim_may_only_wait_and_be_strict() -> None:
    said = parameters(waitForMemory="1m", strict=True, sharing="mps", priority=5)
    heard = parse_parameters([said], frozenset({"gpu"}))
    assert heard.parameters == SliceParameters(wait_for_memory_seconds=60.0, is_strict=True)
    assert heard.ignored == ("sharing", "priority")


def test_a_claim_cannot_take_back_that_its_class_is_strict() -> None:
    said = [parameters(strict=False), parameters(is_from_class=True, strict=True, waitForMemory="5s")]
    assert parse_parameters(said, frozenset({"gpu"})).parameters == SliceParameters(
        wait_for_memory_seconds=5.0, is_strict=True
    )


def test_a_claim_waits_as_long_as_itself_says() -> None:
    said = [parameters(is_from_class=True, waitForMemory="5s"), parameters(waitForMemory="7s")]
    assert parse_parameters(said, frozenset({"gpu"})).parameters.wait_for_memory_seconds == 7.0


def test_what_is_said_for_other_requests_and_drivers_is_passed_over() -> None:
    others = [
        parameters(requests=("camera",), strict=True),
        replace(parameters(strict=True), driver="gpu.nvidia.com"),
    ]
    assert parse_parameters(others, frozenset({"gpu"})).parameters == SliceParameters()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"apiVersion": "pgpu.io/v2"}, "apiVersion is 'pgpu.io/v2'"),
        ({"kind": "Other"}, "kind is 'Other'"),
        ({"waitForMemry": "5s"}, "'waitForMemry' is no field"),
        ({"waitForMemory": 5}, "waitForMemory: '5' is not a duration"),
        ({"waitForMemory": "soon"}, "waitForMemory: 'soon' is not a duration"),
        ({"waitForMemory": "2h"}, "waitForMemory: '2h' is more than an hour"),
        ({"strict": "yes"}, "strict: 'yes' is neither"),
        ({"sharing": "alone"}, "sharing: 'alone' is no sharing mode"),
        ({"sharing": ["mps"]}, "sharing: .* is no sharing mode"),
        ({"priority": 101}, "priority: '101' is no whole number"),
        ({"priority": True}, "priority: 'True' is no whole number"),
    ],
)
def test_bad_parameters_are_named(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        parse_parameters([parameters(is_from_class=True, **fields)], frozenset({"gpu"}))


def test_parameters_that_are_no_object_are_refused() -> None:
    with pytest.raises(RequestError, match="apiVersion is 'None'"):
        parse_parameters([Configuration(is_from_class=False, driver=names.DRIVER, parameters={})], frozenset({"gpu"}))


def test_two_that_disagree_are_refused() -> None:
    said = [parameters(is_from_class=True, priority=1), parameters(is_from_class=True, priority=2)]
    with pytest.raises(RequestError, match="disagree about priority"):
        parse_parameters(said, frozenset({"gpu"}))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from(["waitForMemory", "strict", "sharing", "priority", "x"]), ANYTHING))
def test_whatever_is_said_is_heard_or_refused(fields: Mapping[str, Any]) -> None:
    try:
        heard = parse_parameters([parameters(**fields)], frozenset({"gpu"})).parameters
    except PgpuError:
        return
    assert (heard.kind, heard.priority) == (None, 0)


@given(st.lists(st.tuples(st.sampled_from([HERE, OTHER]), st.integers(0, 100 * GIB), st.integers(0, 60)), max_size=5))
def test_a_claim_never_gets_more_than_was_consumed(taken: list[tuple[Any, int, int]]) -> None:
    devices = [
        replace(SHARED, device=names.shared_device(each.uuid), consumed={"memory": memory, "compute": percent})
        for each, memory, percent in taken
    ]
    try:
        found = read_allocation(claim(*devices), "node1", GPU_BYTES).claim
    except PgpuError:
        return
    for part in found.slices:
        of_gpu = [(memory, percent) for each, memory, percent in taken if each.uuid == part.gpu_uuid]
        assert part.memory_bytes == sum(memory for memory, _ in of_gpu)
        assert (part.compute_share or 0.0) == sum(percent for _, percent in of_gpu) / 100
