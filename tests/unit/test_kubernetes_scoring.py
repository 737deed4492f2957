"""What a pod asks for is read from its objects, and what nodes have from theirs."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lightkube.models import core_v1, resource_v1

from pgpu.errors import RequestError
from pgpu.kubernetes.extender import scheduled_objects
from pgpu.kubernetes.extender.cluster_state import ClusterState
from pgpu.kubernetes.extender.scheduled_objects import (
    GIB_RESOURCE,
    ClaimKey,
    ClaimState,
    ConsumedGpu,
    GpuClass,
    GpuDemand,
    NodeCapacity,
    PodClaim,
    PodState,
    PublishedSlice,
    SharedGpu,
)
from pgpu.kubernetes.extender.scorer import demand_of
from pgpu.model import SharingMode
from pgpu.scheduling.cluster_resources import JobShape
from pgpu.structs import replace
from pgpu.units import GIB, MIB

RECORDED = Path(__file__).parents[1] / "fakes" / "recorded"
SLICES, WHOLE = "gpu.pgpu.io", "whole.gpu.pgpu.io"


def recorded(name: str) -> list[Any]:
    found: list[Any] = json.loads((RECORDED / f"{name}.json").read_text())["items"]
    return found


def a_pod(spec: dict[str, Any], status: dict[str, Any] | None = None) -> PodState:
    written = {"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec, "status": status or {}}
    pod = scheduled_objects.pod_of(msgspec.convert(written, core_v1.Pod))
    assert pod is not None
    return pod


def asking(requests: dict[str, str], **more: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": requests}, **more}


def test_recorded_objects_are_read() -> None:
    shelves = [
        scheduled_objects.slice_of(msgspec.convert(one, resource_v1.ResourceSlice))
        for one in recorded("resourceslices")
    ]
    claims = [
        scheduled_objects.claim_of(msgspec.convert(one, resource_v1.ResourceClaim))
        for one in recorded("resourceclaims")
    ]

    card = SharedGpu("gpu-0", 80 * GIB, 1 * GIB, 256 * MIB, "FAKE H100", frozenset({("productName", "FAKE H100")}))
    assert shelves[0] == PublishedSlice("node1-gpu.pgpu.io", "node1", 5, "node1", (card, replace(card, gpu="gpu-1")))
    by_name = {claim.key.name: claim for claim in claims}
    assert by_name["claim-a"].demands == (GpuDemand(SLICES, 1, 30 * GIB, 0),)
    assert by_name["claim-a"].taken == (ConsumedGpu("node1", "gpu-0", 30 * GIB, 0),)
    assert by_name["claim-a"].user_uids == {"c4bbe6ba-b6ca-4faf-a41d-d5e678af62d3"}


@pytest.mark.parametrize(
    ("name", "expression", "read"),
    [
        (SLICES, 'device.driver == "gpu.pgpu.io" && device.allowMultipleAllocations', GpuClass(SLICES, is_whole=False)),
        (WHOLE, 'device.driver == "gpu.pgpu.io" && !device.allowMultipleAllocations', GpuClass(WHOLE, is_whole=True)),
        (
            "gold",
            "device.driver == 'gpu.pgpu.io' && ! device.allowMultipleAllocations",
            GpuClass("gold", is_whole=True),
        ),
        ("part-shared", 'device.driver == "part.pgpu.io" && device.allowMultipleAllocations', None),
    ],
)
def test_a_class_of_our_devices_is_told_by_what_it_says_of_the_driver(
    name: str, expression: str, read: GpuClass | None
) -> None:
    written = {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}

    found = scheduled_objects.class_of(msgspec.convert(written, resource_v1.DeviceClass))
    assert found == (read and replace(read, selectors=(expression,)))


def test_a_pod_needs_what_its_containers_need_together_or_its_hungriest_start() -> None:
    pod = a_pod(
        {
            "containers": [asking({"cpu": "500m", "memory": "1Gi"}), asking({"cpu": "1"})],
            "initContainers": [
                asking({"cpu": "250m"}, restartPolicy="Always"),
                asking({"cpu": "3", "memory": "100Mi"}),
            ],
            "overhead": {"memory": "10Mi"},
        }
    )

    assert pod.cpu_milli == 3250
    assert pod.host_memory_bytes == GIB + 10 * MIB


def test_limits_stand_for_requests_that_are_not_said() -> None:
    pod = a_pod({"containers": [{"name": "c", "resources": {"limits": {"cpu": "2", "pgpu.io/gpu-slice": "1"}}}]})

    assert (pod.cpu_milli, pod.resources) == (2000, {"pgpu.io/gpu-slice": 1})


def test_a_pod_that_has_ended_asks_for_nothing() -> None:
    written = {"metadata": {"uid": "u"}, "spec": {"containers": []}, "status": {"phase": "Succeeded"}}

    assert scheduled_objects.pod_of(msgspec.convert(written, core_v1.Pod)) is None


@pytest.mark.parametrize("quantity", ["", "5 apples", "Gi", "1e99999999999", "1Gi2"])
def test_what_is_no_quantity_is_refused(quantity: str) -> None:
    with pytest.raises(RequestError):
        a_pod({"containers": [asking({"cpu": quantity})]})


def test_a_claim_made_of_a_template_is_found_by_the_pods_status_and_before_that_by_the_template() -> None:
    stock = a_stock()
    spec = {"containers": [], "resourceClaims": [{"name": "g", "resourceClaimTemplateName": "t"}]}
    made = {"resourceClaimStatuses": [{"name": "g", "resourceClaimName": "p-g-x"}]}
    stock.put_template(ClaimKey("ns", "t"), (GpuDemand(SLICES, 1, 10 * GIB),))

    assert demand_of(a_pod(spec), stock).shape.memory_bytes == 10 * GIB
    stock.put_claim(ClaimKey("ns", "p-g-x"), ClaimState(ClaimKey("ns", "p-g-x"), (GpuDemand(SLICES, 1, 20 * GIB),)))
    assert demand_of(a_pod(spec, made), stock).shape.memory_bytes == 20 * GIB


@pytest.mark.parametrize("resource", ["pgpu.io/gpu-slice", f"deviceclass.resource.kubernetes.io/{SLICES}"])
def test_an_extended_resource_asks_for_the_usual_size(resource: str) -> None:
    pod = PodState("u", "ns", None, 0, 0, {resource: 2})

    assert demand_of(pod, a_stock()).shape == JobShape(2, 0, 4 * GIB)


def test_what_is_asked_is_rounded_up_as_the_scheduler_does() -> None:
    assert demand_of(*a_claimant(GpuDemand(SLICES, 1, 1000 * MIB, 30))).shape == JobShape(1, 300, GIB)


def test_a_whole_gpu_is_asked_for_alone() -> None:
    wanted = demand_of(*a_claimant(GpuDemand(WHOLE)))

    assert wanted.preference.sharing_mode is SharingMode.EXCLUSIVE
    assert wanted.shape == JobShape(1, 1000, 80 * GIB)


def test_selectors_of_claims_are_read() -> None:
    written = {
        "spec": {
            "devices": {
                "requests": [
                    {
                        "name": "gpu",
                        "exactly": {"deviceClassName": SLICES, "selectors": [{"cel": {"expression": "true"}}]},
                    }
                ]
            }
        }
    }

    claim = scheduled_objects.claim_of(msgspec.convert(written, resource_v1.ResourceClaim))

    assert claim.demands == (GpuDemand(SLICES, selectors=("true",)),)


def test_claims_on_other_drivers_devices_ask_for_nothing() -> None:
    assert demand_of(*a_claimant(GpuDemand("gpu.example.com", 1, 1 * GIB))).shape.gpu_count == 0


def test_who_shares_a_claim_that_is_allocated_asks_for_nothing() -> None:
    pod, stock = a_claimant(GpuDemand(SLICES, 1, 1 * GIB))
    stock.put_claim(pod_key(pod), replace(stock.claims[pod_key(pod)], is_allocated=True))

    assert demand_of(pod, stock).shape.gpu_count == 0


def a_stock(nodes: int = 2, gpus: int = 2) -> ClusterState:
    stock = ClusterState()
    fill(stock, nodes, gpus)
    return stock


def fill(stock: ClusterState, nodes: int, gpus: int, size_bytes: int = 80 * GIB) -> list[str]:
    names = [f"node{number:02}" for number in range(nodes)]
    for name in names:
        cards = tuple(SharedGpu(f"{name}-{number}", size_bytes, 4 * GIB, 256 * MIB) for number in range(gpus))
        stock.put_node(name, NodeCapacity(name, 64_000, 512 * GIB))
        stock.put_slice(name, PublishedSlice(name, name, 1, name, cards))
    stock.put_class(SLICES, GpuClass(SLICES, is_whole=False, extended_resource="pgpu.io/gpu-slice"))
    stock.put_class(WHOLE, GpuClass(WHOLE, is_whole=True))
    return names


def a_claimant(ask: GpuDemand) -> tuple[PodState, ClusterState]:
    stock = a_stock()
    pod = claiming("u")
    stock.put_claim(pod_key(pod), ClaimState(pod_key(pod), (ask,)))
    return pod, stock


def claiming(uid: str, cpu_milli: int = 0) -> PodState:
    return PodState(uid, "ns", None, cpu_milli, 0, {}, (PodClaim(f"claim-{uid}"),))


def pod_key(pod: PodState) -> ClaimKey:
    return ClaimKey("ns", f"claim-{pod.uid}")


def test_of_a_pool_only_the_newest_generation_counts() -> None:
    stock = a_stock(1, 2)
    newer = PublishedSlice("newer", "node00", 2, "node00", (SharedGpu("other", GIB, GIB, 1),))

    stock.put_slice("newer", newer)
    assert [gpu.uuid for gpu in stock.offer("node00").gpus] == ["other"]
    stock.put_slice("newer", None)
    assert len(stock.offer("node00").gpus) == 2


def test_what_is_taken_is_given_back_when_its_claim_goes() -> None:
    stock = a_stock(1, 1)
    key, taken = ClaimKey("ns", "c"), ConsumedGpu("node00", "node00-0", 30 * GIB, 100)

    stock.put_claim(key, ClaimState(key, taken=(taken,), is_allocated=True))
    assert stock.offer("node00").gpus[0].free_memory_bytes == 50 * GIB
    assert stock.offer("node00").gpus[0].free_compute_milli == 900
    stock.put_claim(key, None)
    assert stock.offer("node00").gpus[0].is_idle


def test_of_a_gpu_that_somebody_has_alone_nothing_is_free() -> None:
    stock = a_stock(1, 1)
    key = ClaimKey("ns", "c")

    stock.put_claim(key, ClaimState(key, taken=(ConsumedGpu("node00", "node00-0", is_whole=True),), is_allocated=True))

    assert stock.offer("node00").gpus[0].free_share == 0


def test_a_node_with_the_device_plugin_is_one_number() -> None:
    stock = ClusterState()
    stock.put_node("old", NodeCapacity("old", 8000, 8 * GIB, gpu_gib=48))
    stock.put_pod("u", PodState("u", "ns", "old", 0, 0, {GIB_RESOURCE: 8}))

    assert stock.offer("old").gpus[0].free_memory_bytes == 40 * GIB
    assert demand_of(PodState("v", "ns", None, 0, 0, {GIB_RESOURCE: 4}), stock).shape == JobShape(1, 0, 4 * GIB)


def a_mixed_stock() -> ClusterState:
    """A node of each model, with a label, and one with the device plugin."""
    stock = ClusterState()
    for model, gib in (("T4", 16), ("A100", 80)):
        attributes = frozenset({("productName", model)})
        stock.put_node(model, NodeCapacity(model, 64_000, 512 * GIB, labels={"pool": model.lower(), "zone": "a"}))
        stock.put_slice(
            model,
            PublishedSlice(model, model, 1, model, (SharedGpu(model, gib * GIB, 4 * GIB, GIB, model, attributes),)),
        )
    stock.put_node("old", NodeCapacity("old", 8000, 8 * GIB, gpu_gib=48, labels={"nvidia.com/gpu.product": "P100"}))
    stock.put_class(SLICES, GpuClass(SLICES, is_whole=False))
    return stock


def accepted(stock: ClusterState, pod: PodState, demand: GpuDemand) -> frozenset[str] | None:
    stock.put_claim(pod_key(pod), ClaimState(pod_key(pod), (demand,)))
    return demand_of(pod, stock).shape.models


IS_T4 = 'device.attributes["gpu.pgpu.io"].productName == "T4"'


def test_the_models_that_a_claims_selectors_admit_are_those_that_its_pod_accepts() -> None:
    stock, pod = a_mixed_stock(), claiming("u")

    assert accepted(stock, pod, GpuDemand(SLICES, 1, GIB)) is None
    assert accepted(stock, pod, GpuDemand(SLICES, 1, GIB, selectors=(f"!({IS_T4})",))) == frozenset({"A100", "P100"})
    assert accepted(stock, pod, GpuDemand(SLICES, 1, GIB, selectors=("what.is(this)",))) is None
    stock.put_class(SLICES, GpuClass(SLICES, is_whole=False, selectors=(f'{IS_T4} && device.driver == "gpu.pgpu.io"',)))
    assert accepted(stock, pod, GpuDemand(SLICES, 1, GIB)) == frozenset({"T4", "P100"})


def test_a_pods_node_selector_limits_its_models_to_those_of_the_nodes() -> None:
    stock, pod = a_mixed_stock(), claiming("u")
    in_pool = a_pod(
        {
            "containers": [],
            "nodeSelector": {"zone": "a"},
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["t4"]}]}
                        ]
                    }
                }
            },
        }
    )

    assert accepted(stock, replace(pod, nodes=in_pool.nodes), GpuDemand(SLICES, 1, GIB)) == frozenset({"T4"})
    stock.put_node("T4", NodeCapacity("T4", 64_000, 512 * GIB, labels={"pool": "other"}))
    # No node that is known is admitted: that limits nothing.
    assert accepted(stock, replace(pod, nodes=in_pool.nodes), GpuDemand(SLICES, 1, GIB)) is None


def test_a_pod_of_the_device_plugin_names_models_by_its_node_selector() -> None:
    pod = a_pod({"containers": [asking({GIB_RESOURCE: "4"})], "nodeSelector": {"nvidia.com/gpu.product": "P100"}})

    assert demand_of(pod, a_mixed_stock()).shape == JobShape(1, 0, 4 * GIB, models=frozenset({"P100"}))


def test_the_default_size_is_that_of_the_smallest_gpu_that_is_admitted() -> None:
    stock, pod = a_mixed_stock(), claiming("u")
    stock.put_class(WHOLE, GpuClass(WHOLE, is_whole=True))
    accepted(
        stock,
        pod,
        GpuDemand(WHOLE, selectors=(f"!({IS_T4})", 'device.capacity["gpu.pgpu.io"].memory != quantity("48Gi")')),
    )

    assert demand_of(pod, stock).shape.memory_bytes == 80 * GIB
