"""Processes that hold memory outside of every lease, on a machine of files: found, reported once, and stopped where that is set."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.system.engine_worlds import LONG, World, world
from tests.waiting import until

from pgpu.engine.watch.watchdog import Watchdog, describe_outsider, find_outsiders_once
from pgpu.model import ProcessHolder
from pgpu.units import GIB

STUBBORN = (sys.executable, "-c", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()")


@pytest.fixture
def machine() -> Iterator[World]:
    with world() as made:
        yield made


@contextmanager
def stranger(command: tuple[str, ...] = LONG) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def report_processes(machine: World, *pids: int) -> None:
    """Let the driver report these processes, each with a GiB."""
    (machine.root / "processes-GPU-0.json").write_text(json.dumps([[pid, GIB] for pid in pids]))


def events(machine: World) -> list[str]:
    return [event.kind for event in machine.engine.ledger.events.after(0, 1000) if event.kind.startswith("outsider")]


def job_pid(machine: World) -> int:
    holder = machine.until_running(machine.submit(LONG)).holder
    assert isinstance(holder, ProcessHolder)
    return holder.pid


def test_a_process_of_no_job_is_an_outsider_and_one_of_a_job_is_none(machine: World) -> None:
    mine = job_pid(machine)
    with stranger() as process:
        report_processes(machine, mine, process.pid)
        [found] = find_outsiders_once(machine.engine)
    assert (found.process.pid, found.gpu_uuid, found.used_bytes, found.uid) == (
        process.pid,
        "GPU-0",
        GIB,
        os.getuid(),
    )
    assert describe_outsider(found) == (
        f"process {process.pid} (sleep) of user {os.getuid()} holds 1 GiB of GPU-0 outside of every lease"
    )


def test_a_child_that_a_job_left_behind_is_still_its_own(machine: World) -> None:
    path = machine.root / "child"
    job = machine.submit(("sh", "-c", f"exec 9< $FAKE_SLICE/held; flock -s 9; sleep 600 & echo $! > {path}"))
    until(lambda: path.exists() and path.read_text().strip() != "")
    report_processes(machine, int(path.read_text()))
    assert not find_outsiders_once(machine.engine)
    machine.client.stop(job.id, grace_seconds=0)


def test_a_process_that_is_gone_is_no_outsider(machine: World) -> None:
    with stranger() as process:
        pass
    report_processes(machine, process.pid)
    assert not find_outsiders_once(machine.engine)


def test_an_outsider_is_reported_once_after_two_readings_and_once_after_its_end(machine: World) -> None:
    watchdog = Watchdog(machine.engine)
    with stranger() as process:
        report_processes(machine, process.pid)
        watchdog.tick()
        assert events(machine) == []
        for _ in range(3):
            watchdog.tick()
        assert events(machine) == ["outsider"]
    for _ in range(2):
        watchdog.tick()
    assert events(machine) == ["outsider", "outsider-gone"]
    watchdog.close()


def test_of_several_watchdogs_one_reads_and_another_takes_over(machine: World) -> None:
    first, second = Watchdog(machine.engine), Watchdog(machine.engine)
    with stranger() as process:
        report_processes(machine, process.pid)
        for _ in range(3):
            first.tick()
            second.tick()
        assert events(machine) == ["outsider"]
        assert len(machine.client.outsiders()) == 1
        first.close()
        assert not machine.client.outsiders(), "no watchdog is active, so no outsider is reported"
        second.tick()
        second.tick()
        assert events(machine) == ["outsider", "outsider"]
    second.close()


def test_by_default_no_outsider_is_stopped(machine: World) -> None:
    watchdog = Watchdog(machine.engine)
    with stranger() as process:
        report_processes(machine, process.pid)
        for _ in range(4):
            watchdog.tick()
        assert process.poll() is None
    watchdog.close()


def test_an_outsider_is_asked_to_end_and_ended_where_the_operator_set_that() -> None:
    with world(on_outsider="stop", stop_grace_seconds=0.0) as machine:
        mine = job_pid(machine)
        watchdog = Watchdog(machine.engine)
        with stranger() as polite, stranger(STUBBORN) as stubborn:
            until(lambda: b"IGN" in _command(stubborn.pid))
            report_processes(machine, mine, polite.pid, stubborn.pid)

            def are_ended() -> bool:
                watchdog.tick()
                return polite.poll() is not None and stubborn.poll() is not None

            until(are_ended)
            assert (polite.returncode, stubborn.returncode) in {(-15, -9), (-9, -9), (-15, -15)}
        assert "outsider-stopped" in events(machine)
        assert machine.engine.gpus.processes("GPU-0")[0].pid == mine
        assert Path(f"/proc/{mine}").exists()
        watchdog.close()


def test_the_thread_of_a_running_job_runs_the_watchdog(machine: World) -> None:
    job_pid(machine)
    with stranger() as process:
        report_processes(machine, process.pid)
        until(lambda: events(machine) == ["outsider"])
        [gpu] = machine.client.gpus()
        assert [each.process.pid for each in gpu.outsiders] == [process.pid]
        until(lambda: [each.process.pid for each in machine.client.outsiders()] == [process.pid])
    until(lambda: not machine.client.outsiders())


def test_the_agent_of_a_waiting_job_runs_the_watchdog(machine: World) -> None:
    with stranger() as process:
        report_processes(machine, process.pid)
        machine.gpus.set_outsiders("GPU-0", 9 * GIB)
        machine.submit(LONG, gib=8)
        until(lambda: events(machine) == ["outsider"])


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
