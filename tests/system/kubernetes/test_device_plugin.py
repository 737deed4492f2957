"""GiB of GPU memory on older clusters: a kubelet's device manager asks over real sockets, and slices come and go with pods."""

from pathlib import Path

import grpc
import pytest
from tests.fakes.claims import gpu
from tests.fakes.kubelet_pods import FakePod, UnexpectedAdmissionError
from tests.system.kubernetes.plugin_world import CountingClaims, Make, edits, make, short_directory, until_looked
from tests.waiting import until

from pgpu.kubernetes.device_plugin.slice_delivery import MountDelivery
from pgpu.kubernetes.device_plugin.unit_slices import UnitSlices
from pgpu.kubernetes.unit_ids import uid_of, unit_of

__all__ = ["make", "short_directory"]


def test_a_node_has_one_unit_for_each_gib_and_their_ids_say_of_which_gpu(make: Make) -> None:
    node = make(gpus=2, gib=3)
    uuids = [each.uuid for each in node.claims.present]
    assert node.kubelet.healthy == {f"{uuid}::{number}" for uuid in uuids for number in range(3)}
    until(lambda: not node.readiness.problems())


def test_a_container_gets_one_slice_of_as_many_gib_as_it_asks_for(make: Make) -> None:
    node = make()
    pod = FakePod("p", {"c": 30})
    node.kubelet.admit(pod)
    assert node.slices() == [30]
    assert len(node.kubelet.ids(pod)) == 30


def test_a_container_is_told_to_mount_links_that_lead_to_its_slice(make: Make) -> None:
    node = make()
    pod = FakePod("p", {"c": 2})
    node.kubelet.admit(pod)
    answer = node.kubelet.start_container(pod, "c")
    delivery = node.claims.held()[0].delivery
    assert dict(answer.envs) == {"A": "1=2"}
    assert [(each.container_path, each.read_only) for each in answer.mounts] == [
        ("/.pgpu", True),
        ("/.pgpu/usage", False),
        ("/seal", True),
    ]
    assert Path(answer.mounts[0].host_path).readlink() == delivery.slice_directory
    assert Path(answer.mounts[2].host_path).resolve().is_file()
    assert [(each.container_path, each.host_path, each.permissions) for each in answer.devices] == [
        ("/dev/nvidia0", "/dev/nvidia0", "rw"),
        ("/dev/a", "/dev/b", "rwm"),
    ]


def test_the_densest_gpu_that_has_room_is_taken(make: Make) -> None:
    node = make(gpus=2, gib=80)
    first, second, third = FakePod("1", {"c": 50}), FakePod("2", {"c": 40}), FakePod("3", {"c": 30})
    for pod in (first, second, third):
        node.kubelet.admit(pod)
    places = [{unit_of(each).gpu_uuid for each in node.kubelet.ids(pod)} for pod in (first, second, third)]
    assert places[0] == places[2] != places[1]


def test_what_two_gpus_have_together_and_none_alone_is_refused_with_a_line_that_says_so(make: Make) -> None:
    node = make(gpus=2, gib=80)
    for name in ("a", "b"):
        node.kubelet.admit(FakePod(name, {"c": 40}))
    # Both lie on one GPU, so a third one fills half of the other; 40 and 40 are free then.
    node.kubelet.remove(FakePod("b"))
    node.kubelet.admit(FakePod("c", {"c": 60}))
    node.kubelet.remove(FakePod("c"))
    node.kubelet.admit(FakePod("d", {"c": 41}))
    free = len(node.kubelet.free())
    assert free == 79
    with pytest.raises(UnexpectedAdmissionError) as refused:
        node.kubelet.admit(FakePod("e", {"c": 60}))
    assert "60 GiB of one GPU are asked for: the node has 79 GiB free on 2 GPUs, and at most 40 of them on one" in str(
        refused.value
    )
    assert len(node.kubelet.free()) == free


def test_an_allocation_that_spans_gpus_is_refused_and_changes_nothing(make: Make) -> None:
    node = make(gpus=2, gib=2)
    with pytest.raises(grpc.RpcError) as refused:
        node.kubelet.allocate_by_hand(sorted(node.kubelet.healthy))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "4 GiB would lie on 2 GPUs" in (refused.value.details() or "")
    assert node.slices() == []


@pytest.mark.parametrize("ids", [[], ["x"], ["GPU-1::x"], ["::1"], ["GPU-1::1", "GPU-1::1"], ["GPU-1::٣"]])
def test_what_is_no_unit_is_refused(make: Make, ids: list[str]) -> None:
    node = make(gib=2)
    with pytest.raises(grpc.RpcError) as refused:
        node.kubelet.allocate_by_hand(ids)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert node.slices() == []


def test_every_call_may_come_twice(make: Make) -> None:
    node = make()
    pod = FakePod("p", {"c": 30})
    node.kubelet.admit(pod)
    ids = sorted(node.kubelet.ids(pod))
    first = node.claims.held()[0]
    assert node.kubelet.allocate_by_hand(ids) == node.kubelet.allocate_by_hand(ids[::-1])
    assert node.kubelet.start_container(pod, "c") == node.kubelet.start_container(pod, "c")
    assert node.claims.held()[0].job_id == first.job_id
    assert node.slices() == [30]


def test_a_container_that_restarts_finds_its_slice_without_being_allocated_again(make: Make) -> None:
    node = make()
    pod = FakePod("p", {"c": 5})
    node.kubelet.admit(pod)
    before = node.kubelet.start_container(pod, "c")
    node.claims.free(uid_of(unit_of(each) for each in node.kubelet.ids(pod)))  # as if a reboot had taken it
    link = Path(before.mounts[0].host_path)
    link.unlink()
    assert node.kubelet.start_container(pod, "c") == before
    assert node.slices() == [5]
    assert link.readlink() == node.claims.held()[0].delivery.slice_directory


def test_a_container_whose_slice_cannot_be_made_again_does_not_start(make: Make) -> None:
    node = make()
    pod = FakePod("p", {"c": 5})
    node.kubelet.admit(pod)
    node.claims.free(uid_of(unit_of(each) for each in node.kubelet.ids(pod)))
    gone, node.claims.present[:] = list(node.claims.present), []
    with pytest.raises(grpc.RpcError) as refused:
        node.kubelet.start_container(pod, "c")
    assert "is not on this node now" in (refused.value.details() or "")
    node.claims.present[:] = gone
    node.kubelet.start_container(pod, "c")


def test_a_slice_goes_when_no_pod_has_its_units_any_more(make: Make) -> None:
    node = make()
    stays, goes = FakePod("stays", {"c": 10}), FakePod("goes", {"c": 20})
    for pod in (stays, goes):
        node.kubelet.admit(pod)
        node.kubelet.start_container(pod, "c")
    links = [Path(each.host_path) for each in node.kubelet.start_container(goes, "c").mounts]
    until_looked(node)
    node.kubelet.remove(goes)
    until(lambda: node.slices() == [10])
    assert not any(each.is_symlink() for each in links)


def test_a_slice_stays_for_a_while_after_its_units_are_missing(make: Make) -> None:
    node = make(grace_seconds=1e9)
    pod = FakePod("p", {"c": 10})
    node.kubelet.admit(pod)
    until_looked(node)
    node.kubelet.remove(pod)
    until_looked(node)
    assert node.slices() == [10]


def test_the_slice_of_an_init_container_stays_while_it_runs_and_is_made_again_when_it_starts_again(make: Make) -> None:
    node = make()
    pod = FakePod("p", {"c": 0}, init={"i": 10})
    node.kubelet.admit(pod)
    node.run(pod, "i")
    until_looked(node)
    assert node.slices() == [10], "podresources does not show init containers"
    node.claims.processes.clear()
    until(lambda: node.slices() == [])
    node.run(pod, "i")
    assert node.slices() == [10]


def test_a_slice_with_any_process_in_it_is_not_freed(tmp_path: Path) -> None:
    inside = [True]
    claims = CountingClaims(tmp_path, [gpu()])
    allocations = UnitSlices(claims, MountDelivery(tmp_path / "links", edits), lambda _: inside[0], grace_seconds=0)
    allocations.allocate([f"{claims.present[0].uuid}::0"])
    for _ in range(3):
        assert allocations.free_unlisted([]) == []
    inside[0] = False
    assert len(allocations.free_unlisted([])) == 1


def test_a_slice_that_was_allocated_after_the_kubelet_was_asked_for_its_pods_stays(tmp_path: Path) -> None:
    claims = CountingClaims(tmp_path, [gpu()])
    allocations = UnitSlices(claims, MountDelivery(tmp_path / "links", edits), grace_seconds=0)
    allocations.allocate([f"{claims.present[0].uuid}::0"])
    assert allocations.free_unlisted([]) == []
    assert allocations.free_unlisted([f"{claims.present[0].uuid}::0"]) == []
    assert allocations.free_unlisted([]) == []
    assert claims.freed == []


def test_a_slice_in_use_stays_though_no_pod_shows_it(make: Make) -> None:
    node = make()
    pod = FakePod("p", {"c": 10})
    node.kubelet.admit(pod)
    until_looked(node)
    node.claims.processes[uid_of(unit_of(each) for each in node.kubelet.ids(pod))] = 1
    node.kubelet.remove(pod)
    until_looked(node)
    assert node.slices() == [10]
    node.claims.processes.clear()
    until(lambda: node.slices() == [])


def test_containers_of_a_pod_may_have_the_units_of_its_init_container(make: Make) -> None:
    node = make()
    pod = FakePod("p", {"a": 4, "b": 6}, init={"i": 80})
    node.kubelet.admit(pod)
    node.kubelet.start_container(pod, "i")
    assert node.slices() == [80]
    for name in ("a", "b", "b"):
        node.kubelet.start_container(pod, name)
    assert node.slices() == [4, 6]


def test_a_new_pod_with_the_units_of_an_older_one_gets_a_slice_of_its_own(make: Make) -> None:
    node = make(grace_seconds=1e9)
    old = FakePod("old", {"c": 80})
    node.kubelet.admit(old)
    node.kubelet.start_container(old, "c")
    assert node.claims.freed == []
    node.kubelet.remove(old)
    node.kubelet.admit(FakePod("new", {"c": 80}))
    assert node.slices() == [80]
    assert node.claims.freed == [node.claims.held()[0].claim.uid]


def test_a_hundred_pods_get_a_slice_each_and_never_more_than_there_is(make: Make) -> None:
    node = make(gpus=2, gib=80)
    admitted = []
    for number in range(100):
        pod = FakePod(str(number), {"c": 1 + number % 3})
        if len(node.kubelet.free()) >= 3:
            node.kubelet.admit(pod)
            admitted.append(pod)
    wanted = sorted(pod.containers["c"] for pod in admitted)
    assert node.slices() == wanted
    assert sum(wanted) <= 160
    assert len(node.kubelet.free()) == 160 - sum(wanted)
    for pod in admitted:
        node.kubelet.start_container(pod, "c")
    until_looked(node)
    for pod in admitted:
        node.kubelet.remove(pod)
    until(lambda: node.slices() == [])
