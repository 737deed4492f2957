"""Ticks of a running job that its thread does not make: whatever may block is left to the thread."""

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest
from tests.fakes.machine import make_machine

from pgpu.enforcement.growth_channel import GrowthChannel, Wish
from pgpu.engine.event_loop import EventLoop
from pgpu.engine.supervisor.running import Running
from pgpu.ledger import Entry
from pgpu.model import Job, JobSpec, JobState, Lease, Request, Slice
from pgpu.runtimes import RunningJob
from pgpu.scheduling.slice_growth import Verdict
from pgpu.structs import replace
from pgpu.units import GIB

_ID = "0123456789ab"


class Signalled:
    """A job that keeps the signals it was sent."""

    def __init__(self) -> None:
        self.signals: list[int] = []
        self.has_ended = False

    def is_alive(self) -> bool:
        return not self.has_ended

    def owns(self, pid: int) -> bool:
        return pid == os.getpid()

    def signal(self, number: int) -> None:
        self.signals.append(number)

    def kill(self) -> None:
        self.signals.append(signal.SIGKILL)


class World:
    """One running job in a ledger, and the loop of its thread, which waits while nothing turns it."""

    def __init__(self, root: Path) -> None:
        self.engine = make_machine(root, [10 * GIB])
        (root / "slices" / _ID).mkdir(parents=True)
        self.loop, self.process = EventLoop(), Signalled()
        lease = Lease(_ID, (Slice("GPU-0", 2 * GIB),), 0.0)
        job = Job(_ID, JobSpec(("true",), "process"), Request(2 * GIB), JobState.RUNNING, 0.0, lease=lease)
        with self.engine.ledger.decision() as decision:
            decision.put(replace(decision.add(Entry(job), ()), job=job))
        entry = self.engine.ledger.cached(lambda: self.engine.ledger.entry(_ID))
        self.running = Running(self.engine, self.loop, job, entry, cast("RunningJob", self.process), [])


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.loop.close()
    made.engine.ledger.close()


def test_a_stop_that_a_tick_finds_is_left_to_the_thread(world: World) -> None:
    with world.engine.ledger.decision() as decision:
        decision.put(replace(decision.entry(_ID), stop_grace_seconds=60.0))
    world.running._tick()
    assert world.process.signals == []
    world.loop.turn()
    assert world.process.signals == [signal.SIGTERM]


def test_a_stop_for_what_a_tick_measured_is_left_to_the_thread(world: World) -> None:
    world.running._report("uses more than its slice", is_end=True)
    assert world.engine.ledger.entry(_ID).stop_grace_seconds is not None
    assert world.process.signals == []
    world.loop.turn()
    assert world.process.signals == [signal.SIGTERM]


def test_a_stop_that_the_thread_had_not_begun_when_the_job_ended_is_for_what_the_job_left_behind(world: World) -> None:
    world.running._report("uses more than its slice", is_end=True)
    world.running._final(0, 1.0)
    assert world.process.signals == [signal.SIGKILL]


class Wishing:
    """A channel with at most one wish."""

    def __init__(self) -> None:
        self.open: list[Wish] = []
        self.answers: list[Verdict] = []

    def wishes(self) -> list[Wish]:
        return self.open

    def answer(self, _wishes: Sequence[Wish], verdict: Verdict) -> None:
        self.answers.append(verdict)


def test_a_wish_that_comes_between_the_check_and_the_tick_is_left_to_the_thread(world: World) -> None:
    """The main thread of the agent decides nothing: a decision reads the GPUs, and may order a long queue."""
    channel = Wishing()
    world.running._growth.channel = cast("GrowthChannel", channel)
    assert world.running._is_calm()
    channel.open = [Wish("GPU-0", 1, 3 * GIB)]
    world.running._tick()
    assert channel.answers == []
    assert not world.running._is_calm()
    world.running._tick()
    assert channel.answers == [Verdict.REFUSE], "an explicit size does not grow"


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_limit_that_has_passed_stops_only_a_job_that_still_runs(world: World, has_ended: bool) -> None:
    """A job may have ended by itself while no agent lived, so that the next one finds its limit passed."""
    request = replace(world.running.job.request, time_limit_seconds=0.001)
    world.running.job = replace(world.running.job, request=request)
    with world.engine.ledger.decision() as decision:
        decision._connection.execute("UPDATE jobs SET time_limit = 0.001")
        decision._connection.execute("UPDATE leases SET charged_since = charged_since - 1000")
    world.process.has_ended = has_ended
    world.running._watch_limit()
    entry = world.engine.ledger.entry(_ID)
    assert entry.job.hit_time_limit is not has_ended
    assert (entry.stop_grace_seconds is None) is has_ended
