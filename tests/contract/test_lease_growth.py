"""Wishes of running jobs for larger slices, decided in the ledger: what is granted, who waits, and what no wish can do."""

import json
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from tests.fakes.enforcers import Stuck
from tests.fakes.machine import make_machine

from pgpu.enforcement.checkpoints import Checkpoints
from pgpu.enforcement.growth_channel import GrowthChannel, Wish
from pgpu.engine.agent.agents import Agents
from pgpu.engine.engine import Engine
from pgpu.engine.history.retry_policy import NextTry, observe_end, queue_again
from pgpu.engine.history.run_history import NOTHING
from pgpu.engine.leases.departure import Departure
from pgpu.engine.leases.lease_growth import Growth, answer_wishes
from pgpu.engine.leases.lease_resize import Autoshrink, resize
from pgpu.engine.leases.parking_state import Parking, Stage, Traveller, load_parking, save_parking
from pgpu.engine.supervisor.suspension import Suspension
from pgpu.errors import CapacityError, EnforcementError, LedgerError
from pgpu.host.process_identity import myself
from pgpu.ledger import Entry, Ledger
from pgpu.model import Job, JobSpec, JobState, Lease, Request, Resize, Slice
from pgpu.scheduling import Quota
from pgpu.scheduling.slice_growth import Verdict
from pgpu.structs import replace
from pgpu.units import GIB

GPU = "GPU-0"
CAPACITY = 20 * GIB


class NoAgents:
    """Starts no agent: a test runs each round."""

    def call(self, _model: str | None, *, must_exist: bool = False) -> None:
        pass


class World:
    """Jobs that run on one machine of two GPUs, without agents."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.engine: Engine = make_machine(root, [CAPACITY, CAPACITY])
        self.engine.agents = cast("Agents", NoAgents())

    def start(
        self,
        name: str,
        size: int,
        *,
        age: float = 3600.0,
        uid: int = 0,
        gpus: tuple[str, ...] = (GPU,),
        granted: float = 0.0,
        **request: object,
    ) -> str:
        words: dict[str, object] = {"is_estimated": True, "basis": "history", **request}
        job_id = name.ljust(12, "0")
        lease = Lease(job_id, tuple(Slice(gpu, size) for gpu in gpus), granted, enforcer="fake")
        job = Job(
            job_id,
            JobSpec(("true",), "process"),
            Request(size, len(gpus), **words),  # type: ignore[arg-type]
            JobState.RUNNING,
            0.0,
            started_at_seconds=time.time() - age,
            lease=lease,
            owner_uid=uid,
            gpu_model="fake",
        )
        with self.engine.ledger.decision() as decision:
            decision.put(replace(decision.add(Entry(job), ()), job=job))
        (self.root / "slices" / job_id).mkdir()
        (self.root / "slices" / job_id / "limit").write_text(str(size))
        return job_id

    def queue(self, name: str, size: int, uid: int, **request: object) -> str:
        """Have a job of an explicit size wait."""
        job = Job(
            name.ljust(12, "0"),
            JobSpec(("true",), "process"),
            Request(size, **request),  # type: ignore[arg-type]
            JobState.WAITING,
            time.time(),
            owner_uid=uid,
            gpu_model="fake",
        )
        with self.engine.ledger.decision() as decision:
            decision.add(Entry(job), ())
        return job.id

    def wish(self, job_id: str, need: int, gpu: str = GPU, *, is_stopping: bool = False) -> Verdict:
        return answer_wishes(self.engine, job_id, [Wish(gpu, 1, need)], is_stopping=is_stopping)

    def end(self, job_id: str) -> None:
        with self.engine.ledger.decision() as decision:
            entry = decision.entry(job_id)
            decision.put(
                replace(
                    entry, job=replace(entry.job, state=JobState.EXITED, exit_code=0), lease_released_at_seconds=1.0
                )
            )

    def entry(self, job_id: str) -> Entry:
        return self.engine.ledger.entry(job_id)

    def size(self, job_id: str) -> int:
        """Of the slice: the same in ledger, request and limit."""
        job = self.entry(job_id).job
        assert job.lease is not None
        assert {part.memory_bytes for part in job.lease.slices} == {job.request.memory_bytes}
        assert int((self.root / "slices" / job_id / "limit").read_text()) == job.request.memory_bytes
        return job.request.memory_bytes


class Shrinking:
    """The shrinking of one job, looked at when a test says so."""

    def __init__(self, world: World, job_id: str, *, grows: bool = True) -> None:
        self._world, self._job_id = world, job_id
        self._shrinking = Autoshrink(world.engine, grows=grows)

    def size(self, peak: int, now: float, *, sizes_itself: bool = False) -> int:
        """Return the size of the slice after its job was found to have held so much until now."""
        observed = replace(NOTHING, peak_bytes=peak, sizes_itself=sizes_itself)
        job = self._world.entry(self._job_id).job
        self._shrinking.follow(job, observed, now)
        if self._shrinking.is_due(job, observed, now):
            self._shrinking.shrink(job, peak)
        return self._world.size(self._job_id)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "machine")
    yield made
    made.engine.ledger.close()


def test_what_is_free_is_granted_in_ledger_and_limit(world: World) -> None:
    job = world.start("a", 4 * GIB)
    world.start("b", 4 * GIB, is_estimated=False, basis=None)
    assert world.wish(job, 6 * GIB) is Verdict.GRANT
    assert 6 * GIB < world.size(job) < 7 * GIB
    assert world.entry(job).job.request.basis == "history", "it goes on growing"
    assert world.wish(job, 16 * GIB) is Verdict.GRANT
    assert world.size(job) == 16 * GIB, "the rest of the GPU"


def test_what_is_not_free_is_waited_for_and_written_once(world: World) -> None:
    job, other = world.start("a", 4 * GIB), world.start("b", 15 * GIB)
    assert world.wish(job, 6 * GIB) is Verdict.WAIT
    entry = world.entry(job)
    assert entry.growth is not None
    assert (entry.growth.need_bytes, entry.job.reason) == (6 * GIB, "waits for 2 GiB more of its GPU")
    assert world.wish(job, 6 * GIB) is Verdict.WAIT
    assert world.entry(job) == entry
    world.end(other)
    assert world.wish(job, 6 * GIB) is Verdict.GRANT
    entry = world.entry(job)
    assert (entry.waits_to_grow, entry.job.reason) == (False, None)
    assert entry.growth is not None, "the first wait of the attempt is kept: others are held back for it once"


def test_a_job_that_waits_holds_back_starts_for_it(world: World) -> None:
    job = world.start("a", 4 * GIB, uid=1)
    world.start("b", 13 * GIB, uid=2)
    world.wish(job, 9 * GIB)
    with world.engine.ledger.view() as view:
        situation = world.engine.admissions.reader.situation(view, world.engine.snapshot())
    here, there = situation.rooms
    assert (here.growers, here.holds_others, here.growing_jobs) == ((1,), True, 2)
    assert (there.growers, there.holds_others, there.growing_jobs) == ((), False, 0)
    entry = world.entry(job)
    assert entry.growth is not None
    with world.engine.ledger.decision() as decision:
        decision.put(replace(entry, growth=replace(entry.growth, first_seconds=time.time() - 61.0)))
    with world.engine.ledger.view() as view:
        assert not world.engine.admissions.reader.situation(view, world.engine.snapshot()).rooms[0].holds_others


def test_a_young_job_and_one_that_is_to_end_are_refused_at_once(world: World) -> None:
    young, old = world.start("a", 4 * GIB, age=-60.0), world.start("b", 4 * GIB)
    world.start("c", 12 * GIB)
    assert world.wish(young, 6 * GIB) is Verdict.REFUSE
    assert world.wish(old, 6 * GIB) is Verdict.WAIT
    assert world.wish(old, 6 * GIB, is_stopping=True) is Verdict.REFUSE
    assert not world.entry(old).waits_to_grow


def test_where_all_wait_the_youngest_is_refused(world: World) -> None:
    old, young = world.start("a", 10 * GIB, age=9000.0), world.start("b", 10 * GIB)
    assert world.wish(young, 11 * GIB) is Verdict.WAIT
    assert world.wish(old, 11 * GIB) is Verdict.WAIT
    assert world.wish(young, 11 * GIB) is Verdict.REFUSE


def test_other_sizes_do_not_grow(world: World) -> None:
    explicit = world.start("a", 4 * GIB, is_estimated=False, basis=None)
    oversubscribing = world.start("b", 4 * GIB, oversubscribes=True)
    for job in (explicit, oversubscribing):
        assert world.wish(job, 6 * GIB) is Verdict.REFUSE
        assert world.size(job) == 4 * GIB


def test_a_resize_by_hand_ends_the_growth(world: World) -> None:
    job = world.start("a", 4 * GIB)
    resize(world.engine, job, Resize(3 * GIB))
    assert world.wish(job, 6 * GIB) is Verdict.REFUSE


def test_no_user_grows_past_a_quota(world: World) -> None:
    job, rich = world.start("a", 4 * GIB, uid=7), world.start("b", 4 * GIB, uid=8)
    world.start("c", 4 * GIB, uid=7, gpus=("GPU-1",))
    with world.engine.ledger.decision() as decision:
        decision.put_quota(7, Quota(9 * GIB))
    assert world.wish(job, 6 * GIB) is Verdict.REFUSE, "waiting would not help"
    assert world.wish(job, 5 * GIB) is Verdict.GRANT
    assert world.size(job) == 5 * GIB
    assert world.wish(rich, 6 * GIB) is Verdict.GRANT


def test_a_job_that_lies_keeps_nothing_from_another_user(world: World) -> None:
    liar, honest = world.start("a", 2 * GIB, uid=1, age=9000.0), world.start("b", 4 * GIB, uid=2)
    mine = world.start("c", 2 * GIB, uid=1)
    assert world.wish(liar, 1 << 51) is Verdict.REFUSE, "no GPU has it"
    assert world.wish(liar, CAPACITY) is Verdict.WAIT
    assert world.wish(mine, 3 * GIB) is Verdict.WAIT, "the older one of a user goes first"
    assert world.wish(honest, 6 * GIB) is Verdict.GRANT
    assert world.wish(honest, CAPACITY) is Verdict.WAIT, "it waits, and is not refused because the other two do"


def test_a_job_that_another_user_waits_to_start_is_not_starved_by_growth(world: World) -> None:
    job = world.start("a", 2 * GIB, uid=1)
    ending = world.start("b", 12 * GIB, uid=1, granted=time.time() - 100.0)
    world.start("c", CAPACITY, uid=9, gpus=("GPU-1",), is_estimated=False, basis=None)
    large = world.queue("large", 14 * GIB, uid=2)
    assert world.wish(job, 7 * GIB) is Verdict.WAIT, "6 GiB are free, and 3 more than the large job needs will be"
    assert world.wish(job, 5 * GIB) is Verdict.GRANT
    world.end(ending)
    assert world.wish(job, 8 * GIB) is Verdict.WAIT, "15 GiB are free, and the large job starts in the next round"
    world.engine.admissions.step()
    assert world.entry(large).job.state is JobState.STARTING
    assert world.size(job) == 5 * GIB


def test_a_job_of_its_own_user_that_waits_keeps_no_running_one_from_growing(world: World) -> None:
    job = world.start("a", 2 * GIB, uid=1)
    world.start("b", 12 * GIB, uid=1, granted=time.time() - 100.0)
    world.start("c", CAPACITY, uid=9, gpus=("GPU-1",), is_estimated=False, basis=None)
    world.queue("large", 14 * GIB, uid=1)
    assert world.wish(job, 7 * GIB) is Verdict.GRANT


# Parking.


class Movable:
    """A driver that can move processes."""

    def are_offered(self) -> bool:
        return True


class Moving:
    """The move of a job's processes, which takes no time."""

    def __init__(self, stage: Stage = Stage.AWAY) -> None:
        self.stage = stage
        self.is_under_way = False

    def leave(self, _job: Job, _by: str) -> Stage:
        self.is_under_way = self.stage is Stage.AWAY
        return self.stage

    def come_back(self, _job: Job) -> bool:
        self.is_under_way = False
        return True


@pytest.fixture
def movable(world: World) -> World:
    world.engine.make_checkpoints = lambda: cast("Checkpoints", Movable())
    return world


def follow(world: World, job_id: str, moving: Moving) -> None:
    suspension = Suspension(world.engine, cast("Departure", moving))
    suspension.follow(world.entry(job_id).job, ())


def parked(world: World, moving: Moving) -> tuple[str, str]:
    """Return a job that has left its GPU since it could not grow, and the one that keeps it from coming back."""
    job, other = world.start("a", 4 * GIB, age=-60.0), world.start("b", 14 * GIB)
    assert world.wish(job, 12 * GIB) is Verdict.WAIT
    entry = world.entry(job)
    assert (entry.job.is_aside, entry.is_counted) == (True, True), "it has its place until it has left"
    follow(world, job, moving)
    return job, other


def test_a_job_that_would_be_refused_is_parked_until_its_gpu_has_what_it_needs(movable: World) -> None:
    moving = Moving()
    job, other = parked(movable, moving)
    entry = movable.entry(job)
    assert (entry.is_counted, entry.waits_to_grow, entry.job.request.memory_bytes) == (False, True, 12 * GIB)
    assert movable.wish(job, 12 * GIB) is Verdict.WAIT
    movable.engine.admissions.step()
    entry = movable.entry(job)
    assert (entry.job.parked_at_seconds is None, entry.stop_grace_seconds) == (False, None), (
        "not to begin anew elsewhere"
    )
    movable.end(other)
    movable.engine.admissions.step()
    entry = movable.entry(job)
    assert (entry.job.is_aside, entry.is_counted, entry.job.lease.slices[0].memory_bytes) == (False, True, 12 * GIB)  # type: ignore[union-attr]
    follow(movable, job, moving)
    assert not moving.is_under_way
    assert movable.wish(job, 12 * GIB) is Verdict.GRANT
    assert movable.size(job) >= 12 * GIB
    assert (movable.entry(job).waits_to_grow, movable.entry(job).job.reason) == (False, None)


def test_a_job_that_cannot_be_moved_is_refused_as_without_parking(movable: World) -> None:
    job, _ = parked(movable, Moving(Stage.REFUSED))
    places = movable.engine.places(job)
    places.make()
    save_parking(places.parking, Parking(job, Stage.REFUSED, reason="it has managed memory"))
    assert not movable.entry(job).job.is_aside
    assert movable.wish(job, 12 * GIB) is Verdict.REFUSE
    assert not movable.entry(job).waits_to_grow


def test_a_job_whose_control_group_has_no_room_for_its_memory_is_not_moved(movable: World) -> None:
    job = movable.entry(movable.start("a", 4 * GIB)).job
    movable.engine.places(job.id).make()
    (movable.root / "processes-GPU-0.json").write_text(json.dumps([[os.getpid(), 3 * GIB]]))
    cramped = Departure(movable.engine, job.id, lambda _: True, lambda _: 2 * GIB)
    assert cramped.leave(job, job.id) is Stage.REFUSED
    assert not movable.engine.can_leave(job)


def test_a_job_that_the_next_agent_cannot_move_stays_on_its_gpu_and_counts(movable: World) -> None:
    job, _ = movable.start("a", 4 * GIB, age=-60.0), movable.start("b", 14 * GIB)
    assert movable.wish(job, 12 * GIB) is Verdict.WAIT
    movable.engine.checkpoints = None
    follow(movable, job, Moving())
    entry = movable.entry(job)
    assert (entry.job.is_aside, entry.is_counted) == (False, True)


def test_what_was_moved_is_not_forgotten_while_no_driver_brings_it_back(world: World) -> None:
    job = world.entry(world.start("a", 4 * GIB)).job
    places = world.engine.places(job.id)
    places.make()
    moved = Parking(job.id, Stage.AWAY, (Traveller(myself(), GIB),))
    save_parking(places.parking, moved)
    assert Departure(world.engine, job.id, lambda _: True).leave(job, job.id) is Stage.AWAY
    assert load_parking(places.parking) == moved


def test_what_comes_back_to_its_gpu_while_it_is_parked_and_does_not_leave_is_stopped(movable: World) -> None:
    moving = Moving()
    job, _ = parked(movable, moving)
    follow(movable, job, moving)
    assert movable.entry(job).stop_grace_seconds is None
    follow(movable, job, Moving(Stage.REFUSED))
    assert movable.entry(job).stop_grace_seconds is not None


def test_what_is_reserved_for_a_parked_job_stays_reserved(movable: World) -> None:
    """Chosen anew in each round, it would promise nothing: whatever started meanwhile would count as there before."""
    job, _ = parked(movable, Moving())
    kept = []
    for _ in range(2):
        movable.engine.admissions.step()
        with movable.engine.ledger.view() as view:
            kept.append(view.precedence("fake").reservation)
    assert kept[0] is not None
    assert (kept[0].job_id, kept[0].gpu_uuids) == (job, (GPU,))
    assert kept[1] == kept[0]


class Meanwhile:
    """A ledger in which another process does something before the next transaction."""

    def __init__(self, ledger: Ledger, act: Callable[[], object]) -> None:
        self._ledger, self._acts = ledger, [act]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def decision(self) -> Any:
        while self._acts:
            self._acts.pop()()
        return self._ledger.decision()


def test_a_job_that_is_suspended_is_neither_parked_nor_refused(movable: World) -> None:
    """Also if a round suspends it while it is decided: the job in its place waits until it has left for that one."""
    job, urgent = movable.start("a", 4 * GIB, age=-60.0), movable.start("b", 14 * GIB)

    def suspend() -> None:
        with movable.engine.ledger.decision() as decision:
            entry = decision.entry(job)
            decision.put(replace(entry, job=replace(entry.job, suspended_by=urgent)))

    movable.engine.ledger = cast("Ledger", Meanwhile(movable.engine.ledger, suspend))
    for _ in range(2):
        assert movable.wish(job, 12 * GIB) is Verdict.WAIT
        assert not movable.entry(job).job.is_aside


def test_a_job_whose_memory_is_taken_while_it_is_granted_is_parked_and_not_refused(movable: World) -> None:
    job = movable.start("a", 4 * GIB, age=-60.0)
    movable.engine.ledger = cast("Ledger", Meanwhile(movable.engine.ledger, lambda: movable.start("b", 14 * GIB)))
    assert movable.wish(job, 12 * GIB) is Verdict.WAIT
    assert (movable.size(job), movable.entry(job).job.is_aside) == (4 * GIB, False)
    assert movable.wish(job, 12 * GIB) is Verdict.WAIT
    assert movable.entry(job).job.is_aside


@pytest.mark.parametrize("words", [{"preempts": True}, {"gpus": ("GPU-0", "GPU-1")}])
def test_what_others_wait_for_or_what_no_driver_moves_is_not_parked(movable: World, words: dict[str, Any]) -> None:
    job = movable.start("a", 4 * GIB, age=-60.0, **words)
    movable.start("b", 14 * GIB)
    assert movable.wish(job, 12 * GIB) is Verdict.REFUSE


def test_more_than_the_gpu_has_is_refused_and_not_waited_for_on_the_host(movable: World) -> None:
    job = movable.start("a", 4 * GIB, age=-60.0)
    assert movable.wish(job, CAPACITY + 1) is Verdict.REFUSE


def test_host_memory_that_becomes_free_lets_a_job_be_suspended_in_the_next_second(movable: World) -> None:
    """No event tells it; only the round every ten seconds would find it."""
    movable.start("victim", 14 * GIB, is_estimated=False, basis=None)
    movable.start("c", CAPACITY, gpus=("GPU-1",), is_estimated=False, basis=None)
    urgent = movable.queue("urgent", 15 * GIB, uid=2, priority=50, preempts=True)
    movable.engine.rounds.host_memory = lambda: 13 * GIB
    found = movable.engine.admissions.step()
    assert movable.entry(urgent).job.state is JobState.WAITING
    assert not found.may_suspend_more(lambda: 13 * GIB)
    assert found.may_suspend_more(lambda: 14 * GIB)
    movable.engine.rounds.host_memory = lambda: 14 * GIB
    found = movable.engine.admissions.step()
    assert movable.entry(urgent).job.state is JobState.STARTING
    assert not found.may_suspend_more(lambda: 0)


def test_no_host_memory_is_read_where_no_job_preempts(movable: World) -> None:
    movable.start("a", 14 * GIB)
    movable.queue("b", 15 * GIB, uid=2)
    found = movable.engine.admissions.step()
    assert not found.may_suspend_more(lambda: pytest.fail("it was read"))


# How often.


class Wishing:
    """A channel whose job wishes, and withdraws, each time that it is read."""

    def __init__(self) -> None:
        self.number = 0

    def wishes(self) -> list[Wish]:
        self.number += 1
        return [Wish(GPU, self.number, 6 * GIB)] if self.number % 3 else []

    def answer(self, wishes: Sequence[Wish], verdict: Verdict) -> None:
        pass


def test_a_job_that_wishes_and_withdraws_all_the_time_causes_few_writes(world: World) -> None:
    """Each of its writes may cause a decision: 40 a second."""
    job = world.start("a", 4 * GIB)
    world.start("b", 15 * GIB)
    now = [0.0]
    growth = Growth(world.engine, world.entry(job).job, lambda: now[0])
    growth.channel = cast("GrowthChannel", Wishing())
    versions = set()
    for _ in range(40 * 100):
        now[0] += 1 / 40
        if growth.may_look():
            growth.look(world.entry(job), is_away=False, is_stopping=False)
            with world.engine.ledger.view() as view:
                versions.add(view.version())
    assert 10 <= len(versions) <= 60 + 100


# Attempts.


class Failing:
    """A ledger whose first transaction fails."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._has_failed = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._ledger, name)

    def decision(self) -> object:
        if not self._has_failed:
            self._has_failed = True
            raise LedgerError("the disk is full")
        return self._ledger.decision()


def test_the_log_has_one_line_of_an_attempt_that_was_queued_again_after_an_error_of_the_ledger(world: World) -> None:
    job = world.entry(world.start("a", 4 * GIB)).job
    places = world.engine.places(job.id)
    places.make()
    places.log.touch()
    run = observe_end(world.engine, NOTHING)
    again = NextTry(replace(job, exit_code=1, finished_at_seconds=1.0), job.request, run, "asked for 6 GiB")
    ledger = world.engine.ledger
    world.engine.ledger = cast("Ledger", Failing(ledger))
    with pytest.raises(LedgerError):
        queue_again(world.engine, again)
    queue_again(world.engine, again)
    world.engine.ledger = ledger
    assert world.entry(job.id).job.state is JobState.WAITING
    assert places.log.read_bytes().count(b"pgpu: asked for 6 GiB") == 1


def test_a_job_on_several_gpus_grows_on_all_of_them_or_none(world: World) -> None:
    job = world.start("a", 4 * GIB, gpus=("GPU-0", "GPU-1"))
    other = world.start("b", 15 * GIB, gpus=("GPU-1",))
    assert world.wish(job, 6 * GIB, "GPU-0") is Verdict.WAIT
    assert world.size(job) == 4 * GIB
    world.end(other)
    assert world.wish(job, 6 * GIB, "GPU-0") is Verdict.GRANT
    assert world.size(job) > 6 * GIB


def test_a_limit_that_cannot_be_written_leaves_the_ledger_as_it_was(world: World) -> None:
    job = world.start("a", 4 * GIB)
    world.engine.enforcer = Stuck(world.root)
    with pytest.raises(EnforcementError):
        world.wish(job, 6 * GIB)
    assert world.size(job) == 4 * GIB


def test_a_limit_that_an_agent_did_not_come_to_write_is_written_with_the_next_wish(world: World) -> None:
    job = world.start("a", 8 * GIB)
    (world.root / "slices" / job / "limit").write_text(str(4 * GIB))
    assert world.wish(job, 6 * GIB) is Verdict.GRANT
    assert world.size(job) == 8 * GIB


def test_a_slice_shrinks_each_time_that_its_job_has_not_grown_for_half_a_minute(world: World) -> None:
    job = world.start("a", 10 * GIB, basis="unknown")
    shrinking = Shrinking(world, job)
    assert shrinking.size(2 * GIB, 100.0) == 10 * GIB
    assert shrinking.size(2 * GIB, 129.0) == 10 * GIB
    small = shrinking.size(2 * GIB, 130.0)
    assert 2 * GIB < small < 2.4 * GIB
    assert shrinking.size(2 * GIB, 1000.0) == small
    assert world.wish(job, 8 * GIB) is Verdict.GRANT
    assert shrinking.size(3 * GIB, 1001.0) > 8 * GIB
    assert shrinking.size(3 * GIB, 1030.0) > 8 * GIB
    assert 3 * GIB < shrinking.size(3 * GIB, 1031.0) < 3.6 * GIB
    assert world.entry(job).job.request.basis == "unknown", "it goes on"


def test_a_slice_does_not_shrink_below_what_its_job_has_reserved_meanwhile(world: World) -> None:
    job = world.start("a", 8 * GIB)
    (world.root / "slices" / job / "used").write_text(str(6 * GIB))
    with pytest.raises(CapacityError, match="has grown"):
        resize(world.engine, job, Resize(5 * GIB), basis="history")
    assert world.size(job) == 8 * GIB
    assert resize(world.engine, job, Resize(6 * GIB), basis="history").request.memory_bytes == 6 * GIB


def test_what_sizes_itself_by_what_it_sees_keeps_its_slice(world: World) -> None:
    shrinking = Shrinking(world, world.start("a", 10 * GIB))
    assert shrinking.size(6 * GIB, 0.0, sizes_itself=True) == 10 * GIB
    assert shrinking.size(6 * GIB, 1000.0, sizes_itself=True) == 10 * GIB


def test_a_slice_of_an_older_pgpu_shrinks_by_its_rule_and_only_if_nothing_was_known(world: World) -> None:
    unknown = Shrinking(world, world.start("a", 10 * GIB, basis="unknown"), grows=False)
    known = Shrinking(world, world.start("b", 10 * GIB), grows=False)
    for now in (0.0, 59.0):
        assert (unknown.size(4 * GIB, now), known.size(4 * GIB, now)) == (10 * GIB, 10 * GIB)
    shrunk = unknown.size(4 * GIB, 60.0)
    assert 4.3 * GIB < shrunk < 4.5 * GIB
    assert known.size(4 * GIB, 60.0) == 10 * GIB
    assert unknown.size(int(4.2 * GIB), 500.0) == shrunk, "it does not grow back, so it stays"


def test_no_wish_of_any_number_makes_the_slices_of_a_gpu_exceed_it(world: World) -> None:
    """Random growth, shrinking, starts and ends, one job of which lies."""
    chance = random.Random(18)
    jobs: list[str] = [world.start("liar", 2 * GIB, uid=666)]
    for step in range(120):
        action = chance.randrange(4)
        if action == 0 and sum(world.size(job) for job in jobs) + 2 * GIB <= CAPACITY:
            jobs.append(world.start(f"j{step}", 2 * GIB, uid=chance.randrange(3), age=chance.uniform(0, 9000)))
        elif action == 1 and len(jobs) > 1:
            world.end(jobs.pop(chance.randrange(1, len(jobs))))
        elif action == 2:
            job = chance.choice(jobs)
            resize(world.engine, job, Resize(max(GIB, world.size(job) // 2)), basis="history")
        else:
            job = chance.choice(jobs)
            need = 1 << 52 if job == jobs[0] else world.size(job) + chance.randrange(1, 4 * GIB)
            verdict = world.wish(job, need)
            assert not (job == jobs[0] and verdict is Verdict.GRANT)
        assert sum(world.size(each) for each in jobs) <= CAPACITY
    assert world.size(jobs[0]) <= 2 * GIB
