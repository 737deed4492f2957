"""What follows for a job from looks at its MPS daemon: who is slow ends nobody, who is gone ends all."""

import os
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from pgpu.enforcement.mps import Health, MpsControl, MpsDaemons
from pgpu.enforcement.mps.daemon import DaemonSnapshot, Generation, publish_snapshot, read_snapshot, take_snapshot
from pgpu.enforcement.mps.daemon_process import is_ending
from pgpu.engine.supervisor.clients import SILENT_SECONDS, Clients, Judging
from pgpu.gpu import GpuSource
from pgpu.model import Job, JobSpec, JobState, Lease, Request, SharingMode, Slice
from pgpu.runtimes import RunningJob
from pgpu.structs import replace

SERVER = 7


def seen(
    began_seconds: float, *pids: int, health: Health = Health.WELL, faulted: tuple[int, ...] = ()
) -> DaemonSnapshot:
    return DaemonSnapshot(began_seconds, health, dict.fromkeys(pids, SERVER), frozenset(faulted))


def test_a_daemon_that_died_ends_the_job_at_once() -> None:
    said = str(Judging("GPU-0").judged(seen(1, health=Health.GONE), {1}, 1.0))
    assert "control daemon of GPU GPU-0 died" in said


def test_a_daemon_that_does_not_answer_for_a_while_ends_nothing_and_one_that_never_does_ends_the_job() -> None:
    judging = Judging("GPU-0")
    assert judging.judged(seen(1, 1), {1}, 1.5) is None
    for began_seconds in (2, 2 + SILENT_SECONDS - 1):
        assert judging.judged(seen(began_seconds, health=Health.SILENT), {1}, began_seconds + 0.5) is None
    again = SILENT_SECONDS + 5
    assert judging.judged(seen(again, 1), {1}, again + 0.5) is None
    for began_seconds in (again + 1, again + SILENT_SECONDS):
        assert judging.judged(seen(began_seconds, health=Health.SILENT), {1}, began_seconds + 0.5) is None
    late = again + 1 + SILENT_SECONDS
    assert "has not answered for 60 s" in str(judging.judged(seen(late, health=Health.SILENT), {1}, late))


def test_who_came_to_the_gpu_after_a_look_is_no_stranger_by_it() -> None:
    judging = Judging("GPU-0")
    for now in (1.0, 2.0, 3.0):
        assert judging.judged(seen(0.5), {1}, now) is None
    assert judging.judged(seen(3.5, 1), {1}, 4.0) is None


def test_a_process_that_two_looks_miss_uses_the_gpu_without_mps() -> None:
    judging = Judging("GPU-0")
    assert judging.judged(seen(0.5), {1}, 1.0) is None
    assert "process 1 of it uses GPU GPU-0 without MPS" in str(judging.judged(seen(1.5), {1}, 2.0))


def test_a_client_that_two_looks_miss_has_lost_its_server() -> None:
    judging = Judging("GPU-0")
    assert judging.judged(seen(0.5, 1), {1}, 1.0) is None
    assert judging.judged(seen(1.5), {1}, 2.0) is None
    assert "server of GPU GPU-0 died" in str(judging.judged(seen(2.5), {1}, 3.0))


def test_a_client_of_a_server_that_faulted_ends_and_no_other() -> None:
    faulted = seen(0.5, 1, health=Health.FAULT, faulted=(SERVER,))
    assert "faulted" in str(Judging("GPU-0").judged(faulted, {1}, 1.0))
    assert Judging("GPU-0").judged(faulted, set(), 1.0) is None


class AskedError(Exception):
    """Somebody was asked."""


class Gpus:
    """Tells nobody anything."""

    def processes(self, _gpu_uuid: str) -> Any:
        raise AskedError


@pytest.mark.parametrize("health", list(Health))
def test_a_kill_is_not_put_off_by_a_daemon_that_does_not_answer(tmp_path: Path, health: Health) -> None:
    lease = Lease("one", (Slice("GPU-0", 1),), 0.0, sharing=SharingMode.MPS)
    job = Job("one", JobSpec(("true",), "process"), Request(1), JobState.RUNNING, 0.0, lease=lease)
    daemons = MpsDaemons(tmp_path, Path("/nonexistent"))
    generation = Generation(1, "me")
    control = daemons.of("GPU-0").control(generation)
    control.pipe_directory.mkdir(parents=True)
    daemons.of("GPU-0").enter(generation, job.id)
    publish_snapshot(control, DaemonSnapshot(1.0, health, {3: SERVER}, frozenset({SERVER})))
    assert read_snapshot(control) == DaemonSnapshot(1.0, health, {3: SERVER}, frozenset({SERVER}))
    clients = Clients(daemons, cast("GpuSource", Gpus()))
    if health in {Health.SILENT, Health.GONE}:
        clients.terminate(job, cast("RunningJob", None))
    else:
        with pytest.raises(AskedError):
            clients.terminate(job, cast("RunningJob", None))


def test_a_job_that_ends_over_a_daemon_that_is_gone_says_so_before_anybody_looked(tmp_path: Path) -> None:
    lease = Lease("one", (Slice("GPU-0", 1),), 0.0, sharing=SharingMode.MPS)
    job = Job("one", JobSpec(("true",), "process"), Request(1), JobState.RUNNING, 0.0, lease=lease)
    clients = Clients(MpsDaemons(tmp_path, Path("/nonexistent")), cast("GpuSource", Gpus()))
    assert "control daemon of GPU GPU-0 died" in str(clients.loss(job))
    sliced = replace(job, lease=replace(lease, sharing=SharingMode.TIME_SLICE))
    assert clients.loss(sliced) is None


def test_a_daemon_that_answers_in_part_has_not_answered(tmp_path: Path) -> None:
    program = tmp_path / "control"
    program.write_text('#!/bin/sh\nread line; [ "$line" = get_server_list ] && echo 7\n')
    program.chmod(0o700)
    looked = take_snapshot(MpsControl(program, tmp_path, tmp_path, "GPU-0"))
    assert (looked.health, dict(looked.clients)) == (Health.GONE, {})


def test_a_process_that_nobody_has_reaped_yet_has_ended() -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert is_ending(process.pid)
    assert is_ending(process.pid)
    assert not is_ending(os.getpid())
