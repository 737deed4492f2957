"""Time limits, holds, begins and GPU hours on a machine of files: what the agent does at each of them, whoever is killed."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.system.engine_worlds import LONG, World, kill, world
from tests.system.test_paging_turns import start
from tests.system.test_preempting import end, preempt, until_suspended
from tests.waiting import until

from pgpu.errors import AccessError, CapacityError, RequestError
from pgpu.model import GpuHours, Job, JobSpec, JobState, OnTimeLimit, Request, Resize, Submission
from pgpu.scheduling import Quota
from pgpu.services.access import Caller, Identity
from pgpu.services.engine_pool import EnginePool
from pgpu.services.job_service import JobService
from pgpu.structs import replace
from pgpu.units import GIB

STUBBORN = ("sh", "-c", "trap '' TERM; while :; do sleep 600; done")


@pytest.fixture
def machine() -> Iterator[World]:
    with world([10], stop_grace_seconds=0.2) as made:
        yield made


def submit(machine: World, command: Sequence[str] = LONG, gib: int = 1, **words: Any) -> Job:
    spec = JobSpec(tuple(command), "process", working_directory="/")
    limits = {name: words.pop(name) for name in ("time_limit_seconds", "on_time_limit") if name in words}
    return machine.client.submit_all([Submission(spec, Request(gib * GIB, **limits), **words)])[0]


def age(machine: World, job: Job, seconds: float) -> None:
    """Let a job have run for longer than it has."""
    with machine.engine.ledger.decision() as decision:
        statement = "UPDATE leases SET charged_since = charged_since - ? WHERE job_id = ?"
        decision._connection.execute(statement, (seconds, job.id))


def rule(machine: World, job: Job) -> str:
    return next((each.rule for each in machine.client.queue() if each.job.id == job.id), "")


@pytest.mark.parametrize("command", [LONG, STUBBORN])
def test_a_job_is_stopped_at_its_time_limit_with_exit_code_124(machine: World, command: tuple[str, ...]) -> None:
    job = submit(machine, command, time_limit_seconds=0.3)
    ended = machine.until_free(job)
    assert (ended.state, ended.exit_code, ended.hit_time_limit) == (JobState.EXITED, 124, True)
    assert ended.warning is not None
    assert "time limit" in ended.warning
    assert machine.entry(job).ran_seconds >= 0.3


def test_a_job_that_ends_before_its_limit_keeps_its_exit_code(machine: World) -> None:
    ended = machine.until_free(submit(machine, ("sh", "-c", "exit 3"), time_limit_seconds=600.0))
    assert (ended.exit_code, ended.hit_time_limit, ended.warning) == (3, False, None)


@pytest.mark.parametrize("action", OnTimeLimit)
def test_a_limit_that_stops_lets_the_start_of_the_next_job_be_known(machine: World, action: OnTimeLimit) -> None:
    first = machine.until_running(submit(machine, gib=10, time_limit_seconds=600.0, on_time_limit=action))
    submit(machine, gib=10)
    [report] = machine.client.queue()
    assert report.is_start_known is (action is OnTimeLimit.STOP)
    if report.is_start_known:
        assert first.lease is not None
        assert report.job.expected_start_seconds == first.lease.granted_at_seconds + 600


def test_a_wait_without_patience_ends_at_the_begin_unless_the_job_fits_then(machine: World) -> None:
    machine.until_running(submit(machine, gib=10))
    begin_seconds = time.time() + 0.5
    late = submit(machine, begin_at_seconds=begin_seconds, wait_timeout_seconds=0.0)
    ended = machine.until_state(late, JobState.CANCELLED)
    assert ended.wait_timed_out
    assert (ended.finished_at_seconds or 0.0) >= begin_seconds


def test_a_marked_job_goes_on_with_a_warning(machine: World) -> None:
    job = submit(machine, time_limit_seconds=0.2, on_time_limit=OnTimeLimit.MARK)
    until(lambda: machine.entry(job).job.hit_time_limit)
    entry = machine.entry(job)
    assert (entry.job.state, entry.stop_grace_seconds) == (JobState.RUNNING, None)
    assert "time limit" in (entry.job.warning or "")
    machine.client.stop(job.id, grace_seconds=1)
    ended = machine.until_free(job)
    assert ended.exit_code == 143
    assert "time limit" in (ended.warning or "")


def test_a_job_without_a_limit_runs_on_however_long_its_earlier_runs_took(machine: World) -> None:
    """A duration that pgpu has learnt ends no job."""
    command = ("sh", "-c", f"if [ -e {machine.root}/long ]; then sleep 600; fi")
    for _ in range(3):
        machine.until_free(submit(machine, command))
    (machine.root / "long").touch()
    long = submit(machine, command)
    machine.until_running(long)
    age(machine, long, 1e6)
    kill(machine.until_supervised(long))
    machine.client.jobs(include_final=False)
    until(lambda: machine.client.job(long.id).run_seconds > 1e6)
    assert machine.state(long) is JobState.RUNNING


def test_a_limit_that_passes_while_no_agent_lives_holds_once_the_next_one_is_there(machine: World) -> None:
    job = submit(machine, time_limit_seconds=600.0)
    supervisor = machine.until_supervised(machine.until_running(job))
    age(machine, job, 1000)
    kill(supervisor)
    machine.client.jobs(include_final=False)
    assert machine.until_free(job).exit_code == 124


def test_an_agent_that_is_killed_between_the_limit_and_the_end_changes_nothing(machine: World) -> None:
    job = submit(machine, STUBBORN, time_limit_seconds=600.0)
    supervisor = machine.until_supervised(machine.until_running(job))
    age(machine, job, 1000)
    with machine.engine.ledger.decision() as decision:  # as the agent writes it
        entry = decision.entry(job.id)
        decision.put(replace(entry, job=replace(entry.job, hit_time_limit=True), stop_grace_seconds=0.2))
    kill(supervisor)
    machine.client.jobs(include_final=False)
    assert machine.until_free(job).exit_code == 124


def test_time_in_which_a_job_is_suspended_does_not_count() -> None:
    with world([2]) as machine:
        (machine.root / "ran").mkdir()
        victim = start(machine, gib=1.9)
        with machine.engine.ledger.decision() as decision:
            decision._connection.execute("UPDATE jobs SET time_limit = 600 WHERE id = ?", (victim.id,))
        urgent = preempt(machine, gib=1.5)
        until_suspended(machine, victim, by=machine.until_running(urgent))
        age(machine, victim, 1000)
        kill(machine.until_supervised(victim))  # the next agent begins with what is in the ledger
        machine.client.jobs(include_final=False)
        end(machine, urgent)
        until(lambda: machine.entry(victim).runs_since is not None)
        assert machine.entry(victim).job.state is JobState.RUNNING
        age(machine, victim, 1000)
        kill(machine.until_supervised(victim))
        machine.client.jobs(include_final=False)
        assert machine.until_free(victim).exit_code == 124


def test_a_job_starts_at_its_begin_and_no_earlier(machine: World) -> None:
    begin_seconds = time.time() + 1.0
    job = submit(machine, ("true",), begin_at_seconds=begin_seconds)
    assert machine.state(job) is JobState.WAITING
    [report] = machine.client.queue()
    assert (report.rule, report.position, report.is_start_known) == ("begin", None, True)
    assert report.job.expected_start_seconds == begin_seconds
    ended = machine.until_state(job, JobState.EXITED)
    assert ended.started_at_seconds is not None
    assert ended.started_at_seconds >= begin_seconds


def test_a_begin_survives_the_agent_and_delays_no_other_job(machine: World) -> None:
    far = submit(machine, gib=10, begin_at_seconds=time.time() + 1000)
    machine.kill_agent()
    machine.until_state(submit(machine, ("true",), gib=10), JobState.EXITED)
    assert machine.state(far) is JobState.WAITING
    with machine.engine.deciding() as decision:
        decision._connection.execute("UPDATE jobs SET begin_at = ? WHERE id = ?", (time.time(), far.id))
    machine.until_running(far)


def test_the_wait_of_a_job_with_a_begin_counts_from_then_on(machine: World) -> None:
    begin_seconds = time.time() + 1000
    job = submit(machine, begin_at_seconds=begin_seconds, wait_timeout_seconds=5.0)
    assert machine.entry(job).wait_deadline_seconds == begin_seconds + 5


def test_a_held_job_waits_until_it_is_released_while_others_start(machine: World) -> None:
    job = submit(machine, ("true",), gib=10, is_held=True)
    machine.until_state(submit(machine, ("true",), gib=10), JobState.EXITED)
    assert (machine.state(job), rule(machine, job)) == (JobState.WAITING, "held")
    assert machine.reason(job) == "held by its owner until it is released"
    machine.kill_agent()
    assert machine.client.release([job.id])[0].held_by_uid is None
    machine.until_state(job, JobState.EXITED)


def test_the_limit_of_a_wait_counts_from_the_release(machine: World) -> None:
    held = submit(machine, gib=10, is_held=True, wait_timeout_seconds=600.0)
    with machine.engine.deciding() as decision:  # it was submitted long ago
        words = "created_at = created_at - 1000, wait_deadline = wait_deadline - 1000"
        decision._connection.execute(f"UPDATE jobs SET {words} WHERE id = ?", (held.id,))
    machine.until_state(submit(machine, ("true",)), JobState.EXITED)  # the agent has run a round since
    released_seconds = time.time()
    machine.client.release([held.id])
    assert machine.until_running(held).wait_timed_out is False
    assert (machine.entry(held).wait_deadline_seconds or 0.0) >= released_seconds + 599


def test_a_waiting_job_is_held_and_one_that_runs_is_not(machine: World) -> None:
    first, second = submit(machine, gib=10), submit(machine, gib=10)
    machine.until_running(first)
    assert [each.id for each in machine.client.hold([second.id])] == [second.id]
    with pytest.raises(RequestError, match="does not wait"):
        machine.client.hold([second.id, first.id])
    end(machine, first)
    machine.until_looked_at(second)
    assert rule(machine, second) == "held"
    machine.client.release([second.id])
    machine.until_running(second)


def test_only_an_administrator_releases_what_an_administrator_holds(machine: World) -> None:
    job = submit(machine, is_held=True)
    with machine.engine.ledger.decision() as decision:
        decision._connection.execute("UPDATE jobs SET owner_uid = 61001, held_by = 61001 WHERE id = ?", (job.id,))
    identity = Identity(61001, 61001, frozenset())
    owner = JobService(EnginePool(machine.engine, is_server=True), Caller(61001, is_admin=False, identity=identity))
    assert owner.release([job.id])[0].held_by_uid is None
    assert owner.hold([job.id])[0].held_by_uid == 61001
    assert machine.client.hold([job.id])[0].held_by_uid == machine.client.caller.uid
    with pytest.raises(AccessError, match="administrator"):
        owner.release([job.id])
    assert owner.hold([job.id])[0].held_by_uid == machine.client.caller.uid
    with pytest.raises(AccessError):
        owner.usage(0.0, 0)
    machine.client.release([job.id])
    machine.until_running(job)


def test_spent_gpu_hours_keep_new_jobs_waiting_and_running_ones_go_on(machine: World) -> None:
    running = submit(machine)
    machine.until_running(running)
    uid = machine.client.caller.uid
    with machine.engine.deciding() as decision:
        decision.put_quota(uid, Quota(gpu_hours=GpuHours(0.0)))
    waits = submit(machine)
    until(lambda: rule(machine, waits) == "quota")
    assert "of 0 GPU hours a week are used" in (machine.reason(waits) or "")
    without = machine.client.submit(
        JobSpec(("true",), "process", working_directory="/"), Request(0, 0), wait_timeout_seconds=None
    )
    machine.until_state(without, JobState.EXITED)
    assert machine.state(running) is JobState.RUNNING
    with machine.engine.deciding() as decision:
        decision.put_quota(uid, Quota(gpu_hours=GpuHours(1000.0)))
    machine.until_running(waits)
    [report] = machine.client.usage(0.0)
    assert report.usage.gpu_seconds > 0
    assert report.quota is not None
    assert report.quota.most == 1000.0


@pytest.mark.parametrize("change", [Resize(2 * GIB), Resize(None, 0.6)])
def test_spent_gpu_hours_let_a_running_job_become_smaller_and_no_larger(machine: World, change: Resize) -> None:
    spec = JobSpec(LONG, "process", working_directory="/")
    job = machine.client.submit(spec, Request(GIB, 1, 0.5), wait_timeout_seconds=None)
    machine.until_running(job)
    with machine.engine.deciding() as decision:
        decision.put_quota(machine.client.caller.uid, Quota(gpu_hours=GpuHours(0.0)))
    with pytest.raises(CapacityError, match=r"GPU hours .* are used"):
        machine.client.resize(job.id, change.memory_bytes, change.compute_share)
    assert machine.client.resize(job.id, GIB // 2, 0.4).request.memory_bytes == GIB // 2
