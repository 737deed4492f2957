"""`pgpu kubernetes driver --mode device-plugin` as a process, with the real engine: slices of pods outlive it, and are told."""

import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.fakes.api_server import Fault
from tests.fakes.kubelet_pods import FakeKubelet, FakePod, UnexpectedAdmissionError
from tests.system.kubernetes.driver_process import Node, node
from tests.waiting import until

from pgpu.cli.output import gpu_tables
from pgpu.errors import NodeError
from pgpu.kubernetes.api.api_connection import TRIES
from pgpu.kubernetes.pod_shares import SeenShare, shares_at
from pgpu.units import GIB


@dataclass
class Machine:
    """A node of an older cluster."""

    node: Node
    kubelet: FakeKubelet
    address: str

    def start(self) -> None:
        self.node.launch("--mode", "device-plugin", "--metrics", self.address)
        until(lambda: self.kubelet.healthy, self.node.log)

    def told(self) -> list[SeenShare]:
        """What the driver tells; nothing while it does not answer."""
        try:
            return list(shares_at(self.address))
        except NodeError:
            return []

    def limits(self) -> list[tuple[str, int]]:
        return [(each.share.pod, each.share.memory_limit_bytes // GIB) for each in self.told()]


@pytest.fixture
def machine() -> Iterator[Machine]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with node() as made:
        kubelet = FakeKubelet(made.kubelet.directory)
        kubelet.start()
        yield Machine(made, kubelet, address)
        kubelet.stop()


def _target(answer_path: str) -> Path:
    return Path(answer_path).resolve(strict=True)


def test_slices_of_pods_outlive_the_driver_and_bind_as_the_ledger_says(machine: Machine) -> None:
    machine.start()
    first, second = FakePod("first", {"c": 30}), FakePod("second", {"c": 30})
    for pod in (first, second):
        machine.kubelet.admit(pod)
    answer = machine.kubelet.start_container(first, "c")
    mounts = {each.container_path: each for each in answer.mounts}
    assert _target(mounts["/.pgpu"].host_path).joinpath("limit").is_file()
    assert mounts["/.pgpu"].read_only
    assert not mounts["/.pgpu/usage"].read_only
    assert _target(mounts["/.pgpu/usage"].host_path).is_file()
    with pytest.raises(UnexpectedAdmissionError):
        machine.kubelet.admit(FakePod("third", {"c": 30}))
    until(lambda: machine.limits() == [("first", 30), ("second", 30)], machine.node.log)
    jobs = {each.share.job_id for each in machine.told()}
    assert [each.is_simulated for each in machine.told()] == [True, True]
    assert next(gpu_tables.of_pods(machine.told()).lines()).startswith("simulated GPUs (")
    assert machine.node.end(signal.SIGKILL) < 0
    until(lambda: not machine.kubelet.healthy)
    with pytest.raises(UnexpectedAdmissionError):
        machine.kubelet.start_container(first, "c")
    machine.node.api.faults.append(Fault(503, times=TRIES, plural="nodes"))
    machine.node.api.faults.append(Fault(403, times=1, plural="nodes"))
    machine.start()
    assert "cannot answer now" in machine.node.log()
    assert "does not allow this" in machine.node.log()
    assert machine.kubelet.start_container(first, "c") == answer
    until(lambda: {each.share.job_id for each in machine.told()} == jobs, machine.node.log)
    machine.kubelet.remove(second)
    machine.kubelet.admit(FakePod("third", {"c": 30}))
    until(lambda: machine.limits() == [("first", 30), ("third", 30)], machine.node.log)


def test_a_driver_in_the_other_mode_does_not_begin_over_units_in_use(machine: Machine) -> None:
    machine.start()
    machine.kubelet.admit(FakePod("first", {"c": 30}))
    assert machine.node.end() == 0
    other = machine.node.launch()
    assert other.wait() != 0
    assert "still has 1 slices of --mode device-plugin" in machine.node.log()
    assert "default/first" in machine.node.log()
