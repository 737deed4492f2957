"""Jobs that depend on others, arrays and batches, on a machine of files."""

import shutil
from collections.abc import Iterator, Sequence

import pytest
from tests.system.engine_worlds import LONG, World, another, kill, world
from tests.waiting import until

from pgpu.engine.history.run_history import history_name
from pgpu.errors import JobNotFoundError, RequestError
from pgpu.model import Array, Job, JobSpec, JobState, Objective, ProcessHolder, Request, Run, Submission
from pgpu.structs import replace
from pgpu.units import GIB


@pytest.fixture
def machine() -> Iterator[World]:
    with world() as made:
        yield made


def ask(
    name: str | None = None,
    command: Sequence[str] = ("true",),
    after: Sequence[str] = (),
    gib: float = 4,
    array: Array | None = None,
    timeout: float | None = None,
) -> Submission:
    spec = JobSpec(tuple(command), "process", working_directory="/", name=name)
    return Submission(spec, Request(int(gib * GIB)), tuple(after), array, timeout)


def submitted(machine: World, *submissions: Submission) -> list[Job]:
    return list(machine.client.submit_all(submissions))


def test_a_job_starts_once_those_before_it_ended_well(machine: World) -> None:
    path = machine.root / "order"
    says = [("sh", "-c", f"sleep 0.1; echo {name} >> {path}") for name in ("first", "second", "third")]
    *_, third = submitted(
        machine, ask("third", says[2], ["second"]), ask("second", says[1], ["first"]), ask("first", says[0])
    )
    assert machine.until_state(third, JobState.EXITED).exit_code == 0
    assert path.read_text().split() == ["first", "second", "third"]


def test_a_job_after_one_that_runs_is_held_with_a_reason_and_room_is_not_kept_for_it(machine: World) -> None:
    first, second = submitted(machine, ask("first", LONG), ask("second", after=["first"], gib=10))
    machine.until_running(first)
    machine.engine.admissions.step()
    assert machine.entry(second).job.reason == f"waits for the end of job {first.id} (first)"
    assert machine.until_free(machine.submit(("true",), gib=6)).exit_code == 0
    assert machine.client.resize(first.id, 5 * GIB).request.memory_bytes == 5 * GIB
    assert machine.state(second) is JobState.WAITING


def test_the_wait_of_a_job_counts_from_when_those_before_it_have_ended(machine: World) -> None:
    gate = machine.root / "gate"
    first, _, second = submitted(
        machine,
        ask("first", ("sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.02; done")),
        ask("holder", LONG),
        ask("second", after=["first"], gib=8),
    )
    machine.until_running(first)
    assert _eligible_seconds(machine, second) == second.created_at_seconds
    gate.touch()
    finished_seconds = machine.until_state(first, JobState.EXITED).finished_at_seconds
    until(lambda: _eligible_seconds(machine, second) >= (finished_seconds or 0.0) > second.created_at_seconds)
    assert machine.entry(second).job.created_at_seconds == second.created_at_seconds


def _eligible_seconds(machine: World, job: Job) -> float:
    with machine.engine.ledger.view() as view:
        return next(each.eligible_at_seconds for each in view.waiting(job.gpu_model) if each.job_id == job.id)


def test_a_failure_cancels_those_after_it_and_those_after_them(machine: World) -> None:
    first, second, third = submitted(
        machine,
        ask("first", ("sh", "-c", "exit 3")),
        ask("second", after=["first"]),
        ask("third", after=["second"]),
    )
    assert "ended with exit code 3" in (machine.until_state(second, JobState.CANCELLED).reason or "")
    assert f"job {second.id} (second)" in (machine.until_state(third, JobState.CANCELLED).reason or "")
    assert machine.until_free(first).exit_code == 3


def test_cancelling_a_job_cancels_those_after_it(machine: World) -> None:
    first, second = submitted(machine, ask("first", LONG), ask("second", after=["first"]))
    machine.until_running(first)
    [ended] = machine.client.cancel(["first"], grace_seconds=5)
    assert ended.exit_code == 143
    assert "exit code 143" in (machine.until_state(second, JobState.CANCELLED).reason or "")


def test_a_job_may_go_after_one_that_has_ended_well_already(machine: World) -> None:
    first = machine.submit(("true",), name="first")
    machine.until_free(first)
    [second] = submitted(machine, ask(after=["first"]))
    assert machine.until_state(second, JobState.EXITED).exit_code == 0


def test_going_after_what_failed_or_is_not_there_is_refused_and_stores_nothing(machine: World) -> None:
    failed = machine.submit(("false",), name="failed")
    machine.until_free(failed)
    with pytest.raises(RequestError, match=r"would never start: job .* ended with exit code 1"):
        submitted(machine, ask(), ask(after=["failed"]))
    with pytest.raises(JobNotFoundError):
        submitted(machine, ask(), ask(after=["nobody"]))
    assert [entry.job.id for entry in machine.engine.ledger.entries(include_final=True)] == [failed.id]


def test_a_batch_of_which_one_job_can_never_run_stores_nothing(machine: World) -> None:
    machine.submit(LONG, name="taken")
    for bad in (ask(gib=99), ask("taken"), ask("a b"), ask("a1", after=["b1"])):
        others = [ask("b1", after=["a1"])] if bad.spec.name == "a1" else []
        with pytest.raises(RequestError):
            submitted(machine, ask("good", LONG), bad, *others)
    assert len(machine.engine.ledger.entries(include_final=True)) == 1


def test_each_element_of_an_array_finds_its_number(machine: World) -> None:
    path = machine.root / "numbers"
    command = ("sh", "-c", f'echo "$PGPU_ARRAY_INDEX $PGPU_ARRAY_ID" >> {path}')
    jobs = submitted(machine, ask("sweep", command, array=Array((2, 4, 6)), gib=1))
    assert [job.spec.name for job in jobs] == ["sweep-2", "sweep-4", "sweep-6"]
    for job in jobs:
        machine.until_state(job, JobState.EXITED)
    array_id = jobs[0].place.array_id
    assert sorted(path.read_text().splitlines()) == [f"{index} {array_id}" for index in (2, 4, 6)]


def test_a_job_with_a_long_command_and_variables_gets_all_of_them_and_its_own_number(machine: World) -> None:
    path = machine.root / "lengths"
    command = ("sh", "-c", f'echo "$# ${{#LONG}} $PGPU_ARRAY_INDEX" >> {path}', "sh", *["word"] * 1000)
    spec = JobSpec(command, "process", environment=(("LONG", "x" * 50_000), ("PGPU_ARRAY_INDEX", "9")))
    jobs = submitted(machine, Submission(spec, Request(GIB), array=Array((1, 2))))
    for job in jobs:
        assert job.spec.is_abridged
        machine.until_state(job, JobState.EXITED)
    assert sorted(path.read_text().splitlines()) == ["1000 50000 1", "1000 50000 2"]
    assert machine.client.job(jobs[0].id).job.spec.command == command


def test_a_batch_that_does_not_fit_at_once_starts_in_even_waves(machine: World) -> None:
    """Three of four fit; nothing of their GPU use is measured here."""
    gate = machine.root / "gate"
    command = ("sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.02; done")
    jobs = submitted(machine, ask("sweep", command, array=Array((0, 1, 2, 3)), gib=3))
    machine.until_running(jobs[1])
    reports = machine.client.queue()
    assert [report.job.id for report in reports] == [job.id for job in jobs[2:]]
    reason = "waits for its batch's next wave: 4 jobs need 2 waves here, and 2 at once contend less for the GPU than 3"
    assert [report.job.reason for report in reports] == [reason, f"{reason}; 1 job ahead"]
    until(lambda: (machine.client.job(jobs[2].id).job.reason or "").startswith(reason))
    other = machine.submit(("true",), gib=4)
    assert machine.until_state(other, JobState.EXITED).exit_code == 0
    gate.touch()
    for job in jobs:
        machine.until_state(job, JobState.EXITED)


def test_a_job_whose_program_needs_the_whole_gpu_waits_for_the_one_that_runs(machine: World) -> None:
    gate = machine.root / "gate"
    gate.touch()
    command = ("sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.02; done")
    first = machine.until_state(submitted(machine, ask(command=command))[0], JobState.EXITED)
    machine.until_free(first)
    name = history_name(machine.gpus.gpus()[0])
    run = Run(first.signature, name, first.id, first.owner_uid, GIB, 1, 1, 0, 600.0, 1.0, 0, demand=0.9)
    with machine.engine.ledger.decision() as decision:
        for _ in range(3):
            decision.history.add(run)
    gate.unlink()
    running, held = (submitted(machine, ask(command=command, gib=2))[0] for _ in range(2))
    machine.until_running(running)
    reason = "for a less busy GPU: the jobs there need 90% of its time"
    until(lambda: reason in (machine.client.job(held.id).job.reason or ""))
    soonest = replace(ask(command=command, gib=2), request=Request(2 * GIB, objective=Objective.SOONEST))
    for other in (soonest, ask(command=command, gib=2, timeout=3600)):
        machine.until_running(submitted(machine, other)[0])
    assert machine.state(held) is JobState.WAITING
    gate.touch()
    machine.until_state(held, JobState.EXITED)


def test_a_dry_run_forecasts_predecessors_and_waits_and_leaves_the_ledger_as_it_is(machine: World) -> None:
    running = machine.submit(LONG, name="first", gib=4)
    machine.until_running(running)
    before = machine.engine.ledger.entries(include_final=True)
    asked = [
        ask("sweep", array=Array((0, 1, 2)), gib=3),
        ask("large", gib=9),
        ask("next", after=["first"], gib=1),
    ]
    reports = {report.job.spec.name: report for report in machine.client.dry_run(asked)}
    starts = {name: report.job.expected_start_seconds for name, report in reports.items()}
    assert reports["sweep-0"].job.reason == "it fits and starts now"
    assert reports["sweep-0"].job.expected_gpu_uuids == (machine.gpus.gpus()[0].uuid,)
    assert "waits for 9 GiB on one GPU" in (reports["large"].job.reason or "")
    assert starts["sweep-0"] is not None
    assert starts["large"] is None
    assert reports["next"].position is None
    assert reports["next"].job.reason == f"waits for the end of job {running.id} (first)"
    assert machine.engine.ledger.entries(include_final=True) == before
    with machine.engine.ledger.decision():  # a dry run waits for no writer
        assert machine.client.dry_run([ask("alone")])
    with machine.engine.ledger.view() as view:
        assert view.queues() == set()


def test_a_wave_is_topped_up_once_its_jobs_are_measured_to_need_less_than_half_of_the_gpu(machine: World) -> None:
    """Three of four fit, and a wave is two."""
    jobs = submitted(machine, ask("sweep", LONG, array=Array((0, 1, 2, 3)), gib=3))
    for job in jobs[:2]:
        machine.until_running(job)
        (machine.root / "slices" / job.id / "board").write_text(
            "[0, 0, 1]"
        )  # it launched once, and needs no GPU time any more
    machine.until_running(jobs[2])
    assert machine.state(jobs[3]) is JobState.WAITING


def test_a_batch_with_a_wait_limit_fills_the_gpu(machine: World) -> None:
    jobs = submitted(machine, ask("sweep", LONG, array=Array((0, 1, 2, 3)), gib=3, timeout=60))
    for job in jobs[:3]:
        machine.until_running(job)
    [unlucky, *_] = submitted(machine, ask("now", array=Array((0, 1)), gib=3, timeout=0))
    assert machine.entry(unlucky).job.wait_timed_out


def test_jobs_that_arrive_one_by_one_fill_the_gpu(machine: World) -> None:
    jobs = [machine.submit(LONG, gib=3) for _ in range(4)]
    for job in jobs[:3]:
        machine.until_running(job)
    assert "waits for 3 GiB on one GPU" in (machine.client.queue()[0].job.reason or "")


def test_of_an_array_no_more_run_than_were_asked_for(machine: World) -> None:
    gate, count = machine.root / "gate", machine.root / "count"
    command = ("sh", "-c", f"echo x >> {count}; while [ ! -e {gate} ]; do sleep 0.02; done")
    jobs = submitted(machine, ask(command=command, array=Array(tuple(range(5)), 2), gib=1))
    until(lambda: count.exists() and len(count.read_text().split()) == 2)
    states = [machine.state(job) for job in jobs]
    assert states[2:] == [JobState.WAITING] * 3
    assert "of which 2 may run at a time" in (machine.entry(jobs[2]).job.reason or "")
    gate.touch()
    for job in jobs:
        machine.until_state(job, JobState.EXITED)


def test_an_array_is_named_by_its_id_its_name_and_a_beginning_of_its_id(machine: World) -> None:
    holder = machine.submit(LONG, gib=10)
    machine.until_running(holder)
    jobs = submitted(machine, ask("sweep", array=Array((0, 1))))
    array_id = jobs[0].place.array_id or ""
    for word in (array_id, array_id[:11], "sweep"):
        assert [report.job.id for report in machine.client.members(word)] == [job.id for job in jobs]
    assert [report.job.id for report in machine.client.members("sweep-1")] == [jobs[1].id]
    with pytest.raises(JobNotFoundError):
        machine.client.members("nothing")
    ended = machine.client.cancel(["sweep", jobs[0].id], grace_seconds=0)
    assert [(job.id, job.state) for job in ended] == [(job.id, JobState.CANCELLED) for job in jobs]
    with pytest.raises(JobNotFoundError):
        machine.client.cancel([holder.id, "nobody"], grace_seconds=0)
    assert machine.state(holder) is JobState.RUNNING


def test_a_job_after_an_array_waits_for_all_of_it(machine: World) -> None:
    *elements, last = submitted(
        machine, ask("sweep", ("sleep", "0.2"), array=Array((0, 1, 2))), ask("last", after=["sweep"])
    )
    machine.until_state(last, JobState.EXITED)
    assert {machine.state(element) for element in elements} == {JobState.EXITED}


def test_a_held_job_is_cancelled_when_its_wait_expires(machine: World) -> None:
    first, second = submitted(machine, ask("first", LONG), ask(after=["first"], timeout=0.2))
    assert machine.until_state(second, JobState.CANCELLED).wait_timed_out
    [third] = submitted(machine, ask(after=["first"], timeout=0))
    assert machine.entry(third).job.wait_timed_out
    assert machine.state(first) is not JobState.CANCELLED


def test_the_queue_lists_places_starts_and_held_jobs(machine: World) -> None:
    holder = machine.submit(LONG, gib=10)
    machine.until_running(holder)
    low, high, held = machine.client.submit_all(
        [
            ask("low"),
            Submission(ask("high").spec, Request(4 * GIB, priority=50)),
            ask("held", after=["low"]),
        ]
    )
    reports = machine.client.queue()
    assert [(report.position, report.job.id) for report in reports] == [(1, high.id), (2, low.id), (None, held.id)]
    assert not any(report.job.expected_start_seconds for report in reports)
    assert reports[0].job.reason == "waits for 4 GiB on one GPU: 0 B free of 10 GiB"


def test_held_jobs_survive_the_end_of_every_process(machine: World) -> None:
    """As after a reboot: no process is left, and the runtime directory is empty."""
    first, second, third = submitted(machine, ask("first", LONG), ask("second", after=["first"]), ask("third", gib=8))
    running = machine.until_running(first)
    machine.kill_agent()
    machine.kill_supervisor(first)
    assert isinstance(running.holder, ProcessHolder)
    kill(running.holder)
    shutil.rmtree(machine.engine.settings.runtime_directory, ignore_errors=True)
    another(machine).jobs(include_final=False)
    assert machine.until_state(third, JobState.EXITED).exit_code == 0
    assert "failed" in (machine.until_state(second, JobState.CANCELLED).reason or "")


def test_how_a_job_ended_is_kept_as_long_as_others_wait_for_it() -> None:
    with world(kept_jobs=0) as machine:
        first, blocker = machine.submit(("true",), name="first"), machine.submit(LONG, name="blocker")
        machine.until_free(first)
        [second] = submitted(machine, ask(after=["first", "blocker"]))
        machine.until_free(machine.submit(("true",)))
        machine.submit(("true",))
        assert machine.engine.ledger.job(first.id).exit_code == 0
        machine.client.stop(blocker.id, grace_seconds=5)
        assert machine.until_state(second, JobState.CANCELLED).reason
