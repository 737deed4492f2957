"""Claims on simulated GPUs: their slices bind for real programs, and outlive whoever looks after them."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from tests.clearing import clear
from tests.slice_holder import holder_in
from tests.waiting import until

from pgpu.app.composition import make_engine
from pgpu.app.settings import Settings
from pgpu.app.throwaway_jobs import run_throwaway
from pgpu.client.embedded_client import EmbeddedClient
from pgpu.engine.claims import STEP_BYTES
from pgpu.engine.claims.engine_claims import EngineClaims
from pgpu.engine.engine import Engine
from pgpu.errors import CapacityError, NodeError
from pgpu.ledger import ClaimRecord
from pgpu.model import Claim, HeldClaim, JobSpec, JobState, ProcessHolder, Request, SharingWish, Slice
from pgpu.runtimes.process_runtime import ProcessRuntime
from pgpu.scheduling.capacity import most_oversubscribed_bytes
from pgpu.structs import replace
from pgpu.units import GIB

_RUNTIME = ProcessRuntime()


@dataclass
class Node:
    """One node agent's engine and claims; another one can be made over the same files."""

    root: Path
    engine: Engine
    claims: EngineClaims

    @property
    def gpu_uuid(self) -> str:
        return self.engine.gpus.gpus()[0].uuid

    def hold(self, uid: str = "one", gib: int = 30, **words: object) -> HeldClaim:
        parts = (Slice(self.gpu_uuid, gib * GIB),)
        return self.claims.hold(replace(Claim(uid, "default", uid, parts), **words))  # type: ignore[arg-type]

    def supervisor(self, held: HeldClaim) -> ProcessHolder:
        found = until(lambda: self.engine.ledger.entry(held.job_id).supervisor)
        assert found is not None
        return found

    def ask(self, held: HeldClaim, *words: str) -> dict[str, str]:
        """Run the probe in the slice, as a container would."""
        job = self.engine.ledger.job(held.job_id)
        program = replace(job, spec=replace(job.spec, command=("/.pgpu/pgpu-probe", *words)))
        return dict(line.split(" ", 1) for line in run_throwaway(_RUNTIME, program, held.delivery).splitlines())


def node_at(root: Path) -> Node:
    engine = make_engine(Settings(state_dir=root / "state", runtime_dir=root, simulate="H100"))
    return Node(root, engine, EngineClaims(engine))


@pytest.fixture
def node() -> Iterator[Node]:
    root = Path(tempfile.mkdtemp(prefix="pgpu-c-", dir="/dev/shm"))
    try:
        yield node_at(root)
    finally:
        clear(root)


def test_a_held_claim_has_no_process_and_no_thread_and_is_freed_by_a_new_one(node: Node) -> None:
    held = node.hold()
    keeper = node.supervisor(held)
    # The main and the spare one.
    until(lambda: len(os.listdir(f"/proc/{keeper.pid}/task")) == 2)  # noqa: PTH208 - names, not paths
    assert not psutil.Process(keeper.pid).children()
    with holder_in(held.delivery) as running:
        node.claims.free("one")
        assert not running.is_alive()
    assert not node.engine.ledger.entry(held.job_id).is_live


def test_a_program_in_a_claims_slice_is_refused_more_than_it(node: Node) -> None:
    held = node.hold(gib=30)
    assert node.ask(held, "allocate", str(30 * GIB))["allocate"] == "2"
    assert node.ask(held, "allocate", str(29 * GIB))["allocate"] == "0"
    assert node.claims.uses()["one"][0].refusals == 1


def test_a_slice_outlives_its_supervisor_and_has_another_one(node: Node) -> None:
    held = node.hold()
    before = node.supervisor(held)
    os.kill(before.pid, signal.SIGKILL)
    until(lambda: node.claims.held() == [held] and node.supervisor(held) != before)
    assert node.ask(held, "allocate", str(31 * GIB))["allocate"] == "2"
    node.claims.free("one")
    assert not node.claims.gpus()[0].held_bytes


def test_another_agent_over_the_same_files_goes_on(node: Node) -> None:
    held = node.hold()
    other = node_at(node.root)
    assert other.claims.held() == [held]
    other.claims.free("one")
    assert not node.claims.held()


def test_a_claim_that_is_freed_while_all_are_looked_at_is_not_made_again(node: Node) -> None:
    class Meanwhile(EngineClaims):
        """Has one claim freed as soon as it has listed all of them."""

        def records(self) -> Mapping[str, ClaimRecord]:
            found = super().records()
            self.free("two")
            return found

    held = node.hold("one", 10)
    node.hold("two", 10)
    assert Meanwhile(node.engine).held() == [held]
    assert node.claims.gpus()[0].held_bytes == 10 * GIB


def test_after_a_reboot_a_claim_has_its_slices_anew(node: Node) -> None:
    held = node.hold(gib=70)
    supervisor = psutil.Process(node.supervisor(held).pid)
    supervisor.kill()
    clear(held.delivery.slice_directory.parent)
    [again] = node.claims.held()
    assert again.claim == held.claim
    assert again.job_id != held.job_id
    assert node.claims.gpus()[0].held_bytes == 70 * GIB
    assert node.ask(again, "allocate", str(71 * GIB))["allocate"] == "2"


def test_what_is_freed_with_its_supervisor_dead_and_its_files_gone_is_free(node: Node) -> None:
    held = node.hold()
    os.kill(node.supervisor(held).pid, signal.SIGKILL)
    clear(held.delivery.slice_directory.parent)
    node.claims.free("one")
    assert not node.claims.gpus()[0].held_bytes
    assert node.engine.ledger.job(held.job_id).state.is_final


def test_whoever_is_still_inside_when_a_claim_is_freed_is_killed(node: Node) -> None:
    held = node.hold()
    with holder_in(held.delivery) as program:
        until(lambda: node.claims.uses()["one"][0].processes)
        node.claims.free("one")
        until(lambda: not program.is_alive())
    assert not node.claims.gpus()[0].held_bytes


def test_a_claim_without_room_leaves_nothing_behind(node: Node) -> None:
    node.hold("one", 60)
    with pytest.raises(CapacityError, match=r"default/one-\w+ holds 60 GiB"):
        node.hold("two", 60)
    assert len(node.engine.ledger.entries(include_final=True)) == 1
    assert [each.claim.uid for each in node.claims.held()] == ["one"]


def test_slices_that_cannot_be_made_are_no_claim(node: Node) -> None:
    directory = node.engine.settings.runtime_directory / "slices"
    shutil.rmtree(directory, ignore_errors=True)
    directory.write_text("in the way")
    with pytest.raises(NodeError):
        node.hold()
    directory.unlink()
    assert not node.claims.held()
    node.hold()


def test_nobody_else_is_given_gpus_of_a_ledger_that_claims_are_kept_in(node: Node) -> None:
    client = EmbeddedClient(node.engine)
    with pytest.raises(NodeError, match="shared out by kubernetes"):
        client.submit(JobSpec(("true",), "process"), Request(GIB), wait_timeout_seconds=None)


def test_a_claims_job_is_seen_like_any_other(node: Node) -> None:
    held = node.hold(priority=5, wait_for_memory_seconds=2.0)
    job = node.engine.ledger.job(held.job_id)
    assert (job.state, job.spec.name, job.request.priority) == (JobState.RUNNING, f"default/one-{held.job_id[:8]}", 5)


def test_claims_that_oversubscribe_sum_to_what_is_offered_them(node: Node) -> None:
    node.engine.rounds.host_memory = lambda: 80 * GIB
    [offer] = node.claims.gpus()
    offered_bytes = most_oversubscribed_bytes(offer.memory_bytes, offer.oversubscription, STEP_BYTES)
    assert offered_bytes > 1.4 * offer.memory_bytes
    half = Slice(node.gpu_uuid, offered_bytes // 2 // STEP_BYTES * STEP_BYTES)
    for uid in ("one", "two"):
        node.claims.hold(Claim(uid, "default", uid, (half,), oversubscribes=True))
    with pytest.raises(CapacityError):
        node.claims.hold(Claim("three", "default", "three", (half,), oversubscribes=True))


def test_claims_in_different_modes_do_not_meet(node: Node) -> None:
    node.hold("one", 1)
    with pytest.raises(CapacityError, match="in the mode time-slice now, and cannot be in mps"):
        node.hold("two", 1, sharing=SharingWish.MPS)
    node.claims.free("one")
    held = node.hold("two", 1, sharing=SharingWish.MPS)
    assert held.delivery.mps_pipe_directory is not None
    node.claims.free("two")
