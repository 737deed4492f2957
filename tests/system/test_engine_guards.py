"""The checks by which no job is started twice, ended by mistake, taken from its supervisor or limited to another job's size.

Each check is tested alone and without a race. The storms of test_engine_crashes need several of them at once, so they may pass
although one is missing.
"""

import fcntl
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.fakes.enforcers import Failing, HalfWay, Stuck
from tests.fakes.machine import LOCKS, make_engine, make_machine
from tests.system.engine_worlds import world
from tests.waiting import until

from pgpu.engine.agent.agents import Agents, write_identity
from pgpu.engine.engine import Engine
from pgpu.engine.event_loop import EventLoop
from pgpu.engine.leases.gpu_lock import GpuLocks
from pgpu.engine.leases.lease_resize import resize
from pgpu.engine.leases.recovery import _finish, recover
from pgpu.engine.settings import agent_paths
from pgpu.engine.supervisor import supervise, supervision
from pgpu.engine.supervisor.starting import _announce, _bind_resize, _mark_running
from pgpu.engine.unix_sockets import bind
from pgpu.errors import CancelledError, EnforcementError, NodeError, PgpuBug
from pgpu.host.process_identity import identify_running, is_alive, myself
from pgpu.ledger import Entry
from pgpu.model import Job, JobSpec, JobState, ProcessHolder, Request, Resize, Submission
from pgpu.structs import encode_json, replace
from pgpu.units import GIB

DEAD = ProcessHolder(1 << 22, 1, "another boot")
LATER = ProcessHolder(1 << 22, 2, "another boot")


@pytest.fixture
def engine() -> Iterator[Engine]:
    """An engine with agents that end at once, so that only the test changes the ledger."""
    with tempfile.TemporaryDirectory(prefix="pgpu-engine-", dir="/dev/shm", ignore_cleanup_errors=True) as directory:
        made = make_machine(Path(directory), [10 * GIB])
        made.agents = Agents(made.settings, ("true",))
        yield made
        made.ledger.close()


def submitted(engine: Engine, request: Request) -> Job:
    return engine.submit_all([Submission(JobSpec(("true",), "process", working_directory="/"), request)])[0]


def granted(engine: Engine, **words: object) -> Entry:
    """A job that was granted, changed as a test wants it."""
    job = submitted(engine, Request(GIB))
    with engine.deciding():
        pass
    return changed(engine, job.id, **words)


def changed(engine: Engine, job_id: str, **words: object) -> Entry:
    with engine.ledger.decision() as decision:
        entry = decision.entry(job_id)
        ours = {name: words.pop(name) for name in list(words) if hasattr(entry, name)}
        decision.put(replace(entry, job=replace(entry.job, **words), **ours))  # type: ignore[arg-type]
    return engine.ledger.entry(job_id)


def running(engine: Engine, **words: object) -> Entry:
    """A job that ran, with a dead main process and a dead supervisor."""
    return granted(engine, **{"state": JobState.RUNNING, "holder": DEAD, "supervisor": DEAD, **words})


def uncounted(entry: Entry) -> Entry:
    """Return it without the time that its job has run: each write counts it anew."""
    return replace(entry, ran_seconds=0.0, runs_since=None)


@pytest.mark.parametrize("memory_bytes", [GIB // 2, 2 * GIB])
def test_a_resize_that_fails_half_way_is_taken_back_where_it_took(engine: Engine, memory_bytes: int) -> None:
    before = running(engine, holder=myself(), supervisor=myself())
    engine.enforcer.prepare(before.job, engine.gpus.gpus())
    engine.enforcer = HalfWay(engine.gpus._root, had_bytes=GIB)  # type: ignore[attr-defined]
    with pytest.raises(EnforcementError, match="second GPU"):
        resize(engine, before.job.id, Resize(memory_bytes))
    assert limit_bytes(engine, before.job.id) == GIB
    assert uncounted(engine.ledger.entry(before.job.id)) == uncounted(before)


def test_a_supervised_job_gets_no_second_supervisor(engine: Engine) -> None:
    before = granted(engine, supervisor=identify_running(os.getppid()))
    recover(engine)
    supervise(engine, before.job.id)
    assert uncounted(engine.ledger.entry(before.job.id)) == uncounted(before)


def test_an_error_after_the_end_of_a_job_does_not_keep_its_lease(engine: Engine) -> None:
    job_id = running(engine).job.id
    engine.enforcer = Failing(engine.gpus._root)  # type: ignore[attr-defined]
    supervise(engine, job_id)
    after = engine.ledger.entry(job_id)
    assert (after.job.state, after.is_live) == (JobState.FAILED, False)


def test_supervision_that_a_process_gives_up_at_its_end_ends_nothing_of_the_job(engine: Engine) -> None:
    with subprocess.Popen(["sleep", "600"]) as job:
        entry = running(engine, holder=identify_running(job.pid), supervisor=None)
        steps = supervision(engine, entry.job.id, make_loop=lambda: EventLoop(calm_seconds=0.01))
        next(steps)
        steps.close()
        assert engine.places(entry.job.id).wake_socket.exists()
        assert job.poll() is None
        assert engine.ledger.entry(entry.job.id).job.state is JobState.RUNNING
        job.kill()
    supervise(engine, entry.job.id)
    assert not engine.ledger.entry(entry.job.id).is_live


def test_a_job_without_any_process_is_ended_by_the_next_recovery(engine: Engine) -> None:
    job_id = running(engine).job.id
    recover(engine)
    after = engine.ledger.entry(job_id)
    assert (after.job.state, after.is_live) == (JobState.FAILED, False)


def test_a_job_s_memory_is_not_given_back_while_a_child_of_it_holds_it(engine: Engine) -> None:
    entry = running(engine)
    assert entry.job.lease is not None
    engine.enforcer.prepare(entry.job, engine.gpus.gpus())
    with (engine.gpus._root / "slices" / entry.job.id / "held").open("rb") as held:  # type: ignore[attr-defined]
        fcntl.flock(held, fcntl.LOCK_EX)
        recover(engine)
        assert engine.ledger.entry(entry.job.id).is_lease_held


def test_a_job_on_other_gpus_is_left_to_its_own_kind_of_engine(engine: Engine) -> None:
    """This engine's enforcer has no such slice, and would report it as free."""
    entry = running(engine)
    other = make_engine(engine.gpus._root)  # type: ignore[attr-defined]
    other.settings = replace(other.settings, gpu_model="another")
    other.agents = Agents(other.settings, ("true",))
    recover(other)
    other.ledger.close()
    assert engine.ledger.entry(entry.job.id).is_lease_held


def test_a_late_recovery_does_not_end_a_job_that_is_supervised_again(engine: Engine) -> None:
    entry = running(engine, supervisor=myself())
    _finish(engine, entry.job.id)
    assert engine.ledger.job(entry.job.id).state is JobState.RUNNING


def test_a_replaced_supervisor_starts_no_job(engine: Engine) -> None:
    entry = granted(engine, supervisor=LATER)
    with pytest.raises(PgpuBug, match="another process supervises"):
        _announce(engine, entry.job, DEAD, is_running=True)
    assert engine.ledger.job(entry.job.id).holder is None


def test_a_job_that_was_stopped_meanwhile_is_not_started(engine: Engine) -> None:
    entry = granted(engine, supervisor=myself(), stop_grace_seconds=1.0)
    with pytest.raises(CancelledError):
        _announce(engine, entry.job, DEAD, is_running=True)
    assert engine.ledger.job(entry.job.id).holder is None


def test_slices_that_were_resized_while_a_job_was_being_started_keep_their_new_size(engine: Engine) -> None:
    entry = granted(engine, supervisor=myself())
    resize(make_engine(engine.gpus._root), entry.job.id, Resize(2 * GIB))  # type: ignore[attr-defined]
    _announce(engine, entry.job, DEAD, is_running=True)
    lease = engine.ledger.job(entry.job.id).lease
    assert lease is not None
    assert [part.memory_bytes for part in lease.slices] == [2 * GIB]


def limit_bytes(engine: Engine, job_id: str) -> int:
    return int((engine.gpus._root / "slices" / job_id / "limit").read_text())  # type: ignore[attr-defined]


def test_a_slice_that_is_made_smaller_or_larger_binds_at_its_new_size(engine: Engine) -> None:
    entry = running(engine, holder=myself(), supervisor=myself())
    engine.enforcer.prepare(entry.job, engine.gpus.gpus())
    for memory_bytes in (GIB // 2, 3 * GIB):
        resize(engine, entry.job.id, Resize(memory_bytes))
        assert limit_bytes(engine, entry.job.id) == memory_bytes


def test_a_slice_that_was_resized_while_its_job_was_being_started_binds_once_it_runs(engine: Engine) -> None:
    entry = granted(engine, supervisor=myself())
    engine.enforcer.prepare(entry.job, engine.gpus.gpus())
    resize(make_engine(engine.gpus._root), entry.job.id, Resize(GIB // 2))  # type: ignore[attr-defined]
    assert limit_bytes(engine, entry.job.id) == GIB
    _bind_resize(engine, entry.job, _mark_running(engine, entry.job))
    assert limit_bytes(engine, entry.job.id) == GIB // 2


@pytest.mark.parametrize("memory_bytes", [GIB // 2, 2 * GIB])
def test_a_resize_that_cannot_bind_leaves_the_ledger_as_it_was(engine: Engine, memory_bytes: int) -> None:
    before = running(engine, holder=myself(), supervisor=myself())
    engine.enforcer = Stuck(engine.gpus._root)  # type: ignore[attr-defined]
    with pytest.raises(EnforcementError):
        resize(engine, before.job.id, Resize(memory_bytes))
    assert uncounted(engine.ledger.entry(before.job.id)) == uncounted(before)


@pytest.mark.parametrize("step", ["a job is submitted", "a supervisor begins"])
def test_gpus_that_another_ledger_shares_out_are_refused(engine: Engine, tmp_path: Path, step: str) -> None:
    locks = engine.gpus._root / LOCKS  # type: ignore[attr-defined]
    locks.mkdir()
    theirs = GpuLocks(tmp_path / "theirs.db", [locks])
    theirs.hold(engine.gpus.gpus())
    with pytest.raises(NodeError, match=r"theirs\.db"):
        granted(engine) if step == "a job is submitted" else engine.hold_gpus()
    assert engine.ledger.entries(include_final=True) == []
    theirs.close()


def test_what_a_stopped_job_started_is_ended_with_it() -> None:
    script = "(trap '' TERM; exec sleep 600) & echo $! >child; trap 'exit 3' TERM; echo there; wait"
    with world() as made:
        spec = JobSpec(("sh", "-c", script), "process", working_directory=str(made.root))
        job = made.client.submit(spec, Request(GIB), wait_timeout_seconds=None)
        until(lambda: b"there" in b"".join(data for _, data in made.client.logs(job.id, follow=False)))
        child = identify_running(int((made.root / "child").read_text()))
        assert child is not None
        assert made.client.stop(job.id, grace_seconds=60).exit_code == 3
        until(lambda: not is_alive(child))


def test_a_job_that_loses_its_place_is_woken_at_once(engine: Engine) -> None:
    victim = submitted(engine, Request(GIB, 1, 0.8))
    changed(engine, victim.id, state=JobState.RUNNING, holder=myself(), supervisor=myself())
    engine.places(victim.id).wake_socket.parent.mkdir(parents=True, exist_ok=True)
    with closing(bind(socket.SOCK_DGRAM, engine.places(victim.id).wake_socket)) as wakes:
        wakes.setblocking(False)
        urgent = submitted(engine, Request(GIB, 1, 0.8, priority=50, preempts=True))
        assert engine.ledger.job(victim.id).suspended_by == urgent.id
        assert wakes.recv(1) == b""


def test_a_command_leaves_a_job_to_a_living_agent_alone(engine: Engine) -> None:
    engine.agents, engine.leaves_rounds = Agents(engine.settings, ("true",)), True
    places = agent_paths(engine.settings, engine.settings.gpu_model)
    places.lock.parent.mkdir(parents=True, exist_ok=True)
    listed = (replace(engine.gpus.gpus()[0], name="as the agent read it"),)
    places.gpus.write_bytes(encode_json(listed))
    with places.lock.open("w") as file:
        assert engine.listed_gpus() == engine.gpus.gpus()  # no agent
        write_identity(file.fileno(), replace(myself(), boot_id="another"))
        assert engine.listed_gpus() == engine.gpus.gpus()  # a dead one
        write_identity(file.fileno(), myself())
        assert engine.listed_gpus() == listed
        places.gpus.write_bytes(b"[]")  # the driver does not answer the agent
        assert not engine.agent_gpus()
