"""Where the kubelet finds the driver: sockets that are made whole, closed to others, and made again; and what the kubelet answers."""

import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system.kubernetes.driver_world import GPU, NODE, World, allocated, world
from tests.waiting import until

from pgpu.errors import NodeError
from pgpu.kubernetes import names
from pgpu.kubernetes.dra.dra_driver import REGISTERED
from pgpu.kubernetes.driver_mode import alone_on_node
from pgpu.kubernetes.generated import dra_health_v1alpha1_pb2 as health
from pgpu.kubernetes.kubelet_sockets import SocketServer
from pgpu.kubernetes.node_health import HealthState
from pgpu.structs import replace


@pytest.fixture
def node() -> Iterator[World]:
    with world() as made:
        yield made


def registry(node: World) -> Path:
    return node.kubelet.directory / "plugins_registry" / "gpu.pgpu.io-reg.sock"


def endpoint(node: World) -> Path:
    return node.kubelet.directory / "plugins" / "gpu.pgpu.io" / "dra.sock"


class Companion:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def start(self) -> None:
        self.told.append("start")

    def registered(self) -> None:
        self.told.append("registered")

    def stop(self) -> None:
        self.told.append("stop")


def test_the_kubelet_is_told_what_it_needs(node: World) -> None:
    with node.running():
        info = node.kubelet.register()
    assert (info.type, info.name, info.endpoint) == ("DRAPlugin", "gpu.pgpu.io", str(endpoint(node)))
    assert list(info.supported_versions) == ["v1.DRAPlugin"]


def test_nobody_else_may_speak_to_the_driver(node: World) -> None:
    with node.running():
        assert {path.stat().st_mode & 0o777 for path in (registry(node), endpoint(node))} == {0o600}
        assert endpoint(node).parent.stat().st_mode & 0o007 == 0


def test_a_refused_registration_is_said_aloud(node: World) -> None:
    with node.running():
        node.kubelet.register(refusal="unknown plugin type")
        assert any("refuses this driver" in line and "unknown plugin type" in line for line in node.said)
        assert REGISTERED in node.readiness.problems()
        node.kubelet.register()
        assert REGISTERED not in node.readiness.problems()


def test_every_registration_is_told_to_who_publishes(node: World) -> None:
    companion = Companion()
    node.companions.append(companion)
    with node.running():
        node.kubelet.restart()
        node.kubelet.register()
    assert companion.told == ["start", "registered", "registered", "stop"]


def test_what_a_killed_driver_left_is_replaced(node: World) -> None:
    endpoint(node).parent.mkdir(parents=True)
    for path in (registry(node), endpoint(node)):
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
    claim = node.add(allocated("c"))
    with node.running():
        assert not node.kubelet.prepare(claim)[claim.uid].error


def test_what_is_no_socket_stays(node: World) -> None:
    registry(node).write_text("mine")
    driver, cluster = node.driver()
    driver.stop.set()
    with pytest.raises(NodeError, match="is no socket, and stays"):
        driver.run()
    cluster.close()
    assert registry(node).read_text() == "mine"


def test_a_node_without_a_kubelet_is_refused(node: World) -> None:
    registry(node).parent.rmdir()
    driver, cluster = node.driver()
    driver.stop.set()
    with pytest.raises(NodeError, match="no kubelet looks for drivers"):
        driver.run()
    cluster.close()


@pytest.mark.parametrize("which", [registry, endpoint])
def test_a_socket_that_is_gone_is_made_again(node: World, which: object) -> None:
    claim = node.add(allocated("c"))
    with node.running():
        path = registry(node) if which is registry else endpoint(node)
        found_before = (registry(node).stat().st_ino, registry(node).stat().st_ctime_ns)
        path.unlink()
        until(lambda: registry(node).exists() and endpoint(node).exists())
        until(lambda: (registry(node).stat().st_ino, registry(node).stat().st_ctime_ns) != found_before)
        node.kubelet.restart()
        node.kubelet.register()
        assert not node.kubelet.prepare(claim)[claim.uid].error


def test_a_directory_of_the_kubelet_that_was_away_is_filled_again(node: World) -> None:
    claim = node.add(allocated("c"))
    with node.running():
        shutil.rmtree(node.kubelet.directory)
        until(lambda: any("no kubelet looks for drivers" in line for line in node.said))
        (node.kubelet.directory / "plugins_registry").mkdir(parents=True)
        until(node.kubelet.sockets)
        node.kubelet.restart()
        node.kubelet.register()
        assert not node.kubelet.prepare(claim)[claim.uid].error


def test_a_driver_that_ends_leaves_no_socket(node: World) -> None:
    with node.running():
        assert node.kubelet.sockets()
    assert not list(registry(node).parent.iterdir())
    assert not list(endpoint(node).parent.iterdir())


def test_a_kubelet_that_comes_back_finds_the_driver(node: World) -> None:
    claim = node.add(allocated("c"))
    with node.running():
        first = node.kubelet.prepare(claim)
        for _ in range(3):
            node.kubelet.restart()
            node.kubelet.register()
            assert node.kubelet.prepare(claim) == first


def test_a_path_that_no_socket_can_have_is_refused(tmp_path: Path) -> None:
    server = SocketServer(tmp_path / ("x" * 100) / "dra.sock", lambda _server: None)
    assert "longer than a socket's path may be" in _complaint(server)
    assert _complaint(server) == _complaint(server), "said once, however often it is tried"


def test_a_directory_that_is_not_there_is_named_alike_at_each_try() -> None:
    with tempfile.TemporaryDirectory() as directory:  # short: a socket's path has 107 bytes at most
        server = SocketServer(Path(directory) / "away" / "dra.sock", lambda _server: None)
        assert f"{directory}/away/dra.sock cannot be created" in _complaint(server)
        assert _complaint(server) == _complaint(server)


def _complaint(server: SocketServer) -> str:
    with pytest.raises(NodeError) as refused:
        server.start()
    return str(refused.value)


def test_a_second_driver_is_refused(tmp_path: Path) -> None:
    says = pytest.raises(NodeError, match="another driver runs on this node")
    with alone_on_node(tmp_path / "state"), says, alone_on_node(tmp_path / "state"):
        pass
    with alone_on_node(tmp_path / "state"):
        pass


def test_health_is_told_at_once_and_when_it_changes(node: World) -> None:
    with node.running():
        stream = node.kubelet.health()
        first = {each.device.device_name: each for each in next(stream).devices}
        node.health[GPU.uuid] = replace(node.health[GPU.uuid], state=HealthState.UNHEALTHY, reason="Xid 79", xid=79)
        second = {each.device.device_name: each for each in next(stream).devices}
    assert {each.health for each in first.values()} == {health.HEALTHY}
    shared = second[names.shared_device(GPU.uuid)]
    assert (shared.health, shared.message, shared.device.pool_name) == (health.UNHEALTHY, "Xid 79", NODE)
    assert {names.whole_device(GPU.uuid), names.shared_device(GPU.uuid)} <= set(first)
