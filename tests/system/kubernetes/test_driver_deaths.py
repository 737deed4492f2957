"""Whatever dies or comes all at once: the driver at any step, the node, and crowds of claims."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import grpc
import pytest
from tests.fakes.kubelet import in_threads
from tests.system.kubernetes.driver_process import Node, node
from tests.system.kubernetes.driver_world import allocated, result
from tests.waiting import until

from pgpu.kubernetes import names
from pgpu.kubernetes.generated import dra_v1_pb2 as dra


@pytest.fixture
def machine() -> Iterator[Node]:
    with node() as made:
        yield made


def claim_of(machine: Node, name: str, memory: str = "30Gi") -> dra.Claim:
    return machine.add(allocated(name, [result(memory, device=names.shared_device(machine.gpu_uuid()))]))


def test_a_node_that_was_started_again_has_its_slices_and_files(machine: Node) -> None:
    """A reboot empties every tmpfs, and no kubelet prepares a claim again that it has prepared."""
    machine.start()
    claim = claim_of(machine, "c")
    machine.kubelet.prepare(claim)
    machine.end(signal.SIGKILL)
    machine.reboot()
    machine.start()
    sources = [mount["hostPath"] for mount in machine.edits(claim)["mounts"]]
    assert not [path for path in sources if not Path(path).exists()]
    assert not machine.kubelet.unprepare(claim)[claim.uid].error


@pytest.mark.soak
def test_a_driver_killed_between_any_two_steps_is_taken_over(machine: Node) -> None:
    """Killed while it prepares, later and later; whatever is left, the next prepares and unprepares it."""
    machine.start()
    claim = claim_of(machine, "c")
    uuid = machine.gpu_uuid()
    for delay_seconds in (0.0, 0.05, 0.1, 0.2, 0.4):
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(machine.kubelet.prepare, claim)
            wait([asked], timeout=delay_seconds)
            machine.end(signal.SIGKILL)
        machine.start()
        assert not machine.kubelet.prepare(claim)[claim.uid].error
        assert not machine.kubelet.unprepare(claim)[claim.uid].error
        assert not machine.cdi_file(claim).exists()
    whole = machine.add(allocated("all", [result(device=names.whole_device(uuid), consumedCapacity=None)]))
    assert not machine.kubelet.prepare(whole)[whole.uid].error, "something of the claims before is still held"


@pytest.mark.parametrize("count", [4, pytest.param(60, marks=pytest.mark.soak)])
def test_many_claims_at_once(machine: Node, count: int) -> None:
    machine.start()
    claims = [claim_of(machine, f"c{number}", "1Gi") for number in range(count)]
    in_threads([lambda each=each: prepare(machine, each) for each in claims])
    assert all(machine.cdi_file(each).exists() for each in claims)
    in_threads([lambda each=each: prepare(machine, each) for each in claims])
    in_threads([lambda each=each: machine.kubelet.unprepare(each) for each in claims])
    assert not list(machine.cdi.iterdir())


def prepare(machine: Node, claim: dra.Claim) -> None:
    """Ask as a kubelet does: again, where an answer took longer than its patience or said that it is not yet time."""

    def is_prepared() -> bool:
        try:
            return not machine.kubelet.prepare(claim)[claim.uid].error
        except grpc.RpcError:
            return False

    until(is_prepared, machine.log)
