"""Jobs under MPS: they are clients, daemons live as long as jobs are on them, and whoever dies, the GPU is usable at once."""

import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from tests.mps_world import is_dead, until_gone
from tests.system.conftest import Place
from tests.waiting import until

from pgpu.ledger import Ledger
from pgpu.model import Job, JobState

PROBE = ("sh", "-c", "exec /.pgpu/pgpu-probe hold </dev/null")
SPINNING = (sys.executable, "-m", "pgpu.workloads", "spin", "--kernel-ms", "5", "--launches", "1000000")
FAULTY = ("env", "PGPU_SIMGPU_FAULT_AT_LAUNCH=20", *SPINNING)
WITHOUT_MPS = ("env", "CUDA_MPS_PIPE_DIRECTORY=/nonexistent", *SPINNING)
STAYING = (
    sys.executable,
    "-c",
    """import ctypes, signal
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
signal.pause()""",
)
"""Has a context, and never looks whether CUDA still works."""


pytestmark = pytest.mark.userns


def run(place: Place, *options: str, command: Sequence[str] = PROBE) -> dict[str, str]:
    done = place.run("run", "--sharing", "mps", "--memory", "1GiB", *options, "--", *command)
    assert done.returncode == 0, done.stderr
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


def detach(place: Place, name: str, command: Sequence[str] = SPINNING) -> str:
    done = place.run("run", "--sharing", "mps", "--detach", "--name", name, "--memory", "1GiB", "--", *command)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def daemons(place: Place) -> list[Path]:
    """The files with the PIDs of the daemons there are."""
    return found(place, "run/**/nvidia-cuda-mps-control.pid")


def found(place: Place, pattern: str) -> list[Path]:
    """What there is now, where others remove directories meanwhile."""
    while True:
        with suppress(FileNotFoundError):
            return list(place.path.glob(pattern))


def daemon_pid(place: Place) -> int:
    (path,) = daemons(place)
    return int(path.read_text())


def server_pid(place: Place) -> int:
    """The daemon's one server: its only child."""
    daemon = daemon_pid(place)
    text = Path(f"/proc/{daemon}/task/{daemon}/children").read_text()
    return int(text.split()[0])


def log(place: Place, name: str) -> str:
    with suppress(FileNotFoundError):
        return "".join(path.read_text() for path in found(place, f"run/**/log/{name}.log"))
    return ""


def until_clients(place: Place, *job_ids: str) -> None:
    """Wait until these jobs run and each has a client; a job that runs is past its proof."""
    for job_id in job_ids:
        until_state(place, job_id, JobState.RUNNING)
    until(lambda: len(clients(place)) >= len(job_ids))


def clients(place: Place) -> list[int]:
    """Who is one; the server may not have heard yet that a proof's is dead."""
    said = re.findall(r"(New client|Client) (\d+) (?:dis)?connected", log(place, "server"))
    return [
        pid for pid, last in {int(pid): word for word, pid in said}.items() if last != "Client" and not is_dead(pid)
    ]


def until_state(place: Place, job_id: str, *states: JobState) -> Job:
    """Wait by looking into the ledger, which costs no process."""
    ledger = Ledger(place.path / "state" / "ledger.db")
    until(lambda: ledger.job(job_id).state in states, lambda: ledger.entry(job_id))
    job = ledger.job(job_id)
    ledger.close()
    return job


def until_ended(place: Place, job_id: str) -> Job:
    return until_state(place, job_id, JobState.EXITED, JobState.FAILED)


def supervisor_of(place: Place, job_id: str) -> int | None:
    ledger = Ledger(place.path / "state" / "ledger.db")
    supervisor = ledger.entry(job_id).supervisor
    ledger.close()
    return None if supervisor is None else supervisor.pid


def test_a_job_is_a_client_and_sees_its_share_of_the_multiprocessors(place: Place) -> None:
    said = run(place, "--compute", "50%")
    assert (said["mps"], said["multiprocessors"], said["context"]) == ("1", "40", "0")


def test_jobs_of_one_gpu_share_one_server_and_the_daemon_ends_with_the_last(place: Place) -> None:
    one, two = detach(place, "one"), detach(place, "two")
    until_clients(place, one, two)
    daemon, server = daemon_pid(place), server_pid(place)
    place.run("stop", "--time", "0", "one")
    until_ended(place, one)
    assert daemon_pid(place) == daemon
    place.run("stop", "--time", "0", "two")
    until(lambda: not daemons(place))
    until_gone(daemon)
    until_gone(server)


def test_after_its_daemon_died_a_job_is_ended_with_a_reason_and_the_next_one_runs(place: Place) -> None:
    early = detach(place, "early")
    until_clients(place, early)
    os.kill(daemon_pid(place), signal.SIGKILL)
    assert "control daemon" in str(until_ended(place, early).warning)
    assert run(place)["mps"] == "1"
    until(lambda: not daemons(place))


def test_after_their_server_died_jobs_end_and_the_next_one_runs(place: Place) -> None:
    early = detach(place, "early")
    until_clients(place, early)
    os.kill(server_pid(place), signal.SIGKILL)
    ended = until_ended(place, early)
    assert ended.exit_code != 0
    # The second, if the server died before the agent's first snapshot of its clients.
    assert re.search("MPS server of GPU|without MPS", str(ended.warning))
    assert run(place)["mps"] == "1"


def test_a_job_that_does_not_notice_a_fault_is_ended_so_that_the_gpu_is_usable_again(place: Place) -> None:
    deaf = detach(place, "deaf", STAYING)
    until_clients(place, deaf)
    faulty = detach(place, "faulty", FAULTY)
    assert "faulted" in str(until_ended(place, deaf).warning)
    assert until_ended(place, faulty).exit_code != 0
    assert run(place)["mps"] == "1"


def test_a_program_that_leaves_mps_ends_its_job(place: Place) -> None:
    sly = detach(place, "sly", WITHOUT_MPS)
    assert "without MPS" in str(until_ended(place, sly).warning)


def test_no_server_is_taken_for_an_outsider(place: Place) -> None:
    until_clients(place, detach(place, "long"))
    assert not place.json("gpus")["gpus"][0].get("outsiders")


def test_a_job_whose_supervisor_was_killed_is_watched_by_the_next_one(place: Place) -> None:
    orphan = detach(place, "orphan")
    until_clients(place, orphan)
    supervisor = supervisor_of(place, orphan)
    assert supervisor is not None
    os.kill(supervisor, signal.SIGKILL)
    place.run("ps")  # whoever comes by finds it without one
    until(lambda: supervisor_of(place, orphan) not in {supervisor, None})
    os.kill(daemon_pid(place), signal.SIGKILL)
    assert "control daemon" in str(until_ended(place, orphan).warning)


def test_two_jobs_that_come_at_once_start_one_daemon(place: Place) -> None:
    both = [place.start("run", "--sharing", "mps", "--memory", "1GiB", "--", *PROBE) for _ in range(2)]
    for process in both:
        stdout, stderr = process.communicate()
        assert "mps 1" in stdout, stderr


def test_a_gpu_older_than_volta_is_refused_under_mps(place: Place) -> None:
    done = place.run("run", "--sharing", "mps", "--memory", "1GiB", "--", "true", PGPU_SIMULATE="GTX 980 Ti")
    assert done.returncode == 125
    assert "Volta" in done.stderr


@pytest.mark.soak
def test_a_daemon_that_is_slow_for_a_while_ends_no_job(place: Place) -> None:
    one, two = detach(place, "one"), detach(place, "two")
    until_clients(place, one, two)
    daemon = daemon_pid(place)
    os.kill(daemon, signal.SIGSTOP)
    until(lambda: "SILENT" in seen(place))
    os.kill(daemon, signal.SIGCONT)
    until(lambda: "WELL" in seen(place))
    assert [until_state(place, job, JobState.RUNNING).warning for job in (one, two)] == [None, None]


def seen(place: Place) -> str:
    with suppress(FileNotFoundError):
        return "".join(path.read_text() for path in found(place, "run/**/seen"))
    return ""
