"""Limits and grants that the engine derives from shares and sharing modes; on a machine of files."""

import os
from collections.abc import Iterator, Sequence

import pytest
from tests.fakes.machine import FileEnforcer
from tests.system.engine_worlds import LONG, World, world
from tests.waiting import until

from pgpu.enforcement import Enforcer
from pgpu.enforcement.compute_word import ComputeWord
from pgpu.engine.leases.lease_resize import resize
from pgpu.engine.submitter import Submitter
from pgpu.errors import CapacityError, EnforcementError, RequestError
from pgpu.model import Job, JobSpec, JobState, Lease, Request, Resize, SharingMode, SharingWish, Submission
from pgpu.structs import replace
from pgpu.units import GIB


@pytest.fixture
def machine() -> Iterator[World]:
    with world((10,)) as made:
        yield made


def submit(
    machine: World, share: float | None = None, *, sharing: SharingWish = SharingWish.TIME_SLICE, **words: object
) -> Job:
    spec = JobSpec(LONG, "process", working_directory="/")
    request = Request(GIB, 1, share, sharing=sharing, **words)  # type: ignore[arg-type]
    return machine.client.submit(spec, request, wait_timeout_seconds=None)


def word(machine: World, job: Job) -> ComputeWord:
    enforcer: Enforcer = FileEnforcer(machine.root)
    return enforcer.words(lease_of(machine.entry(job).job))[0]


def lease_of(job: Job) -> Lease:
    assert job.lease is not None
    return job.lease


def test_launches_of_a_job_wait_from_when_one_with_a_share_comes_until_it_goes(machine: World) -> None:
    plain = submit(machine)
    machine.until_running(plain)
    assert not word(machine, plain).is_shared
    shared = submit(machine, 0.3, is_strict=True)
    machine.until_running(shared)
    assert (word(machine, shared).share, word(machine, shared).is_strict) == (0.3, True)
    until(lambda: word(machine, plain).is_shared)
    machine.client.stop(shared.id, grace_seconds=0)
    until(lambda: not word(machine, plain).is_shared)


def submit_as(machine: World, uid: int) -> Job:
    spec = JobSpec(LONG, "process", working_directory="/")
    submitter = Submitter(uid, tuple(os.environ.items()), None)
    [job] = machine.engine.submit_all([Submission(spec, Request(GIB))], submitter)
    return machine.until_running(job)


def test_a_gpu_s_time_is_divided_between_users_while_jobs_of_two_are_on_it(machine: World) -> None:
    first, second = submit_as(machine, 4001), submit_as(machine, 4001)
    assert word(machine, second).user_share == 0.0
    other = submit_as(machine, 4002)
    assert word(machine, other).user_share == 0.5
    until(lambda: [word(machine, job).user_share for job in (first, second)] == [0.5, 0.5])
    machine.client.stop(other.id, grace_seconds=0)
    until(lambda: [word(machine, job).user_share for job in (first, second)] == [0.0, 0.0])


def test_a_setting_leaves_the_division_to_the_gpu() -> None:
    with world((10,), divides_users=False) as machine:
        jobs = [submit_as(machine, uid) for uid in (4001, 4002)]
        assert [word(machine, job).user_share for job in jobs] == [0.0, 0.0]


def test_an_agent_that_takes_over_writes_the_ledger_s_share_again(machine: World) -> None:
    job = submit(machine, 0.3)
    machine.until_running(job)
    machine.kill_supervisor(job)
    with machine.engine.ledger.decision() as decision:
        entry = decision.entry(job.id)
        request = replace(entry.job.request, compute_share=0.6)
        decision.put(replace(entry, job=replace(entry.job, request=request)))
    machine.client.jobs(include_final=False)
    until(lambda: word(machine, job).share == 0.6)


def test_a_share_is_resized_in_ledger_and_limit_at_once(machine: World) -> None:
    job, other = submit(machine, 0.3), submit(machine, 0.4)
    for each in (job, other):
        machine.until_running(each)
    with pytest.raises(CapacityError, match="40% more of a GPU's time do not fit: 30% are free"):
        machine.client.resize(job.id, compute_share=0.7)
    assert (word(machine, job).share, machine.entry(job).job.request.compute_share) == (0.3, 0.3)
    changed = machine.client.resize(job.id, 2 * GIB, compute_share=0.6, is_strict=True)
    [part] = lease_of(changed).slices
    assert (part.compute_share, part.memory_bytes) == (0.6, 2 * GIB)
    assert (word(machine, job).share, word(machine, job).is_strict) == (0.6, True)
    machine.client.resize(job.id, compute_share=0)
    assert (word(machine, job).share, word(machine, job).is_strict) == (0.0, False)
    assert machine.entry(job).job.request.compute_share is None


def test_time_that_a_waiting_job_needs_is_not_taken_by_a_running_one(machine: World) -> None:
    job, waiting = submit(machine, 0.5), submit(machine, 0.6)
    machine.until_running(job)
    with pytest.raises(CapacityError, match=f"job {waiting.id} waits for the GPU time that is free"):
        machine.client.resize(job.id, compute_share=0.7)
    assert machine.client.resize(job.id, compute_share=0.4).request.compute_share == 0.4
    machine.until_running(waiting)


class Refusing(FileEnforcer):
    """Refuses every share except the one that it had."""

    def set_compute(self, lease: Lease, words: Sequence[ComputeWord]) -> None:
        if words[0].share != 0.3:
            raise EnforcementError("the limit cannot be written")
        super().set_compute(lease, words)


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_a_share_that_does_not_bind_is_taken_back(machine: World, share: float) -> None:
    job = submit(machine, 0.3)
    machine.until_running(job)
    machine.engine.enforcer = Refusing(machine.root)
    with pytest.raises(EnforcementError):
        resize(machine.engine, job.id, Resize(GIB, share))
    assert machine.entry(job).job.request.compute_share == word(machine, job).share == 0.3


def test_the_first_job_on_an_idle_gpu_decides_how_it_is_shared(machine: World) -> None:
    alone = submit(machine, sharing=SharingWish.EXCLUSIVE)
    machine.until_running(alone)
    later = submit(machine)
    assert (machine.reason(later) or "").startswith(
        "waits for a GPU shared in time slices: the one there is is one job's alone"
    )
    [gpu] = machine.client.gpus()
    assert (gpu.sharing, gpu.granted_compute) == (SharingMode.EXCLUSIVE, 1.0)
    with pytest.raises(RequestError, match="has all of their time"):
        machine.client.resize(alone.id, compute_share=0.5)
    machine.client.stop(alone.id, grace_seconds=0)
    assert machine.until_running(later).state is JobState.RUNNING
    assert machine.client.gpus()[0].sharing is SharingMode.TIME_SLICE


def test_a_job_under_mps_keeps_its_share(machine: World) -> None:
    job = submit(machine, 0.3)
    machine.until_running(job)
    with machine.engine.ledger.decision() as decision:
        entry = decision.entry(job.id)
        lease = replace(lease_of(entry.job), sharing=SharingMode.MPS)
        decision.put(replace(entry, job=replace(entry.job, lease=lease)))
    with pytest.raises(RequestError, match="runs under MPS, where a share holds from its start to its end"):
        machine.client.resize(job.id, compute_share=0.5)
    assert machine.client.resize(job.id, 2 * GIB).request.memory_bytes == 2 * GIB
