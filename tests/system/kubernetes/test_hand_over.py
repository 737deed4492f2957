"""A GPU's memory passes from a pod that leaves to the next one: no first Prepare fails, and what stays keeps its slice."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.api_server import CLAIMS, PODS, Fault
from tests.fakes.claims import FakeClaims, gpu
from tests.system.kubernetes.driver_world import GPU, World, allocated, result, world
from tests.waiting import until

from pgpu.engine.claims import ClaimableGpu
from pgpu.errors import CapacityError, ClusterUnavailableError
from pgpu.kubernetes import names
from pgpu.kubernetes.api import AllocatedDevice, ClaimUser, PodLifecycle, ResourceClaim
from pgpu.kubernetes.dra import dra_service
from pgpu.kubernetes.dra.claim_allocation import NOTE
from pgpu.kubernetes.dra.hand_over import HandOver
from pgpu.kubernetes.generated import dra_v1_pb2 as dra
from pgpu.model import Claim, HeldClaim, Slice
from pgpu.units import GIB


@pytest.fixture
def node() -> Iterator[World]:
    with world(gpus=2) as made:
        yield made


def add_pod(node: World, name: str = "old") -> dict[str, str]:
    """Create a running pod, and return how a claim names it."""
    pod = {"metadata": {"name": name}, "spec": {"containers": [{"name": "main"}]}, "status": {"phase": "Running"}}
    uid = node.api.objects.create(PODS, "default", pod)["metadata"]["uid"]
    return {"resource": "pods", "name": name, "uid": uid}


def change_pod(node: World, name: str = "old", **status: str) -> None:
    found = node.api.objects.get(PODS, "default", name)
    node.api.objects.update(PODS, "default", found | {"status": found["status"] | status})


def take(node: World, users: Sequence[dict[str, str]], memory: str = "80Gi") -> dra.Claim:
    """Prepare a claim of some pods, and return it."""
    found = allocated("old", [result(memory)])
    found["status"]["reservedFor"] = list(users)
    claim = node.add(found)
    assert not node.kubelet.prepare(claim)[claim.uid].error
    return claim


def held(node: World) -> list[str]:
    return [each.claim.uid for each in node.claims.held()]


def begin(node: World, claim: dra.Claim, timeout_seconds: float = 45) -> Any:
    """Begin to prepare a claim, and return the call once it waits for the pod `old`."""
    before = node.api.verbs("pods").count("get")
    call = node.kubelet.begin_prepare(claim, timeout_seconds)
    until(lambda: node.api.verbs("pods").count("get") > before)
    return call


def is_deleted(node: World) -> None:
    found = node.api.objects.get(PODS, "default", "old")
    found["metadata"]["deletionTimestamp"] = "2026-11-28T10:00:00Z"
    node.api.objects.update(PODS, "default", found)


def succeeds(node: World) -> None:
    change_pod(node, phase="Succeeded")


def fails(node: World) -> None:
    change_pod(node, phase="Failed")


def is_removed_by_force(node: World) -> None:
    node.api.objects.delete(PODS, "default", "old")


def is_replaced(node: World) -> None:
    is_removed_by_force(node)
    add_pod(node)


def leaves_with_its_claim(node: World) -> None:
    is_removed_by_force(node)
    node.api.objects.delete(CLAIMS, "default", "old")


def loses_its_claim(node: World) -> None:
    found = node.api.objects.get(CLAIMS, "default", "old")
    node.api.objects.update(CLAIMS, "default", found | {"status": {}})


def has_its_claim_on_another_node(node: World) -> None:
    found = node.api.objects.get(CLAIMS, "default", "old")
    elsewhere = allocated("old", [result(pool="node2")])["status"] | {"reservedFor": [add_pod(node, "next")]}
    node.api.objects.update(CLAIMS, "default", found | {"status": elsewhere})


LEAVES = (
    is_deleted,
    succeeds,
    fails,
    is_removed_by_force,
    is_replaced,
    leaves_with_its_claim,
    loses_its_claim,
    has_its_claim_on_another_node,
)


@pytest.mark.parametrize("leave", LEAVES)
def test_the_claim_of_a_pod_that_leaves_is_released_where_no_process_holds_the_gpu(
    node: World, leave: Callable[[World], None]
) -> None:
    with node.running():
        old, new = take(node, [add_pod(node)]), node.add(allocated("new"))
        leave(node)
        assert not node.kubelet.prepare(new)[new.uid].error
        assert held(node) == [new.uid]
        assert not node.cdi_file(old).exists()
        assert not node.kubelet.unprepare(old)[old.uid].error
    assert not [line for line in node.said if line.startswith("could not")]


@pytest.mark.parametrize("phase", ["Running", "Pending", "Unknown"])
def test_a_pod_that_crashes_and_restarts_keeps_its_slice(node: World, phase: str) -> None:
    with node.running():
        old, new = take(node, [add_pod(node)]), node.add(allocated("new"))
        change_pod(node, phase=phase)
        assert "do not fit on GPU" in node.kubelet.prepare(new)[new.uid].error
        assert held(node) == [old.uid]


def test_a_claim_stays_as_long_as_one_of_its_pods(node: World) -> None:
    with node.running():
        old, new = take(node, [add_pod(node), add_pod(node, "other")]), node.add(allocated("new"))
        succeeds(node)
        assert node.kubelet.prepare(new)[new.uid].error
        assert held(node) == [old.uid]


@pytest.mark.parametrize("code", [403, 503])
def test_pods_that_cannot_be_read_keep_their_slices(node: World, code: int) -> None:
    with node.running():
        old, new = take(node, [add_pod(node)]), node.add(allocated("new"))
        succeeds(node)
        node.api.faults.append(Fault(code, times=100, plural="pods"))
        assert "do not fit on GPU" in node.kubelet.prepare(new)[new.uid].error
        assert held(node) == [old.uid]
    assert any("whether the pods of claim default/old leave is unknown" in line for line in node.said)


def test_a_pod_that_leaves_another_gpu_is_not_disturbed(node: World) -> None:
    with node.running():
        old = take(node, [add_pod(node)])
        first, second = (
            node.add(allocated(name, [result("50Gi", device=names.shared_device(gpu(1).uuid))]))
            for name in ("first", "second")
        )
        node.kubelet.prepare(first)
        is_deleted(node)
        assert node.kubelet.prepare(second)[second.uid].error
        assert held(node) == [old.uid, first.uid]


def test_a_claim_waits_until_the_kubelet_has_unprepared_the_one_before(node: World) -> None:
    with node.running():
        old, new = take(node, [add_pod(node)]), node.add(allocated("new"))
        node.claims.processes[old.uid] = 1
        is_deleted(node)
        call = begin(node, new)
        assert held(node) == [old.uid]
        assert not node.kubelet.unprepare(old)[old.uid].error
        assert not call.result().claims[new.uid].error


def test_a_claim_waits_until_no_process_of_the_one_before_holds_the_gpu(node: World) -> None:
    with node.running():
        old, new = take(node, [add_pod(node)]), node.add(allocated("new"))
        node.claims.processes[old.uid] = 1
        leaves_with_its_claim(node)
        call = node.kubelet.begin_prepare(new)
        until(lambda: node.api.verbs("resourceclaims").count("get") >= 3)
        assert held(node) == [old.uid]
        node.claims.processes.clear()
        assert not call.result().claims[new.uid].error
        assert held(node) == [new.uid]


class LateGpu(FakeClaims):
    """A GPU whose driver reports memory of killed processes for one attempt too long."""

    def hold(self, claim: Claim, gpus: Sequence[ClaimableGpu] | None = None) -> HeldClaim:
        try:
            return super().hold(claim, gpus)
        except CapacityError:
            if len(self.records()) == 1:
                self.outsiders_bytes.clear()
            raise


def test_a_claim_is_tried_again_while_the_gpu_still_shows_memory_of_the_one_before(node: World) -> None:
    node.claims = LateGpu(node.root / "slices", [GPU])
    with node.running():
        old, new = take(node, [add_pod(node)], "60Gi"), node.add(allocated("new", [result("40Gi")]))
        node.kubelet.prepare(node.add(allocated("stays", [result("20Gi")])))
        node.claims.processes[old.uid] = 1
        is_deleted(node)
        call = begin(node, new)
        node.claims.outsiders_bytes[GPU.uuid] = 30 * GIB
        node.kubelet.unprepare(old)
        assert not call.result().claims[new.uid].error


def test_as_many_claims_wait_as_a_node_has_pods_and_unprepare_is_answered_beside_them(node: World) -> None:
    with node.running():
        old = take(node, [add_pod(node)])
        waiting = [node.add(allocated(f"new-{number}", [result("1Gi")])) for number in range(40)]
        node.claims.processes[old.uid] = 1
        is_deleted(node)
        calls = [node.kubelet.begin_prepare(claim) for claim in waiting]
        until(lambda: node.api.verbs("pods").count("get") >= len(calls))
        assert not node.kubelet.unprepare(old)[old.uid].error
        answers = [call.result().claims for call in calls]
        assert not [error for answer in answers for each in answer.values() if (error := each.error)]


def test_a_claim_that_the_kubelet_has_given_up_is_not_prepared_any_more(
    node: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dra_service, "WAIT_SECONDS", 1e6)
    with node.running():
        old, new = take(node, [add_pod(node)]), node.add(allocated("new"))
        node.claims.processes[old.uid] = 1
        is_deleted(node)
        begin(node, new, timeout_seconds=1e6).cancel()
        until(lambda: any(line.startswith("could not prepare claim default/new") for line in node.said))
        node.kubelet.unprepare(old)
        assert not held(node)


def test_a_claim_that_is_unprepared_while_it_waits_is_answered_at_once(node: World) -> None:
    with node.running():
        old, new = take(node, [add_pod(node)]), node.add(allocated("new"))
        node.claims.processes[old.uid] = 1
        is_deleted(node)
        call = begin(node, new)
        assert not node.kubelet.unprepare(new)[new.uid].error
        node.kubelet.unprepare(old)
        assert call.result().claims[new.uid].error
        assert not held(node)


def test_a_claim_is_answered_before_the_kubelet_stops_waiting(node: World) -> None:
    with node.running():
        old, new = take(node, [add_pod(node)]), node.add(allocated("new"))
        node.claims.processes[old.uid] = 1
        is_deleted(node)
        call = node.kubelet.begin_prepare(new, 15.5)
        assert "do not fit on GPU" in call.result().claims[new.uid].error
        assert held(node) == [old.uid]


def test_a_driver_that_stops_answers_claims_that_wait(node: World) -> None:
    with node.running():
        old, new = take(node, [add_pod(node)]), node.add(allocated("new"))
        node.claims.processes[old.uid] = 1
        is_deleted(node)
        call = begin(node, new)
    assert "do not fit on GPU" in call.result().claims[new.uid].error


def test_a_claim_that_the_next_pod_has_prepared_is_not_released(node: World) -> None:
    with node.running():
        kept, new = take(node, [add_pod(node)]), node.add(allocated("new"))
        node.claims.processes[kept.uid] = 1
        is_deleted(node)
        call = begin(node, new)
        found = node.api.objects.get(CLAIMS, "default", "old")
        status = found["status"] | {"reservedFor": [add_pod(node, "next")]}
        node.api.objects.update(CLAIMS, "default", found | {"status": status})
        assert not node.kubelet.prepare(kept)[kept.uid].error
        node.claims.processes.clear()
        assert "do not fit on GPU" in call.result().claims[new.uid].error
        assert held(node) == [kept.uid]


def test_a_claim_that_the_next_pod_shares_is_not_released(node: World) -> None:
    """The kubelet prepares it no second time, since it is prepared already."""
    with node.running():
        user = add_pod(node)
        kept, new = take(node, [user]), node.add(allocated("new"))
        node.claims.processes[kept.uid] = 1
        is_deleted(node)
        call = begin(node, new)
        found = node.api.objects.get(CLAIMS, "default", "old")
        status = found["status"] | {"reservedFor": [user, add_pod(node, "next")]}
        node.api.objects.update(CLAIMS, "default", found | {"status": status})
        node.claims.processes.clear()
        assert "do not fit on GPU" in call.result().claims[new.uid].error
        assert held(node) == [kept.uid]


def test_nothing_is_prepared_before_the_container_runtime_is_known(node: World) -> None:
    with node.running():
        old, new = take(node, [add_pod(node)], "30Gi"), node.add(allocated("new"))
        node.node_error = ClusterUnavailableError("the API server is away")
        assert "the API server is away" in node.kubelet.prepare(new)[new.uid].error
        assert not node.kubelet.unprepare(old)[old.uid].error


class SlowReader:
    """An API server that takes all the time of a call to return one pod, which is leaving."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def claim(self, namespace: str, name: str, must_end: Callable[[], bool] = lambda: False) -> ResourceClaim:
        assert not must_end()
        device = AllocatedDevice("gpu", names.DRIVER, "node1", "gpu0")
        return ResourceClaim(
            namespace, name, "old", (device,), users=tuple(ClaimUser("pods", pod, pod) for pod in "ab")
        )

    def pod(self, _namespace: str, name: str, must_end: Callable[[], bool] = lambda: False) -> PodLifecycle:
        self.read.append(name)
        assert must_end()
        return PodLifecycle(name, is_leaving=True)


def test_no_more_pods_are_read_once_the_call_must_be_answered(tmp_path: Path) -> None:
    claims, reader = FakeClaims(tmp_path, [GPU]), SlowReader()
    claims.hold(Claim("old", "default", "old", (Slice(GPU.uuid, 80 * GIB),), note=NOTE))
    hand_over = HandOver(claims, reader, "node1", claims.free)
    with hand_over.waiting("new", lambda: bool(reader.read)) as wait:
        wait.gpu_uuids = frozenset({GPU.uuid})
        with pytest.raises(CapacityError):
            hand_over.wait_for_room(wait, CapacityError("no room"))
    assert reader.read == ["a"]
