"""The driver has every right that it needs and none more: for each verb of its ClusterRole there is one thing that fails without it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.fakes.api_objects import Object
from tests.fakes.api_rules import CONSUMABLE_CAPACITY, Rules
from tests.fakes.api_server import CLAIMS, EVENTS, PODS, ApiServer, User, running
from tests.fakes.claims import FakeClaims, gpu
from tests.manifests import KUSTOMIZE, charted, written

from pgpu.errors import CapacityError, ClusterAccessError
from pgpu.kubernetes import names
from pgpu.kubernetes.api import ClusterClient, ObjectName, connect
from pgpu.kubernetes.cdi_files import CdiFiles
from pgpu.kubernetes.cluster_events import EventRecorder
from pgpu.kubernetes.dra.claim_allocation import ClaimName
from pgpu.kubernetes.dra.claim_events import ClaimEvents
from pgpu.kubernetes.dra.claim_preparation import ClaimPreparer
from pgpu.kubernetes.node_health import DriverReadiness, HealthReport
from pgpu.kubernetes.node_requirements import DRIVER_RIGHTS
from pgpu.kubernetes.resource_slices import PoolPlanner, Publisher
from pgpu.units import GIB

NODE = "node1"
ROLE = ("ClusterRole", "", "pgpu-driver")
Right = tuple[str, str, str]
"""Group, resource and verb."""


class Healthy:
    def health(self) -> Mapping[str, HealthReport]:
        return {}


@dataclass
class World:
    """A node's driver, part by part, as its service account."""

    server: ApiServer
    cluster: ClusterClient
    claims: FakeClaims
    directory: Path

    def publisher(self) -> Publisher:
        looking = PoolPlanner(self.claims, Healthy())
        events = EventRecorder(self.cluster, NODE)
        return Publisher(self.cluster, NODE, looking, events=events, readiness=DriverReadiness())

    def preparer(self) -> ClaimPreparer:
        return ClaimPreparer(
            self.claims,
            self.cluster,
            CdiFiles(self.directory / "cdi", self.directory / "seals"),
            node=NODE,
            events=ClaimEvents(lambda *_: None),
            gpu_edits=lambda _: None,
            check_node=lambda: None,
        )

    def change(self) -> None:
        """Let somebody take memory whom the scheduler does not know of."""
        self.claims.outsiders_bytes[gpu().uuid] = 20 * GIB


def reads_its_node_and_publishes(world: World) -> None:
    assert world.publisher().publish() is not None
    assert world.server.slices()


def publishes_a_change(world: World) -> None:
    reads_its_node_and_publishes(world)
    world.change()
    written_anew = world.publisher().publish()
    assert written_anew is not None
    assert written_anew.is_new
    assert world.server.verbs().count("update") > 0


def takes_back_what_cannot_be_shared_any_more(world: World) -> None:
    reads_its_node_and_publishes(world)
    world.server.gates.remove(CONSUMABLE_CAPACITY)
    assert world.publisher().publish() is None
    assert not world.server.slices()


def hears_of_changes_by_others(world: World) -> None:
    reads_its_node_and_publishes(world)
    watch = world.cluster.watch_slices(names.DRIVER, NODE, "100")
    try:
        assert next(watch.changes()).kind == "ADDED"
    finally:
        watch.close()


def prepares_a_claim(world: World) -> None:
    uid = world.server.objects.create(CLAIMS, "team", allocated())["metadata"]["uid"]
    (device,) = world.preparer().prepare(ClaimName("team", "mine", uid), lambda: True)
    assert device.cdi_ids == (f"pgpu.io/gpu={uid}",)


def takes_over_from_a_pod_that_ended(world: World) -> None:
    pod = {"metadata": {"name": "old"}, "spec": {"containers": [{"name": "c"}]}, "status": {"phase": "Succeeded"}}
    user = {"resource": "pods", "name": "old", "uid": world.server.objects.create(PODS, "team", pod)["metadata"]["uid"]}
    old = world.server.objects.create(CLAIMS, "team", allocated("old", "60Gi", [user]))["metadata"]["uid"]
    new = world.server.objects.create(CLAIMS, "team", allocated("new", "60Gi"))["metadata"]["uid"]
    preparer = world.preparer()
    preparer.prepare(ClaimName("team", "old", old), lambda: True)
    try:
        preparer.prepare(ClaimName("team", "new", new), lambda: False)
    except CapacityError as exc:
        raise AssertionError("the pod that ended was not found") from exc


def tells_of_what_happens(world: World) -> None:
    recorder = EventRecorder(world.cluster, NODE)
    recorder.start()
    recorder.warn(ObjectName("v1", "Node", NODE), "Tried", "whether events may be written")
    recorder.stop()
    assert [each["reason"] for each in world.server.objects.all(EVENTS)] == ["Tried"]


DEEDS: dict[Right, Callable[[World], None]] = {
    ("", "nodes", "get"): reads_its_node_and_publishes,
    ("resource.k8s.io", "resourceslices", "list"): reads_its_node_and_publishes,
    ("resource.k8s.io", "resourceslices", "create"): reads_its_node_and_publishes,
    ("resource.k8s.io", "resourceslices", "update"): publishes_a_change,
    ("resource.k8s.io", "resourceslices", "delete"): takes_back_what_cannot_be_shared_any_more,
    ("resource.k8s.io", "resourceslices", "watch"): hears_of_changes_by_others,
    ("resource.k8s.io", "resourceclaims", "get"): prepares_a_claim,
    ("", "pods", "get"): takes_over_from_a_pod_that_ended,
    ("events.k8s.io", "events", "create"): tells_of_what_happens,
}


def allocated(name: str = "mine", memory: str = "4Gi", users: Sequence[Object] = ()) -> Object:
    result = {"request": "gpu", "driver": names.DRIVER, "pool": NODE, "device": names.shared_device(gpu().uuid)}
    result |= {"shareID": "1"}
    taken: Object = {**result, "consumedCapacity": {"memory": memory}}
    exactly = {"deviceClassName": names.SHARED_CLASS}
    return {
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        "status": {"allocation": {"devices": {"results": [taken]}}, "reservedFor": list(users)},
    }


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """A driver that may do what its ClusterRole says, but for the right that the test names."""
    missing: Right | None = getattr(request, "param", None)
    with running() as server:
        server.add_node(NODE)
        server.users["driver"] = User(rules_without(missing), node=NODE)
        cluster = ClusterClient(connect(server.kubeconfig(tmp_path, "driver")), pause=lambda _: True)
        (tmp_path / "cdi").mkdir()
        yield World(server, cluster, FakeClaims(tmp_path / "claims", [gpu()]), tmp_path)
        cluster.close()


def granted() -> set[Right]:
    return rights_in(written(KUSTOMIZE)[ROLE]["rules"])


def rights_in(rules: Rules) -> set[Right]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def rules_without(missing: Right | None) -> Rules:
    left = granted() - {missing} if missing else granted()
    return [{"apiGroups": [group], "resources": [resource], "verbs": [verb]} for group, resource, verb in left]


def named(right: Right) -> str:
    return f"{right[2]}-{right[1]}"


@pytest.mark.parametrize("deed", list(dict.fromkeys(DEEDS.values())))
def test_with_its_rights_the_driver_can_do_all_that_it_does(world: World, deed: Callable[[World], None]) -> None:
    deed(world)


@pytest.mark.parametrize(
    ("world", "right"), [(each, each) for each in DEEDS], indirect=["world"], ids=map(named, DEEDS)
)
def test_without_any_one_right_something_fails(world: World, right: Right) -> None:
    with pytest.raises((ClusterAccessError, AssertionError)):
        DEEDS[right](world)


def test_each_right_that_is_granted_is_one_that_something_needs() -> None:
    assert granted() == set(DEEDS)
    assert rights_in(charted()[ROLE]["rules"]) == set(DEEDS)
    assert rights_in(charted({"mode": "device-plugin"})[ROLE]["rules"]) == {("", "nodes", "get")}


def test_the_doctor_looks_for_exactly_these() -> None:
    assert {(each.group, each.resource, verb) for each in DRIVER_RIGHTS for verb in each.verbs} == set(DEEDS)


def test_the_driver_s_account_has_no_other_role() -> None:
    bindings = [found for (kind, _, _), found in written(KUSTOMIZE).items() if kind.endswith("RoleBinding")]
    assert [found["roleRef"]["name"] for found in bindings] == ["pgpu-driver"]
    assert not [kind for kind, _, _ in written(KUSTOMIZE) if kind == "Role"]
