"""Jobs from submission to release, with real agents, monitors and processes, on a machine of files."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system.engine_worlds import LONG, World, another, world
from tests.waiting import until

from pgpu.errors import CapacityError, JobNotFoundError, NodeError, RequestError, WaitTimeoutError
from pgpu.model import Job, JobState
from pgpu.units import GIB


@pytest.fixture
def machine() -> Iterator[World]:
    with world() as made:
        yield made


def test_a_job_runs_and_its_output_and_exit_code_come_back(machine: World) -> None:
    job, stdout, stderr = machine.run(("sh", "-c", "echo out; echo err >&2; exit 7"))
    assert (job.state, job.exit_code, stdout, stderr) == (JobState.EXITED, 7, b"out\n", b"err\n")
    assert list(machine.client.logs(job.id, follow=False)) == [("stdout", b"out\n"), ("stderr", b"err\n")]


def test_the_memory_of_a_job_is_free_once_its_caller_gets_its_end(machine: World) -> None:
    for _ in range(5):
        machine.run(("true",), gib=10, timeout=0)


def test_input_reaches_the_job_and_ends(machine: World) -> None:
    data = os.urandom(3_000_000)
    job = machine.submit(("sh", "-c", "cat; exit 5"), wants_stdin=True)
    ended, stdout, _ = machine.attach(job, data)
    assert (ended.exit_code, stdout == data) == (5, True)


def test_a_job_without_input_reads_an_end_at_once(machine: World) -> None:
    assert machine.run(("cat",))[1] == b""


def test_no_byte_is_lost_to_a_client_that_comes_late_or_reads_slowly(machine: World) -> None:
    job = machine.submit(("sh", "-c", "seq 1 2000000"))
    machine.until_running(job)
    _, stdout, _ = machine.attach(job)
    assert stdout == b"".join(b"%d\n" % number for number in range(1, 2000001))


def test_a_job_killed_by_a_signal_exits_with_128_and_its_number(machine: World) -> None:
    assert machine.run(("sh", "-c", "kill -9 $$"))[0].exit_code == 137


def test_a_command_that_is_not_there_fails_as_in_docker(machine: World) -> None:
    job, _, _ = machine.run(("no-such-command-anywhere",))
    assert (job.state, job.exit_code, job.started_at_seconds) == (JobState.FAILED, 127, None)
    assert job.error is not None
    assert "no-such-command-anywhere" in job.error


def test_a_slice_that_cannot_be_made_to_bind_starts_nothing(machine: World) -> None:
    (machine.root / "refuses").touch()
    job, _, _ = machine.run(("touch", str(machine.root / "started")))
    assert (job.state, job.exit_code, job.error) == (JobState.FAILED, None, "the fake refuses (remove the file)")
    assert not (machine.root / "started").exists()
    machine.until_free(job)


def test_a_slice_too_small_for_a_context_is_refused_where_no_gpu_could_hold_one() -> None:
    with world((10, 10)) as machine:
        for gpu_uuid in ("GPU-0", "GPU-1"):
            machine.run(("true",), gib=1, count=1)
            (machine.root / f"context-{gpu_uuid}").write_text(str(2 * GIB))
        stored = len(machine.engine.ledger.entries(include_final=True))
        with pytest.raises(RequestError, match="CUDA context"):
            machine.submit(gib=1)
        (machine.root / "context-GPU-0").unlink()
        with pytest.raises(RequestError, match="CUDA context"):
            machine.submit(gib=1, count=2)
        assert len(machine.engine.ledger.entries(include_final=True)) == stored
        assert machine.run(("true",), gib=1)[0].exit_code == 0


def test_a_job_that_does_not_fit_waits_with_a_reason_and_starts_when_memory_is_free(machine: World) -> None:
    first, second, third = (machine.submit(gib=6) for _ in range(3))
    assert machine.reason(second) == "waits for 6 GiB on one GPU: 4 GiB free of 10 GiB"
    assert machine.reason(third) == "waits for 6 GiB on one GPU: 4 GiB free of 10 GiB; 1 job ahead"
    machine.until_running(first)
    machine.client.stop(first.id, grace_seconds=1)
    machine.until_running(second)
    assert machine.state(third) is JobState.WAITING


def test_a_small_job_goes_first_on_memory_that_the_head_of_the_queue_leaves_free(machine: World) -> None:
    machine.submit(gib=6)
    head = machine.submit(gib=8, priority=1)
    in_the_way = machine.submit(gib=3)
    beside = machine.submit(("true",), gib=2)
    machine.until_free(beside)
    assert (machine.state(head), machine.state(in_the_way)) == (JobState.WAITING, JobState.WAITING)
    reason = machine.client.job(in_the_way.id).job.reason
    assert reason == f"waits its turn: the memory that is free is kept for job {head.id}; 1 job ahead"


def test_a_job_can_have_several_gpus_and_never_one_of_them_twice() -> None:
    with world((4, 8, 8)) as machine:
        job = machine.submit(("true",), gib=6, count=2)
        assert job.lease is not None
        assert [part.gpu_uuid for part in job.lease.slices] == ["GPU-1", "GPU-2"]


def test_a_request_that_can_never_be_met_is_refused_and_leaves_nothing(machine: World) -> None:
    with pytest.raises(RequestError) as refusal:
        machine.submit(gib=11)
    assert refusal.value.nearest_bytes == 10 * GIB
    with pytest.raises(RequestError, match="2 GPUs were asked for"):
        machine.submit(gib=1, count=2)
    with pytest.raises(RequestError, match="not a valid name"):
        machine.submit(gib=1, name="../x")
    assert machine.client.jobs(include_final=True) == []


def test_the_error_on_a_machine_without_gpus_has_a_hint() -> None:
    with world(()) as machine, pytest.raises(NodeError) as refusal:
        machine.submit()
    assert refusal.value.hint is not None


def test_a_name_is_taken_only_as_long_as_its_job_lives(machine: World) -> None:
    job = machine.submit(LONG, name="one")
    with pytest.raises(RequestError, match=job.id):
        machine.submit(LONG, gib=1, name="one")
    machine.client.stop("one", grace_seconds=0)
    again, _, _ = machine.run(("true",), name="one")
    assert machine.client.job("one").job.id == again.id
    with pytest.raises(JobNotFoundError):
        machine.client.job("two")


def test_a_job_that_may_not_wait_is_given_up_at_once(machine: World) -> None:
    machine.submit(gib=6)
    job = machine.submit(("true",), gib=6, timeout=0)
    assert (job.state, job.wait_timed_out) == (JobState.CANCELLED, True)
    with pytest.raises(WaitTimeoutError):
        machine.attach(job)


def test_a_wait_that_runs_out_cancels_the_job_and_lets_the_next_one_in(machine: World) -> None:
    machine.submit(gib=6)
    head = machine.submit(gib=6, timeout=0.3)
    follower = machine.submit(gib=2)
    with pytest.raises(WaitTimeoutError):
        machine.attach(head)
    machine.until_running(follower)


def test_outsiders_memory_is_not_granted_and_is_noticed_when_it_is_free_again(machine: World) -> None:
    machine.gpus.set_outsiders("GPU-0", 8 * GIB)
    job = machine.submit(gib=4)
    assert machine.reason(job) == "waits for 4 GiB on one GPU: 2 GiB free of 2 GiB, 8 GiB held by others"
    machine.gpus.set_outsiders("GPU-0", 0)
    machine.until_running(job)


def test_what_a_job_holds_inside_its_slice_is_not_counted_twice(machine: World) -> None:
    first = machine.submit(("sh", "-c", f"echo {4 * GIB} > $FAKE_SLICE/used; exec sleep 600"), gib=5)
    until(lambda: machine.client.gpus()[0].used_bytes == 4 * GIB)
    assert machine.client.gpus()[0].capacity_bytes == 10 * GIB
    assert machine.client.gpus()[0].jobs == (first.id,)
    machine.until_running(machine.submit(gib=5))


def test_a_stopped_job_gets_a_term_and_after_its_grace_a_kill(machine: World) -> None:
    gentle = machine.submit(("sh", "-c", "trap 'exit 4' TERM; echo ready; while :; do sleep 0.01; done"), gib=1)
    stubborn = machine.submit(("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.01; done"), gib=1)
    for job in (gentle, stubborn):
        assert next(machine.client.logs(job.id, follow=True)) == ("stdout", b"ready\n")
    assert machine.client.stop(gentle.id, grace_seconds=30).exit_code == 4
    assert machine.client.stop(stubborn.id, grace_seconds=0.1).exit_code == 137


def test_a_waiting_job_that_is_stopped_is_cancelled_and_the_next_one_starts(machine: World) -> None:
    machine.submit(gib=6)
    head = machine.submit(gib=8)
    follower = machine.submit(gib=4)
    assert machine.client.stop(head.id, grace_seconds=0).state is JobState.CANCELLED
    machine.until_running(follower)


def test_signals_reach_the_job(machine: World) -> None:
    job = machine.submit(("sh", "-c", "trap 'echo usr; exit 9' USR1; echo ready; while :; do sleep 0.01; done"))
    assert next(machine.client.logs(job.id, follow=True)) == ("stdout", b"ready\n")
    machine.client.signal(job.id, signal.SIGUSR1)
    assert machine.client.wait(job.id).exit_code == 9


def test_an_agent_that_is_terminated_ends_no_job(machine: World) -> None:
    job = machine.submit(("sh", "-c", "echo ready; read line; echo $line; exit 6"), wants_stdin=True)
    assert next(machine.client.logs(job.id, follow=True)) == ("stdout", b"ready\n")
    os.kill(machine.until_supervised(job).pid, signal.SIGTERM)
    ended, stdout, _ = machine.attach(job, b"more\n")
    assert (ended.exit_code, stdout) == (6, b"ready\nmore\n")


def test_a_terminal_is_one_stream_and_has_a_size(machine: World) -> None:
    job, stdout, stderr = machine.run(("sh", "-c", "test -t 1 && echo tty; echo err >&2"), wants_tty=True)
    assert (job.exit_code, stdout, stderr) == (0, b"tty\r\nerr\r\n", b"")


def test_a_client_that_goes_leaves_the_job_alone(machine: World) -> None:
    job = machine.submit(("yes", "line"))
    logs = machine.client.logs(job.id, follow=True)
    assert next(logs)[1].startswith(b"line")
    del logs
    until(lambda: machine.engine.places(job.id).log.stat().st_size > 30_000_000)
    assert machine.state(job) is JobState.RUNNING


def test_a_log_stays_below_its_cap_and_its_end_is_kept() -> None:
    with world(log_cap_bytes=200_000) as machine:
        job, stdout, _ = machine.run(("sh", "-c", "seq 1 300000"))
        assert stdout.endswith(b"\n300000\n")
        kept = b"".join(data for _, data in machine.client.logs(job.id, follow=False))
        assert kept.endswith(b"\n300000\n")
        assert sum(path.stat().st_size for path in machine.engine.places(job.id).kept.glob("log*")) <= 200_000


def test_the_last_lines_of_a_log_can_be_asked_for(machine: World) -> None:
    job, _, _ = machine.run(("sh", "-c", "seq 1 1000"))
    assert b"".join(data for _, data in machine.client.logs(job.id, follow=False, tail_lines=2)) == b"999\n1000\n"


def test_slices_can_be_made_larger_and_smaller_while_the_job_runs(machine: World) -> None:
    job = machine.submit(gib=4)
    machine.until_running(job)
    limit = machine.root / "slices" / job.id / "limit"
    machine.client.resize(job.id, 7 * GIB)
    assert int(limit.read_text()) == 7 * GIB
    machine.submit(gib=3)
    with pytest.raises(CapacityError):
        machine.client.resize(job.id, 8 * GIB)
    assert int(limit.read_text()) == 7 * GIB
    waiting = machine.submit(gib=4)
    machine.client.resize(job.id, 3 * GIB)
    machine.until_running(waiting)
    assert machine.client.job(job.id).job.request.memory_bytes == 3 * GIB


def test_a_slice_made_smaller_than_what_it_holds_counts_as_what_it_holds(machine: World) -> None:
    job = machine.submit(("sh", "-c", f"echo {6 * GIB} > $FAKE_SLICE/used; exec sleep 600"), gib=6)
    until(lambda: machine.client.gpus()[0].used_bytes == 6 * GIB)
    machine.client.resize(job.id, 2 * GIB)
    assert machine.submit(("true",), gib=5, timeout=0).state is JobState.CANCELLED


def test_a_child_that_keeps_the_memory_keeps_the_lease(machine: World) -> None:
    command = ("sh", "-c", 'exec 9<"$FAKE_SLICE/held"; flock -s 9; sleep 600 & echo $! > "$FAKE_SLICE/../child"')
    ended, _, _ = machine.run(command, gib=6)
    assert ended.exit_code == 0
    waiting = machine.submit(gib=6)
    assert machine.entry(ended).is_lease_held
    os.kill(int((machine.root / "slices" / "child").read_text()), signal.SIGKILL)
    machine.until_running(waiting)


def test_what_an_ended_job_left_behind_can_be_stopped(machine: World) -> None:
    job, _, _ = machine.run(("sh", "-c", 'exec 9<"$FAKE_SLICE/held"; flock -s 9; sleep 600 &'), gib=6)
    assert machine.entry(job).is_lease_held
    machine.client.stop(job.id, grace_seconds=5)
    assert machine.until_free(job).exit_code == 0


def test_a_job_over_its_slice_is_reported(machine: World) -> None:
    job = machine.submit(gib=2)
    running = machine.until_running(job)
    assert running.holder is not None
    listing = f"[[{running.holder.pid}, {3 * GIB}]]"  # type: ignore[union-attr]
    (machine.root / "processes-GPU-0.json").write_text(listing)
    until(lambda: machine.entry(job).job.warning is not None)
    assert machine.entry(job).job.warning == "it held 3 GiB of GPU GPU-0, over its slice of 2 GiB"
    assert machine.state(job) is JobState.RUNNING


def test_a_job_over_its_slice_is_stopped_if_the_operator_chose_that() -> None:
    with world(on_violation="stop") as machine:
        job = machine.submit(gib=2)
        running = machine.until_running(job)
        listing = f"[[{running.holder.pid}, {3 * GIB}]]"  # type: ignore[union-attr]
        (machine.root / "processes-GPU-0.json").write_text(listing)
        assert machine.client.wait(job.id).exit_code == 143


def test_what_the_driver_holds_beside_the_meter_becomes_overhead(machine: World) -> None:
    job = machine.submit(("sh", "-c", f"echo {GIB} > $FAKE_SLICE/used; exec sleep 600"), gib=2)
    running = machine.until_running(job)
    listing = f"[[{running.holder.pid}, {GIB + (64 << 20)}]]"  # type: ignore[union-attr]
    (machine.root / "processes-GPU-0.json").write_text(listing)
    overhead = machine.root / "slices" / job.id / "overhead-GPU-0"
    until(lambda: overhead.exists() and overhead.read_text() == str(64 << 20))


def test_two_commands_that_submit_at_once_never_share_memory(machine: World) -> None:
    clients = [another(machine) for _ in range(4)]
    jobs: list[Job] = []

    def submit(client_world: World) -> None:
        jobs.extend(client_world.submit(gib=3) for _ in range(3))

    threads = [
        threading.Thread(target=submit, args=(World(machine.root, machine.engine, client),)) for client in clients
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    held = [machine.entry(job) for job in jobs if machine.entry(job).is_lease_held]
    assert (len(jobs), len(held)) == (12, 3)


def test_a_job_finds_the_environment_and_directory_of_its_submitter(
    machine: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODD", "a b\udcff")
    _, stdout, _ = machine.run(("sh", "-c", 'printf %s "$ODD$MORE"; pwd'), environment=(("MORE", "x"),))
    assert stdout == b"a b\xffx/\n"


def test_a_final_job_no_longer_keeps_its_askers_environment(machine: World) -> None:
    job, _, _ = machine.run(("true",))
    assert machine.engine.ledger.inheritance(job.id)[0] == ()


def test_waiting_costs_next_to_no_processor_time(machine: World) -> None:
    machine.submit(gib=6)
    waiting = [machine.submit(gib=6) for _ in range(3)]
    keeper = machine.until_kept()
    assert [machine.entry(job).supervisor for job in waiting] == [None] * 3
    until(lambda: machine.client.still_waits(waiting[0].id, timeout_seconds=0.1) != "")
    ticks_before = _ticks(keeper.pid)
    deadline = time.monotonic() + 1
    until(lambda: time.monotonic() > deadline)
    assert _ticks(keeper.pid) - ticks_before < os.sysconf("SC_CLK_TCK") / 4


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_bytes().rsplit(b")", 1)[1].split()
    return int(fields[11]) + int(fields[12])
