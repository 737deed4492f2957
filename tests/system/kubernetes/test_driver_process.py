"""`pgpu kubernetes driver` as a process: what it holds survives its death, and nobody else's driver comes beside it."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from tests.fakes.api_server import Fault
from tests.fakes.kubelet import in_threads
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
    first, second = claim_of(machine, "first"), claim_of(machine, "second")
    assert not machine.kubelet.prepare(first)[first.uid].error
    assert machine.end() == 0
    before = machine.edits(first)
    machine.cdi_file(first).unlink()
    machine.start()
    assert machine.edits(first) == before
    assert not machine.kubelet.prepare(second)[second.uid].error
    machine.end(signal.SIGKILL)
    machine.cdi_file(second).unlink()
    machine.start()
    for claim in (first, second):
        assert machine.cdi_file(claim).exists()
        assert not machine.kubelet.prepare(claim)[claim.uid].error
        assert not machine.kubelet.unprepare(claim)[claim.uid].error
        assert not machine.cdi_file(claim).exists()


def test_what_does_not_fit_says_who_holds_the_gpu(machine: Node) -> None:
    machine.start()
    claims = [claim_of(machine, name) for name in ("first", "second", "third")]
    answers = machine.kubelet.prepare(*claims)
    assert [bool(answers[claim.uid].error) for claim in claims] == [False, False, True]
    assert "30 GiB" in answers[claims[2].uid].error
    assert "held" in answers[claims[2].uid].error or "hold" in answers[claims[2].uid].error
    machine.kubelet.unprepare(claims[0])
    assert not machine.kubelet.prepare(claims[2])[claims[2].uid].error


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


def test_a_second_driver_is_refused(machine: Node) -> None:
    machine.start()
    first = machine.process
    assert machine.launch().wait() != 0
    assert "another driver runs on this node" in machine.log()
    machine.process = first


@pytest.mark.parametrize("runtime", ["containerd://1.6.33"])
def test_a_runtime_without_cdi_is_refused_aloud(runtime: str) -> None:
    with node(runtime) as machine:
        assert machine.launch().wait() != 0
        assert "does not read CDI files: pods would start without their slice" in machine.log()
        assert not machine.kubelet.sockets()


def test_a_cluster_that_does_not_answer_is_said(machine: Node) -> None:
    machine.api.faults.append(Fault(403, times=100, plural="nodes"))
    assert machine.launch().wait() != 0
    assert "does not allow this" in machine.log()


def test_fifteen_claims_at_once(machine: Node) -> None:
    machine.start()
    claims = [claim_of(machine, f"c{number}", "4Gi") for number in range(15)]
    in_threads([lambda each=each: machine.kubelet.prepare(each) for each in claims])
    assert all(machine.cdi_file(each).exists() for each in claims)
    assert not any(answer.error for answer in machine.kubelet.prepare(*claims).values())
    in_threads([lambda each=each: machine.kubelet.unprepare(each) for each in claims])
    assert not list(machine.cdi.iterdir())
