"""The monitor's seccomp filter: what it allows is enough in every mode, and any other call ends the process."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.monitored import Monitored
from tests.native_clients import client_path

from pgpu import libraries
from pgpu.errors import RuntimeUnavailableError
from pgpu.libraries import MONITOR, library_path
from pgpu.runtimes.job_monitor import read_record

FORBIDDEN = [
    "execve",
    "clone",
    "socket",
    "address",
    "ptrace",
    "setuid",
    "mount",
    "unlinkat",
    "ioctl",
    "wide-ioctl",
    "kill-other",
    "kill-all",
    "code",
    "file",
]
FOREIGN = ["x32", "i386"] if os.uname().machine == "x86_64" else []
ALLOWED = ["kill-own", "memory"]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Monitored]:
    made = Monitored(tmp_path)
    yield made
    made.close()


def _restricted(call: str) -> int:
    return subprocess.run([client_path("monitor", "monitor-restricted"), call], check=False).returncode


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    return dict(line.split(":\t", 1) for line in lines)


@pytest.mark.parametrize("call", [*FORBIDDEN, *FOREIGN])
def test_a_call_outside_the_list_ends_the_process(call: str) -> None:
    assert _restricted(call) == -signal.SIGSYS


@pytest.mark.parametrize("call", ALLOWED)
def test_a_call_of_the_list_returns(call: str) -> None:
    assert _restricted(call) == 0


@pytest.mark.parametrize("options", [{}, {"tty": True, "stdin": True}, {"stdin": True}])
def test_a_monitor_has_the_filter_and_its_job_has_not(job: Monitored, options: dict[str, bool]) -> None:
    job.start("sleep", "600", **options)  # type: ignore[arg-type]
    monitor, main, own = map(_status, (job.pid, read_record(job.started).holder.pid, os.getpid()))
    assert (monitor["Seccomp"], monitor["NoNewPrivs"]) == ("2", "1")
    assert (main["Seccomp"], main["NoNewPrivs"]) == (own["Seccomp"], own["NoNewPrivs"])
    job.order("signal 9")
    assert job.end().exit_code == 137


def test_a_monitor_of_streams_alone_has_the_filter(job: Monitored) -> None:
    ends = job.carry()
    client = job.attach()
    os.write(ends[1], b"out")
    job.order("end")
    next(client.frames())
    assert _status(job.pid)["Seccomp"] == "2"
    job.order("finish")
    assert client.output() == b""
    for end in ends:
        os.close(end)


def test_where_the_kernel_refuses_the_filter_no_job_starts(
    job: Monitored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = tmp_path / "native"
    refusing.mkdir()
    words = [client_path("monitor", "monitor-restricted"), "refuse", library_path(MONITOR)]
    for path in library_path(MONITOR).parent.iterdir():
        (refusing / path.name).symlink_to(path)
    (refusing / MONITOR).unlink()
    (refusing / MONITOR).write_text(f'#!/bin/sh\nexec {" ".join(map(str, words))} "$@"\n')
    (refusing / MONITOR).chmod(0o755)
    monkeypatch.setattr(libraries, "_NATIVE", refusing)
    with pytest.raises(RuntimeUnavailableError, match="seccomp filter"):
        job.start("touch", str(tmp_path / "ran"))
    assert job.wait() == 125
    assert not (tmp_path / "ran").exists()
    assert not list(job.spool.iterdir())
