"""What is told to a cluster's users as events: said once, in time, and never at the cost of who says it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import waiting
from tests.fakes.api_objects import Object
from tests.fakes.api_server import EVENTS, ApiServer, Fault, User, running

from pgpu.kubernetes.api import ClusterClient, ObjectName, connect
from pgpu.kubernetes.cluster_events import BURST, REPEAT_SECONDS, EventRecorder
from pgpu.structs import replace

CLAIM = ObjectName("resource.k8s.io/v1", "ResourceClaim", "claim-a", "team", "uid-1")
NODE = ObjectName("v1", "Node", "node1", uid="uid-2")


class World:
    """A recorder whose seconds a test says."""

    def __init__(self, server: ApiServer, directory: Path) -> None:
        self.server = server
        self.now = 1000.0
        self.cluster = ClusterClient(connect(server.kubeconfig(directory)))
        self.recorder = EventRecorder(self.cluster, "node1", lambda: self.now)
        self.recorder.start()

    def events(self) -> list[Object]:
        return self.server.objects.all(EVENTS)

    def end(self) -> None:
        self.recorder.stop()
        self.cluster.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with running() as server:
        made = World(server, tmp_path)
        yield made
        made.end()


def test_an_event_says_what_kubernetes_wants_to_know(world: World) -> None:
    world.recorder.warn(CLAIM, "ParametersIgnored", "only a DeviceClass may set priority")

    waiting.until(world.events)
    (event,) = world.events()
    assert event["metadata"]["namespace"] == "team"
    assert event["regarding"] == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "name": "claim-a",
        "namespace": "team",
        "uid": "uid-1",
    }
    assert (event["type"], event["reason"], event["action"]) == ("Warning", "ParametersIgnored", "ParametersIgnored")
    assert event["note"] == "only a DeviceClass may set priority"
    assert (event["reportingController"], event["reportingInstance"]) == ("gpu.pgpu.io", "node1")
    assert event["eventTime"]


def test_an_event_on_a_node_lies_in_the_default_namespace(world: World) -> None:
    world.recorder.note(NODE, "Published", "4 devices")

    waiting.until(world.events)
    (event,) = world.events()
    assert (event["metadata"]["namespace"], event["type"]) == ("default", "Normal")
    assert "namespace" not in event["regarding"]


def test_the_same_words_are_written_once_in_ten_minutes(world: World) -> None:
    for _ in range(5):
        world.recorder.warn(CLAIM, "Same", "words")
    world.recorder.warn(NODE, "Same", "words")
    waiting.until(lambda: len(world.events()) == 2)

    world.now += REPEAT_SECONDS + 1
    world.recorder.warn(CLAIM, "Same", "words")

    waiting.until(lambda: len(world.events()) == 3)


def test_a_flood_is_cut_to_a_burst_and_one_a_second(world: World) -> None:
    for number in range(BURST + 30):
        world.recorder.warn(CLAIM, "Flood", f"{number}")
    world.now += 2
    for number in range(5):
        world.recorder.warn(CLAIM, "More", f"{number}")
    world.recorder.stop()

    assert len(world.events()) == BURST + 2


def test_a_note_is_cut_to_what_kubernetes_takes(world: World) -> None:
    world.recorder.warn(CLAIM, "Long", "x" * 5000)

    waiting.until(world.events)
    assert len(world.events()[0]["note"]) <= 1024


@pytest.mark.parametrize("name", ["a" * 199 + ".b", "a" * 199 + "-b", "a" * 253])
def test_an_event_on_a_long_name_has_a_name_that_kubernetes_takes(world: World, name: str) -> None:
    world.recorder.warn(replace(CLAIM, name=name), "Long", "words")

    waiting.until(world.events)
    told = world.events()[0]["metadata"]["name"]
    assert len(told) <= 253
    assert all(part[-1].isalnum() for part in told.split("."))


def test_an_event_that_cannot_be_written_is_left_out_and_the_next_is_written(world: World) -> None:
    world.server.faults.append(Fault(503, plural="events"))
    world.recorder.warn(CLAIM, "First", "lost")
    world.recorder.warn(CLAIM, "Second", "written")

    waiting.until(world.events)
    world.recorder.stop()
    assert [event["reason"] for event in world.events()] == ["Second"]


def test_telling_does_not_wait_for_a_server_that_does_not_answer(world: World) -> None:
    world.server.slow.clear()

    for number in range(BURST):
        world.recorder.warn(CLAIM, "Slow", f"{number}")

    assert world.events() == []
    world.server.slow.set()
    waiting.until(lambda: len(world.events()) == BURST)


def test_whoever_may_not_write_events_goes_on_without(tmp_path: Path) -> None:
    with running(ApiServer(users={"t": User(rules=())})) as server:
        cluster = ClusterClient(connect(server.kubeconfig(tmp_path, "t")))
        recorder = EventRecorder(cluster, "node1")
        recorder.start()
        recorder.warn(CLAIM, "Forbidden", "nobody hears")
        recorder.stop()
        cluster.close()

        assert server.verbs("events") == ["create"]
        assert server.objects.all(EVENTS) == []
