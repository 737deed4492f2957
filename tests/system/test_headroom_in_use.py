"""Headroom that yields, with a real agent on the simulated GPU: P1's twenty run at once, and an outsider costs none of them a byte."""

import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.system.conftest import Place, opened_place
from tests.system.engine_worlds import LONG, world
from tests.system.storm_victims import agent, guard, kill
from tests.system.test_cli_queue import start_outsider
from tests.system.test_learning import HOLDER, held_back

from pgpu.app.settings import Settings
from pgpu.engine.unix_sockets import send_datagram
from pgpu.lab import testbed
from pgpu.lab.p1 import P1Plan
from pgpu.lab.trials import SlicedJob, run_sliced, settle
from pgpu.model import JobState
from pgpu.structs import replace
from pgpu.units import GIB, MIB

Eventually = Callable[[Callable[[], Any]], Any]

GPU_MIB, JOB_MIB, TWENTY = 24_265, 1_205, 20
LATE_MIB = 940

WAIT_OFFSET = 16
"""Of `wait_for_memory_ns` in a limit file."""

LATE = """
import fcntl, signal, sys
from cuda.bindings import driver as cuda
cuda.cuInit(0)
context = cuda.cuDevicePrimaryCtxRetain(0)[1]
cuda.cuCtxSetCurrent(context)
signal.signal(signal.SIGTERM, lambda *_: print("ends later", flush=True))
print("begun", flush=True)
fcntl.flock(open("go", "a"), fcntl.LOCK_SH)  # until nobody holds it back
print("asks", flush=True)
error = int(cuda.cuMemAlloc(int(sys.argv[1]) << 20)[0])
print(f"got {error}", flush=True)
if error:
    sys.exit(9)
fcntl.flock(open("held", "a"), fcntl.LOCK_SH)
"""
"""Takes so many MiB once nobody holds `go` back, and ends with 9 where it is refused."""


@pytest.fixture
def place() -> Iterator[Place]:
    with opened_place() as made:
        made.environment["PGPU_STABLE_TIME"] = "0.5s"
        (made.path / "hold.py").write_text(HOLDER)
        (made.path / "late.py").write_text(LATE)
        # The probe of the first job is memory outside of slices, too.
        assert made.run("run", "--memory", "1GiB", "--", "true").returncode == 0
        yield made


def submit(place: Place, *words: str, count: int = TWENTY) -> None:
    done = place.run("submit", "--array", f"0-{count - 1}", "--memory", f"{JOB_MIB}MiB", "--", *words)
    assert done.returncode == 0, done.stderr


def states(place: Place) -> list[str]:
    return [job["state"] for job in place.json("ps", "--all")["jobs"][1:]]


def exit_codes(place: Place) -> list[int]:
    return [job["exit_code"] for job in place.json("ps", "--all")["jobs"][1:]]


def until_all_run(place: Place, eventually: Eventually) -> None:
    eventually(lambda: states(place) == ["running"] * TWENTY)


def test_p1s_twenty_run_together_and_all_get_their_memory(place: Place, eventually: Eventually) -> None:
    held = held_back(place)
    submit(place, sys.executable, "hold.py", "800")
    until_all_run(place, eventually)
    gpu = place.json("gpus")["gpus"][0]
    assert gpu["granted_bytes"] == TWENTY * JOB_MIB * MIB <= gpu["capacity_bytes"] < GPU_MIB * MIB
    held.close()
    eventually(lambda: exit_codes(place) == [0] * TWENTY)


def test_a_command_that_does_not_wait_is_granted_headroom_in_its_own_round(
    place: Place, eventually: Eventually
) -> None:
    held = held_back(place)
    submit(place, sys.executable, "hold.py", "800", count=TWENTY - 1)
    eventually(lambda: states(place) == ["running"] * (TWENTY - 1))
    words = ("run", "--no-wait", "--memory", f"{JOB_MIB}MiB")
    assert place.run(*words, "--", "true", PGPU_HEADROOM="3%").returncode == 124
    assert place.run(*words, "--", "true").returncode == 0
    held.close()


def test_an_outsider_that_comes_later_takes_nothing_from_a_job_that_was_granted_headroom(
    place: Place, eventually: Eventually
) -> None:
    """It holds more than is left beside the twenty, so the last of them waits for another's end."""
    go, held = held_back(place, "go"), held_back(place)
    submit(place, sys.executable, "late.py", str(LATE_MIB))
    until_all_run(place, eventually)
    jobs = [job["id"] for job in place.json("ps")["jobs"]]

    def count(word: str) -> int:
        logs = [Path(place.environment["PGPU_STATE_DIR"]) / "jobs" / job / "log" for job in jobs]
        return sum(word.encode() in log.read_bytes() for log in logs)

    eventually(lambda: count("begun") == TWENTY)
    outsider = start_outsider(place)
    free_bytes = GPU_MIB * MIB - place.json("gpus")["gpus"][0]["used_bytes"]
    fit = free_bytes // (LATE_MIB * MIB)
    assert fit < TWENTY
    go.close()
    eventually(lambda: (count("asks"), count("got 0")) == (TWENTY, fit))
    held.close()
    eventually(lambda: set(states(place)) == {"exited"})
    assert exit_codes(place) == [0] * TWENTY
    outsider.kill()


def submit_late(place: Place, eventually: Eventually) -> int:
    """Start a job that waits for `go` and returns soon from a wait for the device; return its slice in MiB: all there is."""
    most_mib: int = place.json("gpus")["gpus"][0]["capacity_bytes"] // MIB
    words = ("--", sys.executable, "late.py", str(most_mib - 600))
    assert place.run("submit", "--name", "late", "--memory", f"{most_mib}MiB", *words).returncode == 0
    eventually(lambda: "begun" in place.run("logs", "late").stdout)
    (path,) = (Path(place.environment["PGPU_RUNTIME_DIR"])).rglob("limit")
    with path.open("r+b") as file:
        file.seek(WAIT_OFFSET)
        file.write((1_000_000).to_bytes(8, "little"))
    return most_mib


def kept_by_guard(place: Place, name: str) -> list[str]:
    """Return the pipes of a job that the agent's guard keeps open."""
    found = guard(Path(place.environment["PGPU_RUNTIME_DIR"]))
    assert found is not None
    job_id = place.job(name)["id"]
    return [path for link in Path(f"/proc/{found.pid}/fd").iterdir() if job_id in (path := str(link.resolve()))]


def test_an_agent_that_is_killed_before_it_queues_a_job_again_costs_no_exit_code(
    place: Place, eventually: Eventually
) -> None:
    go = held_back(place, "go")
    submit_late(place, eventually)
    outsider = start_outsider(place)
    runtime_root = Path(place.environment["PGPU_RUNTIME_DIR"])
    (wake_socket,) = runtime_root.rglob(f"{place.job('late')['id']}/wake.sock")
    (ledger,) = Path(place.environment["PGPU_STATE_DIR"]).glob("*.db")
    with closing(sqlite3.connect(ledger, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")  # no other process can write
        go.close()
        eventually(lambda: not wake_socket.exists())
        assert kill(agent(runtime_root))
    eventually(lambda: place.job("late")["state"] != "running")
    job = place.job("late")
    assert (job["state"], job["attempt"], job["exit_code"]) == ("exited", 1, 9)
    outsider.kill()


def test_a_job_that_was_told_to_end_before_it_failed_is_not_started_again(place: Place, eventually: Eventually) -> None:
    go = held_back(place, "go")
    submit_late(place, eventually)
    (wake_socket,) = Path(place.environment["PGPU_RUNTIME_DIR"]).rglob(f"{place.job('late')['id']}/wake.sock")
    assert send_datagram(wake_socket, b"signal 15")
    eventually(lambda: "ends later" in place.run("logs", "late").stdout)
    outsider = start_outsider(place)
    go.close()
    eventually(lambda: place.job("late")["state"] != "running")
    job = place.job("late")
    assert (job["state"], job["attempt"], job["exit_code"]) == ("exited", 1, 9)
    outsider.kill()


def test_a_job_that_an_outsider_leaves_no_memory_is_started_again_once_there_is_room(
    place: Place, eventually: Eventually
) -> None:
    """Its wait for the device, of ten minutes, is shortened in its limit file."""
    go = held_back(place, "go")
    most_mib = submit_late(place, eventually)
    assert kept_by_guard(place, "late")
    outsider = start_outsider(place)
    go.close()
    eventually(lambda: (job := place.job("late"))["attempt"] == 2 and job["state"] == "waiting")
    eventually(lambda: not kept_by_guard(place, "late"))
    job = place.job("late")
    assert job["request"]["memory_bytes"] == most_mib * MIB
    assert job["warning"].endswith("although its slice was not: it is started again (try 2 of 3) once there is room")
    outsider.kill()
    outsider.wait()
    eventually(lambda: place.job("late")["state"] == "exited")
    job = place.job("late")
    assert (job["attempt"], job["exit_code"], job["warning"]) == (2, 0, None)
    assert place.run("logs", "late").stdout.count("got 2") == 1


def test_an_experiment_settles_first_so_that_p1s_twenty_are_one_wave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPU_STABLE_TIME", "8s")  # which the agent reads
    settings = replace(Settings(), simulate="RTX 3090", stable_time=8.0)
    with testbed.open_testbed(settings, "process", None, lambda _line: None) as bed:
        settle(bed)
        jobs = [SlicedJob(f"job-{number}", ("spin", "--launches", "1"), JOB_MIB * MIB) for number in range(TWENTY)]
        found = run_sliced(bed, jobs)
    assert found.failed == 0
    assert len({job.granted_at_seconds for job in found.jobs}) == 1, "in one round"


def test_p1s_25_that_fill_the_gpu_past_its_headroom_see_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Submitted one by one, so that they are no batch: twenty and then five, each with P1's steps of allocation."""
    monkeypatch.setenv("PGPU_STABLE_TIME", "1s")
    settings = replace(Settings(), simulate="RTX 3090", stable_time=1.0)
    words = P1Plan((25,), batches=20, gpu_ms=1.0, host_ms=50.0).words()
    with testbed.open_testbed(settings, "process", None, lambda _line: None) as bed:
        settle(bed)
        jobs = [SlicedJob(f"job-{number}", words, JOB_MIB * MIB) for number in range(25)]
        found = run_sliced(bed, jobs, is_batch=False, has_start_line=True)
    assert (found.failed, found.saw_refusal, found.most_side_by_side) == (0, 0, TWENTY)
    assert found.device_peak_bytes <= GPU_MIB * MIB


def test_jobs_that_could_drop_their_limits_use_no_headroom() -> None:
    """The machine of files makes no private views. Any two of its readings make a stable period."""
    with world(headroom_least_bytes=GIB, stable_seconds=0.0) as machine:
        jobs = [machine.submit(LONG, gib=1) for _ in range(10)]
        for job in jobs[:9]:
            machine.until_running(job)
        assert machine.engine.snapshot().stable_bytes == {"GPU-0": 0}
        assert machine.engine.admissions.step().granted == ()
        assert machine.state(jobs[9]) is JobState.WAITING
