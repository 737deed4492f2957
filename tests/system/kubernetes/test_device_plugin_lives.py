"""The device plugin over the ends of kubelets, drivers and GPUs."""

import os
from pathlib import Path

import grpc
import pytest
from tests.fakes.claims import gpu
from tests.fakes.kubelet_pods import FakePod, UnexpectedAdmissionError
from tests.system.kubernetes.plugin_world import CountingClaims, Make, edits, make, short_directory, until_looked
from tests.waiting import until

from pgpu.kubernetes.device_plugin.device_plugin import UnitInventory
from pgpu.kubernetes.device_plugin.slice_delivery import MountDelivery
from pgpu.kubernetes.device_plugin.unit_slices import UnitSlices
from pgpu.kubernetes.unit_ids import unit_of
from pgpu.units import GIB

__all__ = ["make", "short_directory"]


def test_a_kubelet_that_starts_again_is_registered_with_again_and_slices_stay(make: Make) -> None:
    node = make()
    pod = FakePod("p", {"c": 10})
    node.kubelet.admit(pod)
    node.run(pod)
    held = node.claims.held()
    node.kubelet.stop()
    until(lambda: "registered with the kubelet" in node.readiness.problems())
    node.kubelet.knows_its_pods = False
    node.kubelet.start()
    node.until_known(80)
    until_looked(node)
    assert node.claims.held() == held, "a kubelet that was just started knows no pods"
    assert not node.claims.freed
    node.kubelet.knows_its_pods = True
    node.run(pod)
    until_looked(node)
    assert not node.claims.freed
    node.remove(pod)
    until(lambda: node.slices() == [])


def test_a_kubelet_s_socket_with_the_same_inode_is_another_one(make: Make) -> None:
    node = make()
    before, inode = node.kubelet.registrations, node.kubelet.socket.stat().st_ino
    node.kubelet.socket.chmod(0o700)  # its time of change is another now
    assert node.kubelet.socket.stat().st_ino == inode
    until(lambda: node.kubelet.registrations > before)
    node.until_known(80)


def test_a_kubelet_that_lost_us_is_told_again(make: Make) -> None:
    node = make()
    before = node.kubelet.registrations
    node.kubelet.forget_plugin()
    until(lambda: node.kubelet.registrations > before)
    node.until_known(80)


def test_our_socket_is_made_again_where_somebody_removed_it(make: Make) -> None:
    node = make()
    before = node.kubelet.registrations
    os.unlink(node.kubelet.socket.with_name("pgpu-gpu-memory.sock"))  # noqa: PTH108
    until(lambda: node.kubelet.registrations > before)
    node.until_known(80)


def test_a_kubelet_that_refuses_is_asked_again_and_its_words_are_told(make: Make) -> None:
    node = make()
    node.kubelet.stop()
    node.kubelet.refusal = "the resource is taken"
    node.kubelet.start()
    node.until_known(80)
    assert any("the resource is taken" in each for each in node.said)


def test_a_driver_that_dies_leaves_slices_and_the_next_one_takes_them_over(make: Make) -> None:
    node = make()
    pod = FakePod("p", {"c": 10})
    node.kubelet.admit(pod)
    held = node.claims.held()[0]
    node.stop_plugin()
    until(lambda: not node.kubelet.healthy)
    with pytest.raises(UnexpectedAdmissionError):
        node.kubelet.admit(FakePod("q"))
    node.start_plugin()
    node.until_known(80)
    assert node.claims.held() == [held]
    node.kubelet.start_container(pod, "c")
    assert node.claims.held() == [held]
    node.stop_plugin()
    node.kubelet.remove(pod)
    node.start_plugin()
    until(lambda: node.slices() == [])


def test_the_units_of_a_gpu_that_is_gone_are_unhealthy_and_come_back(make: Make) -> None:
    node = make(gpus=2, gib=4)
    gone = node.claims.present.pop()
    node.until_known(4)
    assert {unit_of(each).gpu_uuid for each in node.kubelet.unhealthy} == {gone.uuid}
    node.claims.present.append(gone)
    node.until_known(8)


def test_units_for_which_there_is_no_room_are_unhealthy_but_never_those_in_use(make: Make) -> None:
    node = make(gib=8)
    pod = FakePod("p", {"c": 3})
    node.kubelet.admit(pod)
    node.claims.outsiders_bytes[node.claims.present[0].uuid] = 4 * GIB
    node.until_known(4)
    assert node.kubelet.ids(pod) <= node.kubelet.healthy


def test_a_look_at_the_gpus_while_a_slice_comes_or_goes_takes_no_unit_from_the_node(tmp_path: Path) -> None:
    claims = CountingClaims(tmp_path, [gpu(0, 76 * GIB)])
    allocations = UnitSlices(claims, MountDelivery(tmp_path / "links", edits))
    roster = UnitInventory(claims, allocations.in_use)
    roster.refresh()
    seen: list[int] = []

    def look() -> None:
        roster.refresh()
        seen.append(sum(each.is_healthy for each in roster.current()[1]))

    claims.meanwhile = look
    ids = [each.unit.id for each in roster.current()[1]]
    allocations.allocate(ids[:30])
    allocations.allocate(ids[30:60])
    allocations.start(ids[:30])
    allocations.allocate(ids[:40])
    assert set(seen) == {76}, seen


def test_a_slice_that_goes_while_the_gpus_are_looked_at_takes_no_unit_from_the_node(tmp_path: Path) -> None:
    claims = CountingClaims(tmp_path, [gpu(0, 76 * GIB)])
    allocations = UnitSlices(claims, MountDelivery(tmp_path / "links", edits), grace_seconds=0)
    roster = UnitInventory(claims, allocations.in_use)
    roster.refresh()
    ids = [each.unit.id for each in roster.current()[1]]
    allocations.allocate(ids[:30])
    allocations.free_unlisted([])
    claims.after_gpus = lambda: allocations.free_unlisted([])
    roster.refresh()
    assert claims.freed
    assert all(each.is_healthy for each in roster.current()[1])


def test_a_gpu_that_is_fuller_than_the_kubelet_knows_refuses_the_pod(make: Make) -> None:
    node = make(gib=8)
    ids = sorted(node.kubelet.healthy)
    node.claims.outsiders_bytes[node.claims.present[0].uuid] = 7 * GIB
    with pytest.raises(grpc.RpcError):
        node.kubelet.allocate_by_hand(ids[:2])
    assert node.slices() == []
