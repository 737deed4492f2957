"""What a slice's files must be for the limit to bind, looked at one by one."""

import fcntl
import os
import resource
import stat
import struct
import subprocess

import pytest
from tests.system.slice_stage import SLICE_BYTES, opened_stage

from pgpu.enforcement import limit_file, meter
from pgpu.enforcement.slice_files import IN_JOB
from pgpu.errors import EnforcementError
from pgpu.libraries import PROBE
from pgpu.runtimes.process_runtime import ProcessRuntime
from pgpu.structs import replace

_STAT_BLOCK_BYTES = 512


@pytest.mark.parametrize("is_advisory", [False, True])
def test_a_limit_must_lie_on_a_read_only_mount_wherever_a_job_has_a_view_of_its_own(is_advisory: bool) -> None:
    with opened_stage() as stage, stage.prepared(job := stage.job(["true"], is_advisory=is_advisory)):
        limit = limit_file.read_limit(stage.enforcer.files(job.id).limit)
        assert limit.requires_read_only is not is_advisory


def test_a_slice_is_closed_to_other_users_and_its_usage_file_alone_is_writable() -> None:
    with opened_stage() as stage, stage.prepared(job := stage.job(["true"])):
        files = stage.enforcer.files(job.id)
        modes = {
            path: stat.S_IMODE(path.stat().st_mode) for path in (files.home, files.meter, files.usage, files.limit)
        }
        assert list(modes.values()) == [0o700, 0o700, 0o666, 0o644]
        assert all(not path.stat().st_mode & 0o022 for path in (files.view, *files.view.rglob("*")))


def test_all_memory_of_a_usage_file_is_taken_before_a_job_starts() -> None:
    """A page taken at first touch is a SIGBUS in cuInit once somebody else has filled the tmpfs."""
    with opened_stage() as stage, stage.prepared(job := stage.job(["true"])):
        told = stage.enforcer.files(job.id).usage.stat()
        assert told.st_size == meter.USAGE_BYTES
        assert told.st_blocks * _STAT_BLOCK_BYTES >= meter.USAGE_BYTES


@pytest.mark.parametrize("is_advisory", [False, True])
def test_a_program_that_may_write_no_file_uses_its_slice(is_advisory: bool) -> None:
    """A process that grew the file itself would be killed by SIGXFSZ in cuInit."""
    probe = 'exec "$0" allocate "$1"'
    with opened_stage() as stage:
        job = stage.job(["true"], is_advisory=is_advisory)
        program = (stage.enforcer.files(job.id).view if is_advisory else IN_JOB) / PROBE

        def output(script: str) -> str:
            command = ("/bin/sh", "-c", script, str(program), str(2 * SLICE_BYTES))
            return stage.output(ProcessRuntime(), replace(job, spec=replace(job.spec, command=command)))

        output(probe)  # The simulated driver makes files of its own when it is first used.
        assert "allocate 2" in output(f"ulimit -f 0; {probe}")


def test_a_limit_on_file_sizes_that_pgpu_runs_under_is_named() -> None:
    with opened_stage() as stage:
        with stage.prepared(stage.job(["true"])):
            pass  # The libraries are copied now, which are larger.
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (meter.USAGE_BYTES - 1, hard))
        try:
            with pytest.raises(EnforcementError, match="File too large") as refusal:
                stage.enforcer.prepare(stage.job(["true"]), stage.gpus)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "ulimit -f" in str(refusal.value.hint)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount something for this test")
def test_a_place_from_which_no_library_can_be_loaded_is_refused() -> None:
    with opened_stage() as stage:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec", "pgpu-test", stage.directory], check=True)
        try:
            with pytest.raises(EnforcementError, match="noexec"):
                stage.enforcer.prepare(stage.job(["true"]), stage.gpus)
        finally:
            subprocess.run(["umount", stage.directory], check=True)


def test_a_slice_that_somebody_holds_is_not_made_anew() -> None:
    """A second start of the same job would wipe the meter from under its processes."""
    with opened_stage() as stage, stage.prepared(job := stage.job(["true"])):
        usage = stage.enforcer.files(job.id).usage
        with usage.open("r+b") as file:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("@hhqqi", fcntl.F_WRLCK, 0, meter.LOCK_HOLDING, 1, 0))
            with pytest.raises(EnforcementError, match="still held"):
                stage.enforcer.prepare(job, stage.gpus)
            assert usage.exists()
