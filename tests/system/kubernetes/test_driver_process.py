"""`pgpu kubernetes driver` as a process: what it holds survives its death, and nobody else's driver comes beside it."""

import signal
from collections.abc import Iterator

import pytest
from tests.system.kubernetes.driver_process import Node, node
from tests.system.kubernetes.driver_world import allocated, result

from pgpu.kubernetes import names
from pgpu.kubernetes.wire import dra_v1_pb2 as dra


@pytest.fixture
def machine() -> Iterator[Node]:
    with node() as made:
        yield made


def claim_of(machine: Node, name: str, memory: str = "30Gi") -> dra.Claim:
    return machine.add(allocated(name, [result(memory, device=names.shared_device(machine.gpu_uuid()))]))


def test_slices_survive_the_driver(machine: Node) -> None:
    machine.start()
    first = claim_of(machine, "first")
    assert not machine.kubelet.prepare(first)[first.uid].error
    before = machine.edits(first)
    machine.end(signal.SIGKILL)
    machine.cdi_file(first).unlink()
    machine.start()
    assert machine.edits(first) == before
    assert not machine.kubelet.unprepare(first)[first.uid].error
    assert not machine.cdi_file(first).exists()
    assert machine.end() == 0
    assert "slices stay" in machine.log()
