"""Nodes are scored so that GPUs are filled."""

import itertools
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from lightkube.models import resource_v1
from tests.unit.test_kubernetes_scoring import (
    IS_T4,
    SLICES,
    WHOLE,
    claiming,
    fill,
    pod_key,
)

from pgpu.kubernetes.extender import scheduled_objects
from pgpu.kubernetes.extender.scheduled_objects import (
    ClaimKey,
    ClaimState,
    ConsumedGpu,
    GpuDemand,
    NodeCapacity,
    PodState,
    PublishedSlice,
    SharedGpu,
)
from pgpu.kubernetes.extender.scorer import FIRST_RATING, GIVE_UP_SECONDS, MOST_RECENT, DemandMix, Scorer
from pgpu.scheduling.cluster_resources import JobShape
from pgpu.structs import replace
from pgpu.units import GIB


class Town:
    """A scorer, the nodes that it scores, and the scheduler that does as it says."""

    def __init__(self, nodes: int = 4, gpus: int = 2) -> None:
        self.now_seconds = 0.0
        self.scorer = Scorer(lambda: self.now_seconds)
        self.names = fill(self.scorer.state, nodes, gpus)
        self._numbers = itertools.count()

    def ask(
        self, ask: GpuDemand | None, nodes: list[str] | None = None, cpu_milli: int = 0
    ) -> tuple[PodState, list[int]]:
        pod = claiming(str(next(self._numbers)), cpu_milli)
        if ask is None:
            pod = replace(pod, claims=())
        else:
            self.scorer.put_claim(pod_key(pod), ClaimState(pod_key(pod), (ask,)))
        return pod, self.scorer.score(pod, self.names if nodes is None else nodes)

    def allocate(self, pod: PodState, ask: GpuDemand, node: str, gpu: int) -> None:
        taken = ConsumedGpu(node, f"{node}-{gpu}", ask.memory_bytes or 0, 10 * ask.compute_percent)
        self.scorer.put_claim(pod_key(pod), ClaimState(pod_key(pod), (ask,), is_allocated=True, taken=(taken,)))
        self.scorer.put_pod(pod.uid, replace(pod, node=node))


TWENTY = GpuDemand(SLICES, 1, 20 * GIB)


def test_one_node_is_the_best_and_all_that_can_host_score_more_than_those_that_cannot() -> None:
    town = Town()

    scores = town.ask(TWENTY)[1]

    assert max(scores) == 10
    assert scores.count(10) == 1
    assert min(scores) >= 1


def test_gpus_are_filled_one_after_the_other_although_no_allocation_was_heard_of() -> None:
    town = Town()

    best = [town.names[town.ask(TWENTY)[1].index(10)] for _ in range(8)]

    assert len(set(best)) == 1


def test_claims_of_one_size_fill_what_is_begun_before_they_begin_another_gpu() -> None:
    """Also after the mix was looked at."""
    town = Town(nodes=30, gpus=4)
    heard = [town.names[town.ask(TWENTY)[1].index(10)] for _ in range(200)]

    assert len(set(heard)) == 200 / 16 + 0.5


def test_a_node_without_room_scores_nothing() -> None:
    town = Town(nodes=2, gpus=1)
    for _ in range(4):
        town.ask(TWENTY)

    assert sorted(town.ask(TWENTY)[1]) == [0, 10]


def test_nodes_that_nobody_told_of_score_nothing() -> None:
    assert Town(nodes=1).ask(TWENTY, ["elsewhere", "node00", "nowhere"])[1] == [0, 10, 0]


def test_no_nodes_have_no_scores() -> None:
    assert Town().ask(TWENTY, [])[1] == []


def test_a_pod_that_is_tried_again_is_counted_once() -> None:
    town = Town(nodes=1, gpus=1)
    pod, _ = town.ask(TWENTY)

    for _ in range(10):
        assert town.scorer.score(pod, town.names) == [10]

    assert town.scorer.state.offer("node00").gpus[0].free_memory_bytes == 60 * GIB


def test_where_a_pod_went_counts_and_not_where_it_was_advised_to_go() -> None:
    town = Town(nodes=2, gpus=1)
    pod, scores = town.ask(TWENTY)
    other = town.names[1 - scores.index(10)]

    town.allocate(pod, TWENTY, other, 0)

    free = {name: town.scorer.state.offer(name).gpus[0].free_memory_bytes for name in town.names}
    assert free == {other: 60 * GIB, town.names[scores.index(10)]: 80 * GIB}


def test_a_pod_with_an_extended_resource_is_known_again_by_whom_its_claim_is_for() -> None:
    town = Town(nodes=1, gpus=1)
    pod = PodState("ext", "ns", None, 0, 0, {"pgpu.io/gpu-slice": 1})
    town.scorer.score(pod, town.names)
    key, taken = ClaimKey("ns", "made-later"), ConsumedGpu("node00", "node00-0", 4 * GIB)

    town.scorer.put_claim(key, ClaimState(key, (), is_allocated=True, taken=(taken,), user_uids=frozenset({"ext"})))

    assert town.scorer.state.offer("node00").gpus[0].free_memory_bytes == 76 * GIB


def test_who_is_gone_or_was_never_heard_of_again_is_counted_no_more() -> None:
    town = Town(nodes=1, gpus=1)
    gone, _ = town.ask(TWENTY, cpu_milli=500)
    town.ask(TWENTY, cpu_milli=500)

    town.scorer.put_pod(gone.uid, None)
    assert town.scorer.state.offer("node00").gpus[0].free_memory_bytes == 60 * GIB
    town.now_seconds = GIVE_UP_SECONDS
    town.ask(None)
    assert town.scorer.state.offer("node00").gpus[0].is_idle
    assert town.scorer.state.offer("node00").cpu_milli == 64_000


def test_a_pod_without_gpu_rather_goes_where_there_is_none_and_those_are_equal() -> None:
    town = Town(nodes=2)
    for name in ("plain1", "plain2"):
        town.scorer.update(lambda stock, name=name: stock.put_node(name, NodeCapacity(name, 8000, 8 * GIB)))  # type: ignore[misc]

    scores = town.ask(None, [*town.names, "plain1", "plain2"], cpu_milli=100)[1]

    assert scores[2:] == [10, 10]
    assert max(scores[:2]) < 10


def test_a_whole_gpu_is_taken_of_a_node_that_is_begun() -> None:
    town = Town(nodes=3, gpus=2)
    pod = town.ask(TWENTY)[0]
    town.allocate(pod, TWENTY, town.names[1], 0)

    assert town.ask(GpuDemand(WHOLE))[1].index(10) == 1


def test_a_node_that_comes_later_is_scored() -> None:
    town = Town(nodes=1, gpus=1)
    town.ask(GpuDemand(SLICES, 1, 80 * GIB))
    town.names = fill(town.scorer.state, 2, 1)

    assert town.ask(GpuDemand(SLICES, 1, 80 * GIB))[1] == [0, 10]


def test_the_mix_is_looked_at_after_twice_as_many_pods_and_holds_each_once() -> None:
    mix = DemandMix()
    looks = []
    for number in range(4 * FIRST_RATING):
        mix.add(str(number), JobShape(1))
        mix.add(str(number), JobShape(2))
        if mix.is_due():
            looks.append(number + 1)

    assert looks == [FIRST_RATING, 2 * FIRST_RATING, 4 * FIRST_RATING]
    assert set(mix.counts) == {JobShape(1)}
    assert FIRST_RATING < MOST_RECENT


@given(st.lists(st.tuples(st.integers(1, 80), st.booleans(), st.integers(0, 3)), max_size=40), st.integers(1, 4))
def test_the_best_node_can_always_host_and_one_is_always_named_if_any_can(
    sizes: list[tuple[int, bool, int]], nodes: int
) -> None:
    town = Town(nodes=nodes, gpus=2)
    free = {name: [80, 80] for name in town.names}
    for size, is_heard_of, elsewhere in sizes:
        ask = GpuDemand(SLICES, 1, size * GIB)
        fitting = [name for name in town.names if max(free[name]) >= size]
        pod, scores = town.ask(ask, fitting)
        assert scores.count(10) == (1 if fitting else 0)
        if not fitting:
            continue
        node = fitting[elsewhere % len(fitting)] if is_heard_of else fitting[scores.index(10)]
        gpu = next(number for number, left in enumerate(free[node]) if left >= size)
        free[node][gpu] -= size
        town.allocate(pod, ask, node, gpu)
    for name in town.names:
        assert [gpu.free_memory_bytes // GIB for gpu in town.scorer.state.offer(name).gpus] == free[name]


def test_of_a_gpu_with_devices_of_several_kinds_there_is_one_and_none_of_what_is_tainted() -> None:
    def device(name: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi"}}, **more}

    ill = {"taints": [{"key": "gpu.pgpu.io/unhealthy", "effect": "NoExecute"}]}
    devices = [device("gpu-a"), device("gpu-a-mps"), {"name": "gpu-a-whole"}, device("gpu-b", **ill), device("gpu-c")]
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    written = {"spec": {"driver": SLICES, "nodeName": "n", "pool": pool, "devices": devices}}

    shelf = scheduled_objects.slice_of(msgspec.convert(written, resource_v1.ResourceSlice))

    assert shelf is not None
    assert shelf.gpus == tuple(SharedGpu(gpu, 80 * GIB, 80 * GIB, 1) for gpu in ("gpu-a", "gpu-c"))


def test_pods_for_any_model_leave_the_one_that_others_name() -> None:
    """Also while the mix is rated anew, a part with each answer."""
    town = Town(nodes=0)
    for number in range(8):
        name, model = f"node{number}", "T4" if number < 2 else "A100"
        attributes = frozenset({("productName", model)})
        gpus = tuple(SharedGpu(f"{name}-{card}", 80 * GIB, GIB, GIB, model, attributes) for card in range(4))
        town.scorer.state.put_node(name, NodeCapacity(name, 64_000, 512 * GIB))
        town.scorer.state.put_slice(name, PublishedSlice(name, name, 1, name, gpus))
        town.names.append(name)
    for_any, for_t4 = GpuDemand(SLICES, 1, 80 * GIB), GpuDemand(SLICES, 1, 40 * GIB, selectors=(IS_T4,))
    for number in range(FIRST_RATING + 8):
        pod, _ = town.ask(for_t4 if number % 4 == 0 else for_any)
        town.scorer.put_pod(pod.uid, None)

    assert all(town.ask(for_any)[1].index(10) >= 2 for _ in range(24))
    assert town.ask(for_t4)[1].index(10) < 2
