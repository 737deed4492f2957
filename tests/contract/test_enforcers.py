"""What the engine relies on of every enforcer: the shim's, and the files that stand in for one in the engine's tests.

How a limit binds is tested on the real one alone: the fake has no CUDA program to bind.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.fakes.machine import FileEnforcer, FileGpus
from tests.system.slice_stage import Stage, opened_stage

from pgpu.enforcement import Enforcer
from pgpu.enforcement.compute_word import ComputeWord, Hold
from pgpu.model import Gpu, Job, Lease


@dataclass(frozen=True)
class World:
    """One enforcer, the GPU that it slices, and jobs for it."""

    enforcer: Enforcer
    gpu: Gpu
    stage: Stage

    def job(self) -> tuple[Job, Lease]:
        job = self.stage.job(["true"])
        assert job.lease is not None
        return job, job.lease


@contextlib.contextmanager
def _shim(_directory: Path) -> Iterator[World]:
    with opened_stage() as stage:
        yield World(stage.enforcer, stage.gpus[0], stage)


@contextlib.contextmanager
def _files(directory: Path) -> Iterator[World]:
    (directory / "gpus.json").write_text(json.dumps([1 << 34]))
    with opened_stage() as stage:
        yield World(FileEnforcer(directory), FileGpus(directory).gpus()[0], stage)


@pytest.fixture(params=[_shim, _files], ids=["shim", "files"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    make: Callable[[Path], AbstractContextManager[World]] = request.param
    with make(tmp_path) as made:
        yield made


def test_a_prepared_slice_has_a_directory_and_names_its_gpus(world: World) -> None:
    job, lease = world.job()
    delivery = world.enforcer.prepare(job, [world.gpu])
    assert delivery.slice_directory.is_dir()
    assert delivery.gpu_uuids == (world.gpu.uuid,)
    world.enforcer.release(lease)
    assert not delivery.slice_directory.exists()


def test_a_slice_that_nobody_uses_is_not_held_and_holds_nothing(world: World) -> None:
    job, lease = world.job()
    assert not list(world.enforcer.use(lease))
    world.enforcer.prepare(job, [world.gpu])
    assert not world.enforcer.is_held(lease)
    assert sum(use.used_bytes for use in world.enforcer.use(lease)) == 0
    world.enforcer.release(lease)


def test_a_slice_can_be_made_again_after_a_crash_in_the_middle(world: World) -> None:
    job, lease = world.job()
    first = world.enforcer.prepare(job, [world.gpu])
    assert world.enforcer.prepare(job, [world.gpu]).slice_directory == first.slice_directory
    world.enforcer.release(lease)


def test_a_slice_can_be_resized_and_told_its_overhead(world: World) -> None:
    job, lease = world.job()
    delivery = world.enforcer.prepare(job, [world.gpu])
    before = _content(delivery.slice_directory)
    world.enforcer.resize(lease, 2 << 30)
    assert _content(delivery.slice_directory) != before
    world.enforcer.set_overhead(lease, world.gpu.uuid, 1 << 20)
    world.enforcer.release(lease)


def test_a_share_of_compute_is_written_live_and_leaves_a_hold_alone(world: World) -> None:
    job, lease = world.job()
    world.enforcer.prepare(job, [world.gpu])
    for word in (ComputeWord(0.3, 100, is_measured=True, is_shared=True), ComputeWord(0.5, 200, is_strict=True)):
        world.enforcer.set_compute(lease, [word])
        assert [each.without_holds for each in world.enforcer.words(lease)] == [word]
        world.enforcer.hold(lease, lease.slices[0].gpu_uuid, Hold.TURNS, is_held=True)
        world.enforcer.set_compute(lease, [word])
        assert [(each.without_holds, each.holds) for each in world.enforcer.words(lease)] == [(word, Hold.TURNS)]
        world.enforcer.hold(lease, lease.slices[0].gpu_uuid, Hold.TURNS, is_held=False)
    world.enforcer.release(lease)


def test_who_holds_a_job_takes_back_its_own_hold_and_no_other(world: World) -> None:
    job, lease = world.job()
    world.enforcer.prepare(job, [world.gpu])
    for hold, is_held, left in (
        (Hold.TURNS, True, Hold.TURNS),
        (Hold.SUSPENSION, True, Hold.TURNS | Hold.SUSPENSION),
        (Hold.TRIAL, False, Hold.TURNS | Hold.SUSPENSION),
        (Hold.TURNS, False, Hold.SUSPENSION),
        (Hold.SUSPENSION, False, Hold.NONE),
    ):
        world.enforcer.hold(lease, lease.slices[0].gpu_uuid, hold, is_held=is_held)
        [word] = world.enforcer.words(lease)
        assert (word.holds, word.is_held) == (left, left is not Hold.NONE)
    world.enforcer.release(lease)


def _content(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(directory.rglob("limit")))


def test_a_slice_that_is_gone_is_not_held_and_may_be_released_again(world: World) -> None:
    job, lease = world.job()
    world.enforcer.prepare(job, [world.gpu])
    world.enforcer.release(lease)
    world.enforcer.release(lease)
    assert not world.enforcer.is_held(lease)
    assert not list(world.enforcer.use(lease))


def test_every_enforcer_has_a_name_and_says_what_it_does_not_cover(world: World) -> None:
    chosen = world.enforcer.for_gpus([world.gpu])
    assert chosen.name
    assert chosen.does_not_cover
