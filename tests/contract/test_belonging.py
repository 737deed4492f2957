"""Whose a process is, told from outside of its job as the job's own runtime tells it."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.waiting import until

from pgpu.host.process_identity import identify_unreaped
from pgpu.model import ContainerHolder, Job, JobSpec, JobState, ProcessHolder, Request
from pgpu.runtimes.process_owners import ProcessOwners
from pgpu.runtimes.process_table import JOB_ID_VARIABLE
from pgpu.units import MIB

ID = "0123456789ab"


@contextmanager
def process(command: Sequence[str] = ("sleep", "600"), **environment: str) -> Iterator[ProcessHolder]:
    with subprocess.Popen(command, env={**os.environ, **environment}, start_new_session=True) as started:
        try:
            holder = identify_unreaped(started.pid)
            assert holder is not None
            yield holder
        finally:
            started.kill()


def job(holder: ProcessHolder | ContainerHolder | None) -> Job:
    return Job(ID, JobSpec(("true",), "process"), Request(MIB), JobState.RUNNING, 0.0, holder=holder)


def test_a_job_s_own_process_is_its_own_and_another_s_is_nobody_s() -> None:
    belonging = ProcessOwners()
    with process() as mine, process() as other:
        assert belonging.owner(mine, [job(mine)]) == ID
        assert belonging.owner(other, [job(mine)]) is None
    belonging.close()


def test_a_process_in_another_session_is_known_by_its_environment() -> None:
    belonging = ProcessOwners()
    with process() as main, process(**{JOB_ID_VARIABLE: ID}) as daemon:
        until(lambda: belonging.owner(daemon, [job(main)]) == ID)  # a process that just began shows no environment yet
    belonging.close()


def test_what_is_known_of_a_job_is_forgotten_with_it() -> None:
    belonging = ProcessOwners()
    with process() as mine:
        assert belonging.owner(mine, [job(mine)]) == ID
        assert belonging.owner(mine, []) is None
    belonging.close()


def test_a_job_without_a_holder_and_a_container_elsewhere_own_nobody() -> None:
    belonging = ProcessOwners()
    with process() as mine:
        assert belonging.owner(mine, [job(None)]) is None
        assert belonging.owner(mine, [job(ContainerHolder("f" * 64, "unix:///nowhere"))]) is None
    belonging.close()


def test_no_descriptor_is_left_behind() -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names, not paths
    belonging = ProcessOwners()
    with process(("unshare", "--user", "--mount", "sleep", "600")) as mine:
        belonging.owner(mine, [job(mine)])
        belonging.owner(mine, [])
    belonging.close()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - likewise
