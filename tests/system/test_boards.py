"""A job tells of its GPU time where every other job can read it and none can change it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.system.conftest import Place
from tests.system.slice_stage import SLICE_BYTES, Stage, opened_stage

from pgpu import tmpfs
from pgpu.app.throwaway_jobs import run_throwaway
from pgpu.enforcement.board import BOARD_BYTES, read_board
from pgpu.enforcement.compute_word import ComputeWord
from pgpu.enforcement.slice_files import IN_JOB
from pgpu.libraries import PROBE
from pgpu.model import Job
from pgpu.runtimes.process_runtime import ProcessRuntime
from pgpu.structs import replace

_SHARED = ComputeWord(0.5, 100, is_measured=True, is_shared=True)
_STAT_BLOCK_BYTES = 512


def _script(stage: Stage, script: str, *, is_advisory: bool = False) -> tuple[Job, Path]:
    job = stage.job(["true"], is_advisory=is_advisory)
    place = stage.enforcer.files(job.id).meter if is_advisory else IN_JOB
    program = (stage.enforcer.files(job.id).view if is_advisory else IN_JOB) / PROBE
    command = ("/bin/sh", "-c", script, str(program), str(place))
    return replace(job, spec=replace(job.spec, command=command)), place


def _run(stage: Stage, script: str, *, is_advisory: bool = False) -> str:
    job, _ = _script(stage, script, is_advisory=is_advisory)
    return stage.output(ProcessRuntime(), job)


@pytest.mark.parametrize("is_advisory", [False, True])
def test_a_job_finds_its_own_file_among_those_of_all(is_advisory: bool) -> None:
    with opened_stage() as stage, stage.prepared(stage.job(["true"])):
        told = _run(stage, 'ls -L "$1/board" | wc -l; stat -Lc %s "$1/time"', is_advisory=is_advisory)
    assert told.split() == ["2", str(BOARD_BYTES)]


def test_a_job_with_a_view_of_its_own_writes_its_own_file_and_no_other() -> None:
    attempt = 'for file in "$1"/board/* "$1/board/new" "$1/time"; do (: >>"$file") 2>/dev/null && echo "$file"; done'
    with opened_stage() as stage, stage.prepared(stage.job(["true"])):
        assert _run(stage, attempt).split() == [str(IN_JOB / "time")]


@pytest.mark.parametrize("is_advisory", [False, True])
def test_a_share_is_applied_in_every_delivery(is_advisory: bool) -> None:
    with opened_stage() as stage:
        job, _ = _script(stage, f'exec "$0" allocate {2 * SLICE_BYTES}', is_advisory=is_advisory)
        assert job.lease is not None
        with stage.prepared(job) as delivery:
            stage.enforcer.set_compute(job.lease, [_SHARED])
            told = run_throwaway(ProcessRuntime(), job, delivery)
            [gpu] = read_board(stage.enforcer.files(job.id).time, [0])
    assert "allocate 2" in told
    assert gpu.launches == 0


@pytest.mark.parametrize(
    "spoil", [lambda path: path.unlink(), lambda path: path.write_bytes(b"x" * 5000), lambda path: os.truncate(path, 9)]
)
def test_a_share_whose_time_cannot_be_told_refuses_cuda(spoil: Callable[[Path], None]) -> None:
    with opened_stage() as stage:
        job, _ = _script(stage, f'exec "$0" allocate {2 * SLICE_BYTES}', is_advisory=True)
        assert job.lease is not None
        with stage.prepared(job) as delivery:
            spoil(stage.enforcer.files(job.id).time.resolve())
            assert "allocate 2" in run_throwaway(ProcessRuntime(), job, delivery), "without a share nobody misses it"
            stage.enforcer.set_compute(job.lease, [_SHARED])
            assert "800" in run_throwaway(ProcessRuntime(), job, delivery)


def test_what_a_job_has_grown_is_cut_back_and_goes_with_its_slice() -> None:
    with opened_stage() as stage:
        with stage.prepared(stage.job(["true"])) as delivery:
            assert delivery.time_path is not None
            with delivery.time_path.open("ab") as file:
                file.write(bytes(100_000))
            with stage.prepared(stage.job(["true"])):
                assert delivery.time_path.stat().st_blocks * _STAT_BLOCK_BYTES == BOARD_BYTES
        assert list((stage.directory / tmpfs.BOARD).iterdir()) == []
        assert not os.path.ismount(stage.directory / tmpfs.BOARD)


@pytest.mark.userns
def test_a_job_that_garbles_its_own_board_is_complained_of_once(place: Place) -> None:
    script = "printf garbled >/.pgpu/time && sleep 3"  # so that its supervisor looks more than once
    done = place.run("run", "--memory", "1GiB", "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    [log] = place.path.glob("state/jobs/*/supervisor.log")
    assert log.read_text().count("is cut short") == 1, log.read_text()
