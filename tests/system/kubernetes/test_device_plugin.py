"""GiB of GPU memory on older clusters: a kubelet's device manager asks over real sockets, and slices come and go with pods."""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.fakes.claims import FakeClaims, gpu
from tests.fakes.kubelet_pods import FakeKubelet, FakePod, UnexpectedAdmissionError
from tests.waiting import until

from pgpu.enforcement import SliceUse
from pgpu.engine.claims import Offer
from pgpu.kubernetes.device_plugin.allocations import Allocations
from pgpu.kubernetes.device_plugin.delivering import ByMounts
from pgpu.kubernetes.device_plugin.plugin import SUBJECTS, DevicePlugin
from pgpu.kubernetes.device_plugin.roster import Roster
from pgpu.kubernetes.device_plugin.units import uid_of, unit_of
from pgpu.kubernetes.pods.asking import KubeletPods
from pgpu.kubernetes.readiness import Readiness
from pgpu.model import Claim, Delivery, Gpu, HeldClaim
from pgpu.units import GIB


class CountingClaims(FakeClaims):
    """Claims that know of processes, and say whose slices were taken away."""

    def __init__(self, directory: Path, gpus: Sequence[Gpu]) -> None:
        super().__init__(directory, gpus)
        self.processes: dict[str, int] = {}
        self.freed: list[str] = []
        self.after_gpus: Callable[[], object] = lambda: None
        self.meanwhile: Callable[[], object] = lambda: None
        """Happens when a slice was made or freed, before anybody hears of it."""

    def uses(self) -> Mapping[str, Sequence[SliceUse]]:
        return {
            uid: [replace(each, processes=self.processes.get(uid, 0)) for each in uses]
            for uid, uses in super().uses().items()
        }

    def gpus(self) -> Sequence[Offer]:
        offers = super().gpus()
        self.after_gpus()
        return offers

    def hold(self, claim: Claim) -> HeldClaim:
        held = super().hold(claim)
        self.meanwhile()
        return held

    def free(self, uid: str) -> None:
        self.freed.append(uid)
        super().free(uid)
        self.meanwhile()


@dataclass
class Node:
    """A kubelet, and our plugin beside it."""

    home: Path
    claims: CountingClaims
    kubelet: FakeKubelet
    grace_seconds: float = 0.0
    said: list[str] = field(default_factory=list)
    plugin: DevicePlugin | None = None

    def start_plugin(self) -> None:
        self.readiness = Readiness(self.said.append, SUBJECTS)
        self.plugin = DevicePlugin(
            claims=self.claims,
            pods=KubeletPods(self.kubelet.directory),
            delivering=ByMounts(self.home / "links", _edits),
            readiness=self.readiness,
            kubelet_directory=self.kubelet.directory,
            say=self.said.append,
            grace_seconds=self.grace_seconds,
            look_seconds=0.02,
        )
        self.plugin.start()

    def stop_plugin(self) -> None:
        if self.plugin is not None:
            self.plugin.close()
            self.plugin = None

    def until_known(self, units: int) -> None:
        until(lambda: len(self.kubelet.healthy) == units, lambda: (len(self.kubelet.healthy), self.said))

    def run(self, pod: FakePod, container: str = "c") -> None:
        """Start a container that uses its GPU."""
        self.kubelet.start_container(pod, container)
        self.claims.processes[uid_of(unit_of(each) for each in self.kubelet.ids(pod, container))] = 1

    def remove(self, pod: FakePod) -> None:
        """Let a pod end."""
        for name in self.kubelet.allocated.get((pod.namespace, pod.name), {}):
            self.claims.processes.pop(uid_of(unit_of(each) for each in self.kubelet.ids(pod, name)), None)
        self.kubelet.remove(pod)

    def slices(self) -> list[int]:
        """How many GiB each slice has."""
        return sorted(each.claim.slices[0].memory_bytes // GIB for each in self.claims.held())


def _edits(delivery: Delivery, seal: Path) -> dict[str, list[Any]]:
    return {
        "env": ["A=1=2"],
        "mounts": [
            {"hostPath": str(delivery.slice_directory), "containerPath": "/.pgpu", "options": ["bind", "ro"]},
            {"hostPath": str(delivery.usage_path), "containerPath": "/.pgpu/usage", "options": ["bind", "rw"]},
            {"hostPath": str(seal), "containerPath": "/seal", "options": ["bind", "ro"]},
        ],
        "deviceNodes": [{"path": "/dev/nvidia0", "permissions": "rw"}, {"path": "/dev/a", "hostPath": "/dev/b"}],
        "hooks": [{"hookName": "createContainer", "path": "/bin/true"}],
    }


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """Return one whose sockets' paths are not too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="k") as name:
        yield Path(name)


@pytest.fixture
def make(tmp_path: Path, short_directory: Path) -> Iterator[Callable[..., Node]]:
    made: list[Node] = []

    def node(gpus: int = 1, gib: int = 80, grace_seconds: float = 0.0) -> Node:
        claims = CountingClaims(tmp_path / "slices", [gpu(index, gib * GIB) for index in range(gpus)])
        made.append(Node(tmp_path, claims, FakeKubelet(short_directory), grace_seconds))
        made[-1].kubelet.start()
        made[-1].start_plugin()
        made[-1].until_known(gpus * gib)
        return made[-1]

    yield node
    for each in made:
        each.stop_plugin()
        each.kubelet.stop()


Make = Callable[..., Node]


def test_a_node_has_one_unit_for_each_gib_and_their_ids_say_of_which_gpu(make: Make) -> None:
    node = make(gpus=2, gib=3)
    uuids = [each.uuid for each in node.claims.present]
    assert node.kubelet.healthy == {f"{uuid}::{number}" for uuid in uuids for number in range(3)}
    until(lambda: not node.readiness.reasons())


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
    _until_looked(node)
    node.kubelet.remove(goes)
    until(lambda: node.slices() == [10])
    assert not any(each.is_symlink() for each in links)


def test_a_slice_stays_for_a_while_after_its_units_are_missing(make: Make) -> None:
    node = make(grace_seconds=1e9)
    pod = FakePod("p", {"c": 10})
    node.kubelet.admit(pod)
    _until_looked(node)
    node.kubelet.remove(pod)
    _until_looked(node)
    assert node.slices() == [10]


def test_the_slice_of_an_init_container_stays_while_it_runs_and_is_made_again_when_it_starts_again(make: Make) -> None:
    node = make()
    pod = FakePod("p", {"c": 0}, init={"i": 10})
    node.kubelet.admit(pod)
    node.run(pod, "i")
    _until_looked(node)
    assert node.slices() == [10], "podresources does not show init containers"
    node.claims.processes.clear()
    until(lambda: node.slices() == [])
    node.run(pod, "i")
    assert node.slices() == [10]


def test_a_slice_with_any_process_in_it_is_not_freed(tmp_path: Path) -> None:
    inside = [True]
    claims = CountingClaims(tmp_path, [gpu()])
    allocations = Allocations(
        claims, ByMounts(tmp_path / "links", _edits), lambda _: None, lambda _: inside[0], grace_seconds=0
    )
    allocations.allocate([f"{claims.present[0].uuid}::0"])
    for _ in range(3):
        assert allocations.look([]) == []
    inside[0] = False
    assert len(allocations.look([])) == 1


def test_a_slice_that_was_allocated_after_the_kubelet_was_asked_for_its_pods_stays(tmp_path: Path) -> None:
    claims = CountingClaims(tmp_path, [gpu()])
    allocations = Allocations(claims, ByMounts(tmp_path / "links", _edits), lambda _: None, grace_seconds=0)
    allocations.allocate([f"{claims.present[0].uuid}::0"])
    assert allocations.look([]) == []
    assert allocations.look([f"{claims.present[0].uuid}::0"]) == []
    assert allocations.look([]) == []
    assert claims.freed == []


def test_a_slice_in_use_stays_though_no_pod_shows_it(make: Make) -> None:
    node = make()
    pod = FakePod("p", {"c": 10})
    node.kubelet.admit(pod)
    _until_looked(node)
    node.claims.processes[uid_of(unit_of(each) for each in node.kubelet.ids(pod))] = 1
    node.kubelet.remove(pod)
    _until_looked(node)
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
    _until_looked(node)
    for pod in admitted:
        node.kubelet.remove(pod)
    until(lambda: node.slices() == [])


def test_a_kubelet_that_starts_again_is_registered_with_again_and_slices_stay(make: Make) -> None:
    node = make()
    pod = FakePod("p", {"c": 10})
    node.kubelet.admit(pod)
    node.run(pod)
    held = node.claims.held()
    node.kubelet.stop()
    until(lambda: "registered with the kubelet" in node.readiness.reasons())
    node.kubelet.knows_its_pods = False
    node.kubelet.start()
    node.until_known(80)
    _until_looked(node)
    assert node.claims.held() == held, "a kubelet that was just started knows no pods"
    assert not node.claims.freed
    node.kubelet.knows_its_pods = True
    node.run(pod)
    _until_looked(node)
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
    allocations = Allocations(claims, ByMounts(tmp_path / "links", _edits), lambda _: None)
    roster = Roster(claims, allocations.in_use)
    roster.refresh()
    seen: list[int] = []

    def look() -> None:
        roster.refresh()
        seen.append(sum(each.is_healthy for each in roster.now()[1]))

    claims.meanwhile = look
    ids = [each.unit.id for each in roster.now()[1]]
    allocations.allocate(ids[:30])
    allocations.allocate(ids[30:60])
    allocations.start(ids[:30])
    allocations.allocate(ids[:40])
    assert set(seen) == {76}, seen


def test_a_slice_that_goes_while_the_gpus_are_looked_at_takes_no_unit_from_the_node(tmp_path: Path) -> None:
    claims = CountingClaims(tmp_path, [gpu(0, 76 * GIB)])
    allocations = Allocations(claims, ByMounts(tmp_path / "links", _edits), lambda _: None, grace_seconds=0)
    roster = Roster(claims, allocations.in_use)
    roster.refresh()
    ids = [each.unit.id for each in roster.now()[1]]
    allocations.allocate(ids[:30])
    allocations.look([])
    claims.after_gpus = lambda: allocations.look([])
    roster.refresh()
    assert claims.freed
    assert all(each.is_healthy for each in roster.now()[1])


def test_a_gpu_that_is_fuller_than_the_kubelet_knows_refuses_the_pod(make: Make) -> None:
    node = make(gib=8)
    ids = sorted(node.kubelet.healthy)
    node.claims.outsiders_bytes[node.claims.present[0].uuid] = 7 * GIB
    with pytest.raises(grpc.RpcError):
        node.kubelet.allocate_by_hand(ids[:2])
    assert node.slices() == []


def _until_looked(node: Node) -> None:
    """Wait until the plugin has asked the kubelet twice for its pods."""
    before = node.kubelet.lists
    until(lambda: node.kubelet.lists >= before + 3)
