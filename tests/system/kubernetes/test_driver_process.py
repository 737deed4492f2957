"""`pgpu kubernetes driver` as a process: what it holds survives its death, and nobody else's driver comes beside it."""

import json
import signal
from collections.abc import Iterator

import pytest
from tests.fakes.api_server import CLAIMS, Fault
from tests.slice_holder import holder_in
from tests.system.kubernetes.driver_process import Node, node
from tests.system.kubernetes.driver_world import allocated, result
from tests.waiting import until

from pgpu.kubernetes import names
from pgpu.kubernetes.generated import dra_health_v1alpha1_pb2 as health
from pgpu.kubernetes.generated import dra_v1_pb2 as dra


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


def test_a_driver_that_starts_while_the_api_server_is_away_mends_files_and_unprepares(machine: Node) -> None:
    machine.start()
    first, second, third = (claim_of(machine, name, "10Gi") for name in ("first", "second", "third"))
    machine.kubelet.prepare(first, second)
    machine.end()
    machine.cdi_file(first).unlink()
    machine.api.faults.append(Fault(503, times=1_000_000))
    machine.start()
    assert machine.cdi_file(first).exists()
    assert not machine.kubelet.unprepare(second)[second.uid].error
    assert "cannot answer now" in machine.kubelet.prepare(third)[third.uid].error
    machine.api.faults.clear()
    until(lambda: not machine.kubelet.prepare(third)[third.uid].error)
    until(lambda: "container runtime: in order" in machine.log(), machine.log)


def test_the_memory_of_a_pod_that_was_removed_by_force_is_handed_over_once_its_process_has_ended(machine: Node) -> None:
    machine.start()
    old, new = (claim_of(machine, name, "60Gi") for name in ("old", "new"))
    machine.kubelet.prepare(old)
    with holder_in(machine.delivery(old)) as process:
        until(lambda: machine.holders(old))
        machine.api.objects.delete(CLAIMS, "default", "old")
        call = machine.kubelet.begin_prepare(new)
        until(lambda: machine.api.verbs("resourceclaims").count("get") >= 3)
        assert machine.cdi_file(old).exists()
        process.kill()
        assert not call.result().claims[new.uid].error
    assert not machine.cdi_file(old).exists()


def test_a_driver_that_may_not_read_its_node_yet_asks_again(machine: Node) -> None:
    """An API server that starts refuses every account until it has read its roles."""
    machine.api.faults.append(Fault(403, times=1_000_000, plural="nodes"))
    machine.start()
    until(lambda: "container runtime: Kubernetes' API server does not allow this" in machine.log(), machine.log)
    machine.api.faults.clear()
    until(lambda: "container runtime: in order" in machine.log(), machine.log)


def test_an_ill_gpu_is_tainted_and_told_to_the_kubelet(machine: Node) -> None:
    machine.start()
    uuid = machine.gpu_uuid()
    stream = machine.kubelet.health()
    assert {each.health for each in next(stream).devices} == {health.HEALTHY}
    until(machine.api.slices)
    (folder,) = [
        path.parent for path in machine.root.glob("*/simulated/*/*") if path.parent.parent.name == "simulated"
    ][:1]
    (folder / f"xid-{uuid}").write_text("79")
    assert {each.health for each in next(stream).devices} == {health.UNHEALTHY}
    until(lambda: "unhealthy" in json.dumps(machine.api.slices()))
