"""What a process runtime must never do: take a stranger's process for the job's, or let the job's words win over its
slice's."""

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.system.engine_worlds import WITHOUT_MAIN_THREAD, main_thread_has_ended
from tests.waiting import until

from pgpu.errors import RuntimeUnavailableError
from pgpu.host.process_identity import identify_unreaped
from pgpu.model import Delivery, Job, JobSpec, JobState, ProcessHolder, Request
from pgpu.runtimes import Stdio
from pgpu.runtimes.launcher import launch
from pgpu.runtimes.lineage import Lineage
from pgpu.runtimes.process_runtime import _environment, _lineage, append_host_preloads
from pgpu.runtimes.process_table import JOB_ID_VARIABLE, ProcessScans, ProcessTable
from pgpu.runtimes.running_process import RunningProcess
from pgpu.structs import replace


@contextmanager
def sleeper(*words: str) -> Iterator[ProcessHolder]:
    """A process in a session of its own, which says a line once it is there."""
    command = [*words, "sh", "-c", "echo there; exec sleep 60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield named(process.pid)
        finally:
            process.kill()


def named(pid: int) -> ProcessHolder:
    holder = identify_unreaped(pid)
    assert holder is not None
    return holder


def stranger_of(holder: ProcessHolder) -> ProcessHolder:
    """Who had this PID before."""
    return replace(holder, start_time_ticks=holder.start_time_ticks - 1)


def test_a_stranger_that_was_given_the_main_process_s_pid_is_not_the_job_s() -> None:
    with sleeper() as holder:
        assert Lineage("0123456789ab", holder, None).owns(holder.pid)
        assert not Lineage("0123456789ab", stranger_of(holder), None).owns(holder.pid)


@pytest.mark.userns
def test_a_stranger_s_mount_namespace_is_not_taken_for_the_job_s() -> None:
    with sleeper("unshare", "--user", "--map-root-user", "--mount") as holder:
        ours = _lineage("0123456789ab", holder, is_private=True)
        assert ours.private_namespace is not None
        ours.close()
        assert _lineage("0123456789ab", stranger_of(holder), is_private=True).private_namespace is None


def test_a_child_that_left_session_and_environment_is_known_by_its_ancestors() -> None:
    script = "env -i setsid sleep 60 & echo $!; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True) as main:
        assert main.stdout is not None
        child = int(main.stdout.readline())
        try:
            until(lambda: os.getsid(child) == child)
            assert Lineage("0123456789ab", named(main.pid), None).owns(child)
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.userns
@pytest.mark.parametrize("is_private", [True, False])
def test_a_process_whose_main_thread_ended_is_known_by_its_other_threads(is_private: bool) -> None:
    namespace = ["unshare", "--user", "--map-root-user", "--mount"] if is_private else []
    environment = {**os.environ, JOB_ID_VARIABLE: "0123456789ab"}
    command = [*namespace, *WITHOUT_MAIN_THREAD]
    with subprocess.Popen(command, env=environment, start_new_session=True) as process, sleeper() as other:
        try:
            until(lambda: main_thread_has_ended(process.pid))
            by_environment = Lineage("0123456789ab", other, None)
            assert by_environment.owns(process.pid)
            assert process.pid in by_environment.members()
            by_place = _lineage("another job", named(process.pid), is_private=is_private)
            assert (by_place.private_namespace is not None) == is_private
            assert process.pid in by_place.members()
            by_place.close()
        finally:
            process.kill()


def test_a_process_that_looks_for_members_never_finds_itself() -> None:
    code = (
        "import os; from pgpu.host.process_identity import identify_unreaped; from pgpu.runtimes.lineage import Lineage;"
        "me = Lineage('0123456789ab', identify_unreaped(os.getpid()), None);"
        "assert me.owns(os.getpid()); assert os.getpid() not in me.members()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, start_new_session=True)


class Endless(Lineage, frozen=True):
    """Members that cannot be ended."""

    def members(self) -> set[int]:
        return {1 << 22}


def test_a_job_that_cannot_be_ended_is_named_instead_of_killed_for_ever() -> None:
    with sleeper() as holder:
        job = RunningProcess(holder, Endless("0123456789ab", holder, None), os.pidfd_open(holder.pid), None)
        job.kill_deadline_seconds = 0.05
        with pytest.raises(RuntimeUnavailableError, match=str(1 << 22)):
            job.kill()
        job.close()


@pytest.mark.parametrize("is_private", [True, False])
def test_the_slice_s_words_win_over_the_job_s(is_private: bool) -> None:
    environment = (("CUDA_VISIBLE_DEVICES", "all"), (JOB_ID_VARIABLE, "another"), ("OWN", "kept"))
    spec = JobSpec(("true",), "process", environment=environment)
    job = Job("0123456789ab", spec, Request(1), JobState.STARTING, 0.0)
    delivery = Delivery(Path("/slice"), Path("/usage"), ("GPU-1",), environment=(("CUDA_VISIBLE_DEVICES", "GPU-1"),))
    found = _environment(job, delivery, None, is_private=is_private)
    assert (found["CUDA_VISIBLE_DEVICES"], found[JOB_ID_VARIABLE], found["OWN"]) == ("GPU-1", job.id, "kept")


def test_what_the_machine_preloads_comes_after_the_slice_s_own(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.write_text("/.pgpu/libpgpu.so\n")
    append_host_preloads(ours, theirs)
    assert ours.read_text() == "/.pgpu/libpgpu.so\n"
    theirs.write_text("/lib/their.so\n")
    append_host_preloads(ours, theirs)
    assert ours.read_text().split() == ["/.pgpu/libpgpu.so", "/lib/their.so"]


@contextmanager
def streams() -> Iterator[tuple[Stdio, int]]:
    """Standard streams of a job, and where its output can be read."""
    reader, writer = os.pipe()
    try:
        yield Stdio(writer, writer, writer), reader
    finally:
        os.close(writer)
        os.close(reader)


def launched(words: Sequence[str]) -> bytes:
    with streams() as (stdio, output), launch(["--", *words], stdio) as started:
        started.hand_over({"PATH": os.environ["PATH"]})
        started.let_go()
        os.waitpid(started.pid, 0)
        return os.read(output, 4096)


def test_a_job_inherits_no_signal_that_python_ignores() -> None:
    ignored = int(launched(["grep", "SigIgn", "/proc/self/status"]).split()[1], 16)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        assert not ignored >> (number - 1) & 1


def given_up(stdio: Stdio) -> int:
    with launch(["--", "echo", "ran"], stdio) as started:
        started.hand_over({})
    return started.pid


def test_a_launcher_that_was_not_let_go_is_gone_and_reaped() -> None:
    with streams() as (stdio, output):
        pid = given_up(stdio)
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        os.set_blocking(output, False)
        with pytest.raises(BlockingIOError):
            os.read(output, 1)


def test_threads_that_need_all_processes_share_a_pass_that_begins_after_they_asked() -> None:
    asked, passes = itertools.count(1), itertools.count(1)
    under_way, may_end = threading.Event(), threading.Event()
    clock: list[int] = []

    def now_ns() -> int:
        clock.append(next(asked))
        return clock[-1]

    def scan() -> ProcessTable:
        under_way.set()
        assert may_end.wait(60)
        return ProcessTable(job_ids={str(next(passes)): []})

    scans, found = ProcessScans(scan, now_ns), list[ProcessTable]()
    threads = [threading.Thread(target=lambda: found.append(scans.read())) for _ in range(9)]
    threads[0].start()
    assert under_way.wait(60)
    for thread in threads[1:]:
        thread.start()
    until(lambda: len(clock) == 2 + 8)  # the first one asked and began its pass; all others asked meanwhile
    may_end.set()
    for thread in threads:
        thread.join()
    assert [list(table.job_ids) for table in found] == [["1"], *[["2"]] * 8]
