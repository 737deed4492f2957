"""A node's slices are kept as they should be, whatever others and the API server do."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import waiting
from tests.fakes.api_rules import CONSUMABLE_CAPACITY, DEVICE_TAINTS, GATES, PARTITIONABLE_DEVICES
from tests.fakes.api_server import NODES, SLICES, ApiServer, Fault, User, running
from tests.fakes.claims import gpu
from tests.system.kubernetes.driver_process import node_info
from tests.system.kubernetes.publisher_world import NODE, SHARED, World, wipe

from pgpu.errors import ClusterAccessError, ClusterUnavailableError, NodeError
from pgpu.kubernetes.node_health import HealthReport, HealthState
from pgpu.kubernetes.resource_slices import SUBJECT
from pgpu.units import GIB

ALL_RIGHTS = (
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": ["*"]},
    {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with running() as server:
        server.add_node(NODE)
        made = World(server, tmp_path)
        yield made
        made.end()


def test_the_gpus_of_a_node_are_published(world: World) -> None:
    world.publisher.start()

    waiting.until(lambda: len(world.server.slices()) == 2)
    waiting.until(lambda: not world.readiness.problems())
    assert len(world.devices) == 4
    (node,) = world.server.objects.all(NODES)
    assert {found["metadata"]["ownerReferences"][0]["uid"] for found in world.server.slices()} == {
        node["metadata"]["uid"]
    }


def test_nothing_is_published_of_a_node_whose_container_runtime_ignores_cdi(world: World) -> None:
    (node,) = world.server.objects.all(NODES)
    info = node_info() | {"containerRuntimeVersion": "containerd://1.6.33"}
    world.server.objects.update(NODES, "", node | {"status": {"nodeInfo": info}})
    with pytest.raises(NodeError, match="does not read CDI files"):
        world.publisher.publish()
    assert not world.server.slices()


def test_looking_again_writes_nothing(world: World) -> None:
    world.publisher.publish()
    writes = world.writes

    for _ in range(5):
        world.publisher.publish()

    assert world.writes == writes


def test_the_next_driver_takes_over_what_stands(world: World) -> None:
    world.publisher.publish()
    writes = world.writes

    written = world.another().publish()

    assert written is not None
    assert (written.is_new, written.generation, world.writes) == (False, 1, writes)


def test_slices_stay_when_the_driver_ends(world: World) -> None:
    world.publisher.start()
    waiting.until(lambda: len(world.server.slices()) == 2)

    world.publisher.stop()

    assert len(world.server.slices()) == 2


def test_wiped_slices_come_back_at_the_next_registration(world: World) -> None:
    world.publisher.publish()
    wipe(world.server)
    world.publisher.publish()

    assert len(world.server.slices()) == 2
    assert world.generations == {2}


def test_slices_that_are_wiped_at_any_time_come_back_by_the_watch_alone(world: World) -> None:
    world.publisher.start()
    for _ in range(3):
        waiting.until(lambda: len(world.server.slices()) == 2 and "watch" in world.server.verbs())
        wipe(world.server)
    waiting.until(lambda: len(world.server.slices()) == 2)


def test_a_slice_that_somebody_changed_is_set_right_by_the_watch_alone(world: World) -> None:
    world.publisher.start()
    waiting.until(lambda: len(world.server.slices()) == 2 and "watch" in world.server.verbs())

    changed = next(found for found in world.server.slices() if found["spec"].get("devices"))
    changed["spec"]["devices"] = []
    world.server.objects.update(SLICES, "", changed)

    waiting.until(lambda: len(world.devices) == 4)
    waiting.until(lambda: len(world.generations) == 1)


def test_a_broken_watch_and_forgotten_history_are_got_over(world: World) -> None:
    world.publisher.start()
    waiting.until(lambda: len(world.server.slices()) == 2 and "watch" in world.server.verbs())

    world.server.objects.forget_history()
    world.server.break_watches()
    wipe(world.server)

    waiting.until(lambda: len(world.server.slices()) == 2)


def test_every_change_raises_the_generation_of_all_slices(world: World) -> None:
    world.publisher.publish()
    world.ills.known = {gpu(0).uuid: HealthReport(gpu(0).uuid, HealthState.UNHEALTHY, "gone", 79)}

    world.publisher.publish()

    assert world.generations == {2}
    assert world.devices[SHARED]["taints"][0]["value"] == "xid-79"
    world.ills.known = {}
    world.publisher.publish()
    assert world.generations == {3}
    assert "taints" not in world.devices[SHARED]


def test_slices_of_two_generations_are_brought_to_one_though_they_say_what_they_should(world: World) -> None:
    world.publisher.publish()
    half_written = world.server.slices()[0]
    half_written["spec"]["pool"]["generation"] = 5
    world.server.objects.update(SLICES, "", half_written)

    world.another().publish()

    assert world.generations == {6}


def test_a_taint_keeps_the_time_since_when_it_is_there(world: World) -> None:
    world.ills.known = {gpu(0).uuid: HealthReport(gpu(0).uuid, HealthState.UNHEALTHY, "gone", 79)}
    world.publisher.publish()
    (found,) = (found for found in world.server.slices() if found["spec"].get("devices"))
    for device in found["spec"]["devices"]:
        for taint in device.get("taints", []):
            taint["timeAdded"] = "2026-11-21T01:58:32Z"
    world.server.objects.update(SLICES, "", found)
    world.claims.outsiders_bytes[gpu(1).uuid] = GIB

    world.publisher.publish()

    assert world.devices[gpu(1).uuid.lower()]["capacity"]["memory"]["value"] == "79Gi"
    assert world.devices[SHARED]["taints"][0]["timeAdded"] == "2026-11-21T01:58:32Z"


def test_less_memory_is_said_at_once_and_more_when_the_slices_stood_for_a_while(world: World) -> None:
    world.publisher.publish()
    world.claims.outsiders_bytes[gpu(0).uuid] = 10 * GIB
    world.publisher.publish()
    assert world.devices[SHARED]["capacity"]["memory"]["value"] == "70Gi"

    world.claims.outsiders_bytes.clear()
    world.publisher.publish()
    assert world.devices[SHARED]["capacity"]["memory"]["value"] == "70Gi"

    world.clock.now += 31
    world.publisher.publish()
    assert world.devices[SHARED]["capacity"]["memory"]["value"] == "80Gi"


def test_a_better_order_waits_until_the_slices_stood_for_a_while(world: World) -> None:
    world.publisher.publish()
    world.hold(1, 30 * GIB)
    world.publisher.publish()
    assert next(iter(world.devices)) == SHARED

    world.clock.now += 31
    world.publisher.publish()
    assert next(iter(world.devices)) == gpu(1).uuid.lower()


def test_a_gpu_that_is_lost_stays_tainted_so_that_its_pods_go(world: World) -> None:
    world.publisher.publish()
    lost = world.claims.present.pop()
    world.ills.known = {lost.uuid: HealthReport(lost.uuid, HealthState.UNHEALTHY, "not listed any more")}

    world.publisher.publish()

    assert world.devices[lost.uuid.lower()]["taints"][0]["effect"] == "NoExecute"
    assert "taints" not in world.devices[SHARED]


def test_a_gpu_of_which_nobody_knows_any_more_leaves_the_slices(world: World) -> None:
    world.publisher.publish()
    world.claims.present.pop()

    world.publisher.publish()

    assert len(world.devices) == 2


def test_gpus_that_cannot_be_read_get_no_new_pods(world: World) -> None:
    world.publisher.publish()
    world.unreadable.on = True

    world.publisher.publish()

    assert [device["taints"][0]["key"] for device in world.devices.values()] == ["gpu.pgpu.io/unknown"] * 4
    assert "cannot be read" in world.readiness.problems()[SUBJECT]
    world.unreadable.on = False
    world.publisher.publish()
    assert not any("taints" in device for device in world.devices.values())
    assert not world.readiness.problems()


def test_gpus_that_never_could_be_read_are_not_published(world: World) -> None:
    world.unreadable.on = True

    with pytest.raises(NodeError, match="lost its driver"):
        world.publisher.publish()

    assert world.server.slices() == []


def test_slices_of_another_version_of_pgpu_are_removed(world: World) -> None:
    pool = {"name": NODE, "generation": 41, "resourceSliceCount": 1}
    spec = {"driver": "gpu.pgpu.io", "nodeName": NODE, "pool": pool}
    old = {"metadata": {"name": "node1-gpu.pgpu.io"}, "spec": spec}
    world.server.objects.create(SLICES, "", old)

    world.publisher.publish()

    assert "node1-gpu.pgpu.io" not in {found["metadata"]["name"] for found in world.server.slices()}
    assert world.generations == {42}


def test_slices_of_other_nodes_and_drivers_are_left_alone(world: World) -> None:
    for name, driver, node in (("other", "gpu.nvidia.com", NODE), ("else", "gpu.pgpu.io", "node2")):
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": driver, "nodeName": node, "pool": pool}
        world.server.objects.create(SLICES, "", {"metadata": {"name": name}, "spec": spec})

    world.publisher.publish()

    assert {"other", "else"} <= {found["metadata"]["name"] for found in world.server.slices()}


@pytest.mark.parametrize("code", [409, 404, 429, 500, 503])
@pytest.mark.parametrize("after", [False, True])
def test_a_server_that_fails_once_leaves_the_slices_right(world: World, code: int, *, after: bool) -> None:
    for verb in ("get", "list", "create", "update", "delete"):
        if code == 404 and verb in {"get", "list"}:
            continue  # no fault: the node, or the kind, is not there
        world.server.faults.append(Fault(code, verb=verb, after=after))
    world.publisher.start()

    waiting.until(lambda: len(world.devices) == 4 and len(world.generations) == 1, lambda: world.said)
    world.claims.outsiders_bytes[gpu(0).uuid] = GIB
    world.publisher.wake()

    waiting.until(lambda: world.devices.get(SHARED, {}).get("capacity", {}).get("memory", {}).get("value") == "79Gi")
    waiting.until(lambda: len(world.generations) == 1)


def test_where_shares_are_dropped_nothing_is_published_and_everybody_is_told(world: World) -> None:
    world.server.gates.discard(CONSUMABLE_CAPACITY)

    assert world.publisher.publish() is None

    assert world.server.slices() == []
    assert "create" not in world.server.verbs()
    assert CONSUMABLE_CAPACITY in world.readiness.problems()[SUBJECT]
    assert "device-plugin" in world.readiness.problems()[SUBJECT]
    waiting.until(lambda: world.reasons() == ["SlicesNotPublished"])


def test_slices_are_taken_back_when_the_gate_is_turned_off_and_come_back_with_it(world: World) -> None:
    world.publisher.publish()
    world.server.gates.discard(CONSUMABLE_CAPACITY)
    wipe(world.server)

    assert world.publisher.publish() is None
    assert world.server.slices() == []
    assert SUBJECT in world.readiness.problems()

    world.server.gates |= GATES
    world.publisher.publish()
    assert len(world.devices) == 4
    assert not world.readiness.problems()


def test_without_partitionable_devices_gpus_are_shared_and_not_offered_whole(world: World) -> None:
    world.server.gates.discard(PARTITIONABLE_DEVICES)

    world.publisher.publish()

    assert list(world.devices) == [gpu(0).uuid.lower(), gpu(1).uuid.lower()]
    assert not world.readiness.problems()
    waiting.until(lambda: world.reasons() == ["FeatureGateOff"])


def test_without_device_taints_a_sick_gpu_is_left_out(world: World) -> None:
    world.server.gates.discard(DEVICE_TAINTS)
    world.ills.known = {gpu(0).uuid: HealthReport(gpu(0).uuid, HealthState.UNHEALTHY, "gone", 79)}

    world.publisher.publish()

    assert list(world.devices) == [gpu(1).uuid.lower(), f"{gpu(1).uuid.lower()}-whole"]


def test_a_cluster_without_the_api_is_told_of_the_device_plugin(world: World) -> None:
    world.server.kinds = [kind for kind in world.server.kinds if kind.plural != "resourceslices"]

    assert world.publisher.publish() is None

    assert "resource.k8s.io/v1" in world.readiness.problems()[SUBJECT]
    assert "device-plugin" in world.readiness.problems()[SUBJECT]


def test_a_server_that_fails_for_long_is_said_and_leaves_the_slices_as_they_are(world: World) -> None:
    world.publisher.start()
    waiting.until(lambda: not world.readiness.problems())
    world.server.faults.append(Fault(503, times=1000, plural="resourceslices"))
    world.publisher.wake()

    waiting.until(lambda: "503" in world.readiness.problems().get(SUBJECT, ""))
    assert len(world.devices) == 4
    world.server.faults.clear()
    waiting.until(lambda: not world.readiness.problems())


def test_a_missing_permission_is_named(tmp_path: Path) -> None:
    with running(ApiServer(users={"t": User(ALL_RIGHTS[1:])})) as server:
        server.add_node(NODE)
        world = World(server, tmp_path, "t")

        with pytest.raises(ClusterAccessError, match="resourceslices"):
            world.publisher.publish()
        world.end()


def test_a_server_that_is_not_there_is_waited_for(tmp_path: Path) -> None:
    with running() as server:
        world = World(server, tmp_path)

    with pytest.raises(ClusterUnavailableError):
        world.publisher.publish()
    world.publisher.start()
    waiting.until(lambda: "does not answer" in world.readiness.problems()[SUBJECT])
    world.end()


def test_a_bug_is_said_and_ends_no_publisher(world: World) -> None:
    world.unreadable.has_bug = True
    world.publisher.start()
    waiting.until(lambda: "a bug of pgpu: ZeroDivisionError" in world.readiness.problems()[SUBJECT])

    world.unreadable.has_bug = False
    waiting.until(lambda: SUBJECT not in world.readiness.problems())
    assert world.devices


def test_two_who_undo_each_others_slices_slow_down(world: World) -> None:
    other = World(world.server, Path(world.claims._directory))
    other.claims.present = [gpu(5)]
    for each in (world, other):
        each.publisher.start()

    waiting.until(lambda: "another writer" in world.readiness.problems().get(SUBJECT, ""), lambda: world.said)
    other.end()
    waiting.until(lambda: len(world.devices) == 4)
