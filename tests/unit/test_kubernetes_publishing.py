"""What is published of a node's GPUs."""

import json
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightkube.resources.resource_v1 import ResourceSlice
from tests.fakes.api_rules import wrongs
from tests.fakes.claims import gpu
from tests.kubernetes_offers import NODE, as_json, devices, instance, offer, published, sick

from pgpu.engine.claims import ClaimableGpu
from pgpu.kubernetes.api import Node
from pgpu.kubernetes.names import DeviceKind
from pgpu.kubernetes.node_health import HealthState
from pgpu.kubernetes.resource_slices.api_features import ALL_FEATURES, Features
from pgpu.kubernetes.resource_slices.pool_plan import next_order
from pgpu.kubernetes.resource_slices.resource_pool import content, pool_slices
from pgpu.structs import replace
from pgpu.units import GIB, MIB

SHARED = "gpu-00000000-0000-0000-0000-000000000000"
WHOLE = f"{SHARED}-whole"
RECORDED = Path(__file__).parents[1] / "fakes" / "recorded" / "resourceslices.json"


def test_a_gpu_is_a_device_to_share_and_a_device_to_have_alone() -> None:
    said = devices(published([offer()]))

    assert list(said) == [SHARED, WHOLE]
    counter = [{"counterSet": SHARED, "counters": {"whole": {"value": "1"}}}]
    assert said[SHARED]["consumesCounters"] == said[WHOLE]["consumesCounters"] == counter
    assert said[SHARED]["allowMultipleAllocations"] is True
    assert "allowMultipleAllocations" not in said[WHOLE]
    assert said[SHARED]["capacity"] == {
        "memory": {
            "value": "80Gi",
            "requestPolicy": {"default": "4Gi", "validRange": {"min": "256Mi", "max": "80Gi", "step": "256Mi"}},
        },
        "compute": {
            "value": "100",
            "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}},
        },
    }
    assert said[WHOLE]["capacity"] == {"memory": {"value": "80Gi"}, "compute": {"value": "100"}}


def test_each_way_to_share_a_gpu_is_a_device_of_its_own_that_excludes_the_others() -> None:
    every = replace(offer(), has_mps=True, oversubscription=1.5)

    said = devices(pool_slices(NODE, [every], {}, {every.gpu.uuid: 80 * GIB}, kinds=tuple(DeviceKind)))

    assert {device["attributes"]["sharing"]["string"]: name for name, device in said.items()} == {
        "time-slice": SHARED,
        "mps": f"{SHARED}-mps",
        "oversubscribed": f"{SHARED}-oversubscribed",
        "exclusive": WHOLE,
    }
    assert {json.dumps(device["consumesCounters"]) for device in said.values()} == {
        json.dumps([{"counterSet": SHARED, "counters": {"whole": {"value": "1"}}}])
    }
    assert said[f"{SHARED}-mps"]["capacity"]["clients"] == {
        "value": "48",
        "requestPolicy": {"default": "1", "validValues": ["1"]},
    }
    assert said[f"{SHARED}-oversubscribed"]["capacity"]["memory"]["value"] == "119Gi"


def test_what_cannot_be_kept_apart_is_not_offered() -> None:
    every = replace(offer(), has_mps=True, oversubscription=1.5)
    without = replace(ALL_FEATURES, has_counters=False)
    memory_bytes = {every.gpu.uuid: 80 * GIB}

    assert list(devices(pool_slices(NODE, [every], {}, memory_bytes, features=without, kinds=tuple(DeviceKind)))) == [
        SHARED
    ]
    assert list(devices(pool_slices(NODE, [offer()], {}, memory_bytes, kinds=tuple(DeviceKind)))) == [SHARED, WHOLE]


def test_counters_stand_in_a_slice_of_their_own() -> None:
    counters, shared = as_json(published([offer(), offer(1)]))

    assert [each["name"] for each in counters["spec"]["sharedCounters"]] == [gpu(0).uuid.lower(), gpu(1).uuid.lower()]
    assert "devices" not in counters["spec"]
    assert "sharedCounters" not in shared["spec"]
    assert (
        counters["spec"]["pool"]
        == shared["spec"]["pool"]
        == {"name": "node1", "generation": 0, "resourceSliceCount": 2}
    )


def test_attributes_are_what_kubernetes_takes() -> None:
    assert devices(published([offer()]))[SHARED]["attributes"] == {
        "uuid": {"string": gpu(0).uuid},
        "type": {"string": "gpu"},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "driverVersion": {"version": "580.65.6"},
        "architecture": {"string": "Hopper"},
        "cudaComputeCapability": {"version": "9.0.0"},
        "sharing": {"string": "time-slice"},
        "simulated": {"bool": True},
    }


def test_a_gpu_of_which_little_is_known_says_little() -> None:
    unknown = replace(gpu(), driver_version="", compute_capability=None, name="x" * 100)

    said = published([ClaimableGpu(unknown, 80 * GIB, 0, is_closed=False)])

    assert set(devices(said)[SHARED]["attributes"]) == {"uuid", "type", "productName", "sharing", "simulated"}
    assert [wrongs(each) for each in as_json(said)] == [[], []]


def test_slices_have_the_form_of_recorded_ones() -> None:
    recorded = ResourceSlice.from_dict(json.loads(RECORDED.read_text())["items"][0]).to_dict()

    (made,) = (each for each in as_json(published([offer(), offer(1)])) if "devices" in each["spec"])

    assert made["metadata"]["ownerReferences"] == recorded["metadata"]["ownerReferences"]
    assert set(recorded["spec"]) == set(made["spec"])
    wanted = recorded["spec"]["devices"][0]
    assert set(wanted) <= set(made["spec"]["devices"][0])
    assert set(wanted["attributes"]) <= set(made["spec"]["devices"][0]["attributes"])
    assert set(wanted["capacity"]["memory"]["requestPolicy"]) == {"default", "validRange"}


@pytest.mark.parametrize(("free_gib", "said"), [(79.9, "81664Mi"), (0.6, "512Mi"), (0.25, "256Mi")])
def test_memory_is_rounded_down_to_what_can_be_asked(free_gib: float, said: str) -> None:
    slices = published([offer(free_gib=free_gib)])

    assert devices(slices)[SHARED]["capacity"]["memory"]["value"] == said
    assert [wrongs(each) for each in as_json(slices)] == [[], []]


def test_memory_is_no_less_than_claims_hold() -> None:
    shrunk = ClaimableGpu(gpu(), 10 * GIB, 30 * GIB + 1, is_closed=False)

    assert devices(published([shrunk]))[SHARED]["capacity"]["memory"]["value"] == "30976Mi"


def test_a_gpu_without_room_for_a_step_is_left_out() -> None:
    assert devices(published([offer(free_gib=0.2)])) == {}
    assert [each["spec"]["pool"]["resourceSliceCount"] for each in as_json(published([offer(free_gib=0.2)]))] == [1]


def test_a_node_without_gpus_says_so() -> None:
    (only,) = as_json(published([]))

    assert only["spec"]["devices"] == []


def test_an_instance_is_given_whole_or_not_at_all() -> None:
    slices = published([instance(0, 0), instance(0, 1)])

    assert list(devices(slices)) == [f"{instance(0, n).gpu.uuid.lower()}-whole" for n in (0, 1)]
    said = devices(slices)[f"{instance(0, 0).gpu.uuid.lower()}-whole"]
    assert said["attributes"]["parentUUID"] == {"string": gpu(0).uuid}
    assert "consumesCounters" not in said
    assert len(slices) == 1


def test_a_sick_gpu_is_tainted_so_that_its_pods_go() -> None:
    said = devices(published([offer()], sick(offer())))

    taint = [{"effect": "NoExecute", "key": "gpu.pgpu.io/unhealthy", "value": "xid-79"}]
    assert said[SHARED]["taints"] == said[WHOLE]["taints"] == taint


def test_a_gpu_that_cannot_be_read_or_is_closed_gets_no_new_pods() -> None:
    unknown = devices(published([offer()], sick(offer(), HealthState.UNKNOWN, None)))
    closed = devices(published([offer(is_closed=True)]))
    well = devices(published([offer()], sick(offer(), HealthState.HEALTHY, None)))

    assert unknown[SHARED]["taints"] == [{"effect": "NoSchedule", "key": "gpu.pgpu.io/unknown"}]
    assert closed[SHARED]["taints"] == [{"effect": "NoSchedule", "key": "gpu.pgpu.io/closed"}]
    assert "taints" not in well[SHARED]


def test_where_taints_are_dropped_a_sick_gpu_is_left_out() -> None:
    assert list(devices(published([offer(), offer(1)], sick(offer(1)), Features(has_taints=False)))) == [SHARED, WHOLE]


def test_where_counters_are_dropped_no_gpu_is_offered_whole() -> None:
    slices = published([offer()], features=Features(has_counters=False))

    assert list(devices(slices)) == [SHARED]
    assert "consumesCounters" not in devices(slices)[SHARED]
    assert len(slices) == 1


def test_names_are_valid_for_the_longest_node() -> None:
    node = Node("n" * 63 + ".example" * 23, "uid")
    slices = pool_slices(node, [offer()], {}, {gpu().uuid: GIB})

    assert len(node.name) > 240
    assert [wrongs(each) for each in as_json(slices)] == [[], []]
    assert len({each["metadata"]["name"] for each in as_json(slices)}) == 2


@given(
    frees=st.lists(st.integers(0, 192 * GIB), min_size=0, max_size=70),
    held=st.integers(0, 90 * GIB),
    sick_one=st.integers(0, 69),
)
def test_slices_are_valid_however_many_gpus_there_are(frees: list[int], held: int, sick_one: int) -> None:
    offers = [
        ClaimableGpu(gpu(index), free, held if index % 2 else 0, is_closed=False) for index, free in enumerate(frees)
    ]
    ill = sick(offers[sick_one]) if sick_one < len(offers) else {}

    slices = published(offers, ill)

    assert [wrongs(each) for each in as_json(slices)] == [[] for _ in slices]
    assert {each["spec"]["pool"]["resourceSliceCount"] for each in as_json(slices)} == {len(slices)}
    sets = {name["name"] for each in as_json(slices) for name in each["spec"].get("sharedCounters", [])}
    used = {use["counterSet"] for device in devices(slices).values() for use in device.get("consumesCounters", [])}
    assert used == sets


def test_the_fullest_gpu_with_room_comes_first_and_an_untouched_one_last() -> None:
    offers = [offer(0), offer(1, 0, 80), offer(2, 50, 30), offer(3, 20, 60)]

    assert next_order(offers, ()) == tuple(gpu(index).uuid for index in (3, 2, 1, 0))


def test_among_equals_the_published_order_stays() -> None:
    published_order = [gpu(index).uuid for index in (2, 0, 1)]

    assert next_order([offer(0), offer(1), offer(2)], published_order) == tuple(published_order)
    assert next_order([offer(0), offer(1, 79, 1), offer(2)], published_order)[0] == gpu(1).uuid


def test_an_order_that_no_claim_could_tell_from_the_wanted_one_stays() -> None:
    published_order = tuple(gpu(index).uuid for index in (1, 0, 2))

    assert next_order([offer(0, 20, 60), offer(1, 0, 80), offer(2)], published_order) == published_order


@given(st.lists(st.tuples(st.integers(0, 80), st.integers(0, 80)), min_size=1, max_size=12), st.randoms())
def test_an_order_settles_at_once(loads: list[tuple[int, int]], random: Random) -> None:
    offers = [offer(index, free, held) for index, (free, held) in enumerate(loads)]
    order = [each.gpu.uuid for each in offers]
    random.shuffle(order)

    settled = next_order(offers, order)

    assert sorted(settled) == sorted(order)
    assert next_order(offers, settled) == settled


def test_content_is_the_same_whatever_the_generation_and_the_times() -> None:
    one, other = (published([offer()], sick(offer()))[1] for _ in range(2))
    other.spec.pool.generation = 7
    stored = other.to_dict()
    stored["spec"]["devices"][0]["taints"][0]["timeAdded"] = "2026-11-21T01:58:32Z"

    assert content(ResourceSlice.from_dict(stored)) == content(one)  # type: ignore[arg-type]
    assert content(published([offer(free_gib=1)])[1]) != content(one)


def test_the_least_memory_is_asked_by_default_where_there_is_no_more() -> None:
    (policy,) = [devices(published([offer(free_gib=1)]))[SHARED]["capacity"]["memory"]["requestPolicy"]]

    assert policy["default"] == "1Gi"
    slices = pool_slices(NODE, [offer()], {}, {gpu().uuid: 80 * GIB}, default_bytes=300 * MIB)
    assert devices(slices)[SHARED]["capacity"]["memory"]["requestPolicy"]["default"] == "256Mi"
