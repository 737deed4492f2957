"""Turns on a GPU that cannot hold what its jobs work on: free while all fits, one set that fits at a time while not, everybody
in the end, and the same answer for the same question."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgpu.scheduling.gpu_turns import NO_TURNS, Contender, TurnRules, TurnState, advance, quantum_seconds
from pgpu.structs import replace

GB = 10**9
RULES = TurnRules(bytes_per_second=10 * GB, overhead=0.05)
STEP_SECONDS = 0.1


@dataclass
class Job:
    """A pretended job: works all the time, or `burst_seconds` of work at a time with pauses between."""

    name: str
    set_bytes: int
    priority: int = 0
    burst_seconds: float | None = None
    pause_seconds: float = 0.0
    begins_at_seconds: float = 0.0
    ends_at_seconds: float = 1e9
    drain_steps: int = 0
    """How long its kernels go on after it was held."""

    work_seconds: float = 0.0
    wakes_at_seconds: float = 0.0
    wanted_at_seconds: float | None = None
    in_flight_steps: int = 0

    def wants(self, now_seconds: float) -> bool:
        return now_seconds >= max(self.begins_at_seconds, self.wakes_at_seconds)

    def live(self, now_seconds: float, *, may_run: bool) -> None:
        if not self.wants(now_seconds):
            self.in_flight_steps = 0
            return
        self.wanted_at_seconds = now_seconds
        if not may_run:
            self.in_flight_steps = max(0, self.in_flight_steps - 1)
            return
        self.in_flight_steps = self.drain_steps
        self.work_seconds += STEP_SECONDS
        if self.burst_seconds is not None and self.work_seconds % self.burst_seconds < STEP_SECONDS:
            self.wakes_at_seconds = now_seconds + self.pause_seconds
            self.in_flight_steps = 0

    def seen(self, now_seconds: float) -> Contender:
        return Contender(
            self.name,
            self.set_bytes,
            self.wants(now_seconds),
            self.wanted_at_seconds,
            is_quiet=self.in_flight_steps == 0,
            priority=self.priority,
        )


@dataclass
class World:
    jobs: list[Job]
    room_bytes: int
    rules: TurnRules = RULES
    now_seconds: float = 0.0
    turns: TurnState = NO_TURNS
    seen: list[TurnState] = field(default_factory=list)
    longest_wait_seconds: dict[str, float] = field(default_factory=dict)
    ran_at_seconds: dict[str, float] = field(default_factory=dict)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_SECONDS)):
            self.step()

    def step(self) -> None:
        here = [job for job in self.jobs if job.begins_at_seconds <= self.now_seconds < job.ends_at_seconds]
        contenders = [job.seen(self.now_seconds) for job in here]
        before = self.turns
        self.turns = advance(before, contenders, self.room_bytes, self.now_seconds, self.rules)
        assert self.turns == advance(before, contenders, self.room_bytes, self.now_seconds, self.rules)
        self.check(contenders)
        for job in here:
            may_run = self.turns.may_run(job.name)
            if may_run or not job.wants(self.now_seconds):
                self.ran_at_seconds[job.name] = self.now_seconds
            waited = self.now_seconds - self.ran_at_seconds.get(job.name, job.begins_at_seconds)
            self.longest_wait_seconds[job.name] = max(waited, self.longest_wait_seconds.get(job.name, 0.0))
            job.live(self.now_seconds, may_run=may_run)
        self.seen.append(self.turns)
        self.now_seconds += STEP_SECONDS

    def check(self, contenders: list[Contender]) -> None:
        sizes = {each.job_id: each.set_bytes for each in contenders}
        active = [each.job_id for each in contenders if each.is_active(self.now_seconds, self.rules)]
        if sum(sizes[each] for each in active) <= self.room_bytes:
            assert not self.turns.is_on
            return
        assert self.turns.is_on
        holders = self.turns.holders
        assert len(holders) == 1 or sum(sizes[each] for each in holders) <= self.room_bytes
        stuck = [each.job_id for each in contenders if not each.is_quiet and each.job_id not in holders]
        if holders:
            # Whoever still runs beside them was waited for as long as may be.
            assert not set(stuck) & set(self.turns.leaving)

    def turns_taken(self) -> list[tuple[str, ...]]:
        """Each turn's holders, in order; of one that others joined the last."""
        taken: list[tuple[float, tuple[str, ...]]] = []
        for turns in self.seen:
            if turns.is_on and turns.holders:
                if taken and taken[-1][0] == turns.since_seconds:
                    taken.pop()
                taken.append((turns.since_seconds, turns.holders))
        return [holders for _, holders in taken]


def test_all_run_freely_while_everything_fits() -> None:
    world = World([Job("a", 4 * GB), Job("b", 5 * GB)], room_bytes=9 * GB)
    world.run(30)
    assert all(turns == NO_TURNS for turns in world.seen)
    assert [round(job.work_seconds) for job in world.jobs] == [30, 30]


def test_two_that_do_not_fit_together_alternate() -> None:
    world = World([Job("a", 7 * GB), Job("b", 7 * GB)], room_bytes=9 * GB)
    world.run(150)
    assert world.turns_taken()[:4] == [("a",), ("b",), ("a",), ("b",)]
    assert world.jobs[0].work_seconds == pytest.approx(world.jobs[1].work_seconds, abs=30)
    assert sum(job.work_seconds for job in world.jobs) > 0.99 * 150


def test_a_turn_lasts_as_long_as_its_swap_is_worth() -> None:
    world = World([Job("a", 7 * GB), Job("b", 7 * GB)], room_bytes=9 * GB)
    world.run(1)
    length_seconds = world.turns.until_seconds - world.turns.since_seconds
    assert length_seconds == pytest.approx(2 * 7 * GB / (10 * GB) / 0.05)


@pytest.mark.parametrize(("moved_bytes", "seconds"), [(0, 2.0), (GB // 10, 2.0), (10 * GB, 20.0), (900 * GB, 120.0)])
def test_a_quantum_is_never_tiny_and_never_endless(moved_bytes: int, seconds: float) -> None:
    assert quantum_seconds(moved_bytes, RULES) == pytest.approx(seconds)


def test_jobs_that_fit_together_share_a_turn() -> None:
    world = World([Job("a", 4 * GB), Job("b", 8 * GB), Job("c", 4 * GB)], room_bytes=9 * GB)
    world.run(120)
    assert {frozenset(each) for each in world.turns_taken()} == {frozenset("ac"), frozenset("b")}


def test_who_is_idle_gives_its_turn_back_early() -> None:
    brief = Job("b", 7 * GB, burst_seconds=1.0, pause_seconds=60.0)
    world = World([brief, Job("a", 7 * GB)], room_bytes=9 * GB)
    world.run(8)
    assert world.turns_taken()[:2] == [("b",), ("a",)]
    assert world.jobs[1].work_seconds > 4


def test_nobody_waits_for_a_job_that_does_not_work() -> None:
    world = World([Job("a", 7 * GB), Job("b", 7 * GB, burst_seconds=0.5, pause_seconds=1e6)], room_bytes=9 * GB)
    world.run(60)
    assert world.turns == NO_TURNS


def test_a_job_that_is_soon_done_goes_first_once_in_a_round() -> None:
    hasty = Job("i", 5 * GB, burst_seconds=0.5, pause_seconds=3.0)
    world = World([Job("a", 8 * GB), Job("b", 8 * GB), hasty], room_bytes=9 * GB, rules=replace(RULES, overhead=0.02))
    world.run(600)
    others = [holders[0] for holders in world.turns_taken()]
    between = [len(part.replace("i", "")) for part in "".join(others).split("i")][1:-1]
    assert sum(between) / len(between) < 2.1
    assert world.jobs[0].work_seconds + world.jobs[1].work_seconds > 0.9 * 600


def test_a_higher_priority_has_more_of_the_time() -> None:
    world = World([Job("a", 7 * GB, priority=50), Job("b", 7 * GB)], room_bytes=9 * GB)
    world.run(900)
    assert world.jobs[0].work_seconds / world.jobs[1].work_seconds == pytest.approx(2, rel=0.15)


def test_a_kernel_that_never_ends_is_waited_for_only_so_long() -> None:
    stuck = Job("a", 7 * GB, drain_steps=10**9)
    world = World([stuck, Job("b", 7 * GB)], room_bytes=9 * GB)
    world.run(28 + RULES.drain_seconds + 5)
    assert ("b",) in world.turns_taken()


def test_the_next_waits_until_the_last_is_quiet() -> None:
    world = World([Job("a", 7 * GB, drain_steps=10), Job("b", 7 * GB)], room_bytes=9 * GB)
    world.run(60)
    draining = [turns for turns in world.seen if turns.leaving]
    assert draining
    assert all(turns.holders == () for turns in draining)
    assert sum(not turns.holders for turns in world.seen if turns.is_on) * STEP_SECONDS < 3


def test_a_set_larger_than_the_room_has_its_turn_alone() -> None:
    world = World([Job("a", 12 * GB), Job("b", 2 * GB)], room_bytes=9 * GB)
    world.run(120)
    assert set(world.turns_taken()) == {("a",), ("b",)}


def test_who_grows_past_the_room_during_a_turn_goes_on_alone() -> None:
    growing = Job("a", 3 * GB)
    world = World([growing, Job("c", 3 * GB), Job("b", 8 * GB)], room_bytes=9 * GB)
    world.run(3)
    assert set(world.turns.holders) == {"a", "c"}
    growing.set_bytes = 8 * GB
    world.run(1)
    assert set(world.turns.holders) == {"a"}


def test_the_others_go_on_when_a_holder_ends() -> None:
    world = World([Job("a", 7 * GB, ends_at_seconds=3.0), Job("b", 7 * GB), Job("c", 7 * GB)], room_bytes=9 * GB)
    world.run(4)
    assert world.turns.holders == ("b",)
    world.jobs.pop()
    world.run(1)
    assert world.turns == NO_TURNS


JOBS = st.lists(
    st.builds(
        Job,
        name=st.uuids().map(str),
        set_bytes=st.integers(0, 12 * GB),
        priority=st.sampled_from((-50, 0, 50)),
        burst_seconds=st.none() | st.floats(0.1, 5),
        pause_seconds=st.floats(0, 20),
        begins_at_seconds=st.floats(0, 20),
        drain_steps=st.integers(0, 20),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda job: job.name,
)


@settings(max_examples=30, deadline=None)
@given(jobs=JOBS)
def test_whatever_jobs_do_sets_that_do_not_fit_never_have_a_turn_together(jobs: list[Job]) -> None:
    World(jobs, room_bytes=9 * GB).run(60)


@settings(max_examples=8, deadline=None)
@given(jobs=JOBS)
def test_nobody_who_has_work_waits_for_ever(jobs: list[Job]) -> None:
    rules = replace(RULES, bytes_per_second=100 * GB, most_seconds=4.0, drain_seconds=1.0)
    world = World(jobs, room_bytes=9 * GB, rules=rules)
    world.run(200)
    # Weights differ by at most 4, so each other job has at most five turns between two of one's own, and one cut short.
    most_turn_seconds = rules.most_seconds + rules.drain_seconds + rules.least_seconds
    assert max(world.longest_wait_seconds.values()) <= 5 * len(jobs) * most_turn_seconds
