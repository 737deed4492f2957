"""Replicas of a function come and go as its calls do: never too many, never one that works, never two that wait for each other."""

import itertools
import math
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from pgpu.functions.scaling.eviction_value import Frequency, ValueClock, replica_value
from pgpu.functions.scaling.replica_policy import (
    DrainReplica,
    FailVersion,
    FunctionView,
    MarkEvictable,
    ParkReplica,
    Phase,
    ReplicaView,
    StartReplica,
    StopReplica,
    VersionView,
    WakeReplica,
    excess_parked,
    plan_steps,
    wanted_replicas,
)
from pgpu.functions.scaling.traffic_split import COLD_STARTS, TrafficSplit, Window, fits_side_by_side, next_window
from pgpu.structs import replace

NOW = 1000.0

phases = st.sampled_from(Phase)
seconds = st.floats(0, NOW)
replicas = st.builds(
    ReplicaView,
    job_id=st.uuids().map(str),
    version=st.integers(1, 3),
    phase=phases,
    since_seconds=seconds,
    in_flight=st.integers(0, 5),
    held=st.integers(0, 5),
    idle_since_seconds=seconds,
    offered_value=st.none() | st.floats(0, 100),
)
versions = st.builds(
    VersionView,
    number=st.integers(1, 3),
    has_been_ready=st.booleans(),
    queued=st.integers(0, 50),
    minimum=st.integers(0, 2),
    maximum=st.integers(2, 6),
    target=st.integers(1, 4),
    brief_part=st.none() | st.floats(0, 1),
    idle_seconds=st.floats(0, 400),
    last_call_seconds=st.none() | seconds,
    failures=st.integers(0, 6),
    retry_at_seconds=st.floats(0, 2 * NOW),
    can_park=st.booleans(),
    value=st.floats(0, 100),
)
views = st.builds(
    FunctionView,
    now_seconds=st.just(NOW),
    versions=st.lists(versions, max_size=2, unique_by=lambda each: each.number).map(tuple),
    replicas=st.lists(replicas, max_size=8).map(tuple),
    has_fallback=st.booleans(),
)


@given(views)
def test_a_step_never_ends_what_works_and_never_begins_too_many(view: FunctionView) -> None:
    steps = plan_steps(view)
    by_id = {each.job_id: each for each in view.replicas}
    for step in steps:
        if isinstance(step, StopReplica):
            assert by_id[step.job_id].phase in {Phase.DRAINING, Phase.PARKED}
            assert not by_id[step.job_id].in_flight
        if isinstance(step, WakeReplica):
            assert by_id[step.job_id].phase is Phase.PARKED
        if isinstance(step, MarkEvictable | ParkReplica):
            assert by_id[step.job_id].phase is Phase.HOT
            assert not by_id[step.job_id].in_flight
    for version in view.versions:
        own = [each for each in view.replicas if each.version == version.number]
        there = [each for each in own if each.phase not in {Phase.DRAINING, Phase.PARKED}]
        woken = {step.job_id for step in steps if isinstance(step, WakeReplica)} & {each.job_id for each in own}
        starts = sum(step == StartReplica(version.number) for step in steps) + len(woken)
        drained = {step.job_id for step in steps if isinstance(step, DrainReplica | ParkReplica)} & {
            each.job_id for each in there
        }
        offered = {step.job_id for step in steps if isinstance(step, MarkEvictable)} & {each.job_id for each in there}
        assert not starts or len(there) + starts <= version.maximum
        assert not drained or len(there) - len(drained) >= version.minimum
        assert not (drained & offered)
        assert not any(by_id[job_id].in_flight for job_id in drained)
        hot = sum(each.phase is Phase.HOT for each in there)
        assert not offered or hot - len(offered) >= version.minimum
        assert not (starts and drained)


@given(views)
def test_the_same_view_gives_the_same_steps_and_none_twice(view: FunctionView) -> None:
    steps = plan_steps(view)
    assert steps == plan_steps(view)
    named = [step.job_id for step in steps if not isinstance(step, StartReplica | FailVersion)]
    assert len(named) == len(set(named))


loads = st.tuples(
    st.integers(0, 100), st.integers(0, 1000), st.integers(1, 16), st.none() | st.floats(0, 1), st.integers(0, 5)
)  # calls that run long, others, target, part of max_wait, floor


@given(loads, st.integers(1, 50))
def test_replicas_are_between_floor_and_maximum_and_grow_with_the_load(
    load: tuple[int, int, int, float | None, int], maximum: int
) -> None:
    held, others, target, part, floor = load

    def wanted(held: int, others: int, part: float | None) -> int:
        return wanted_replicas(held, others, target, part, floor=floor, maximum=maximum)

    found = wanted(held, others, part)
    assert min(floor, maximum) <= found <= maximum
    assert wanted(held, others + 1, part) >= found
    assert not held + others or found >= 1
    if part is not None:
        assert wanted(held + 1, others, part) >= found
        assert wanted(held, others, 1.0) >= found, "calls that take longer need no fewer"
    assert held + others == 0 or found <= max(floor, math.ceil((held + others) / target)), "never more than calls"


@given(st.integers(1, 20), st.integers(1, 20), st.floats(0, 1))
def test_what_waits_beside_calls_that_run_long_finds_a_place_of_its_own(held: int, others: int, part: float) -> None:
    assert wanted_replicas(held, others, 1, part, floor=0, maximum=100) > held - (part == 0)


def test_thirty_calls_of_a_millisecond_do_not_hide_one_of_twelve_seconds() -> None:
    part = 0.01  # of max_wait, learned from the thirty
    assert wanted_replicas(0, 12, 1, part, floor=0, maximum=2) == 1
    assert wanted_replicas(1, 12, 1, part, floor=0, maximum=2) == 2


def test_a_cold_function_starts_one_and_a_slow_one_as_many_as_it_is_called() -> None:
    assert wanted_replicas(0, 50, 1, None, floor=0, maximum=8) == 1
    assert wanted_replicas(1, 15, 1, None, floor=0, maximum=8) == 8
    assert wanted_replicas(0, 16, 1, 0.001, floor=0, maximum=8) == 1
    assert wanted_replicas(0, 16, 1, 1.0, floor=0, maximum=8) == 8
    assert wanted_replicas(0, 16, 8, 1.0, floor=0, maximum=8) == 2


@given(st.dictionaries(st.integers(1, 9), st.integers(1, 100), min_size=1, max_size=4), st.integers(1, 300))
def test_each_version_gets_its_part_of_any_run_of_requests(percents: dict[int, int], count: int) -> None:
    split, whole = TrafficSplit(percents), sum(percents.values())
    had = [split.next() for _ in range(count)]
    for version, percent in percents.items():
        assert abs(had.count(version) - percent * count / whole) < len(percents)


@given(st.dictionaries(st.integers(1, 9), st.integers(1, 97), min_size=2, max_size=3), st.floats(0, 30))
def test_each_version_gets_its_part_of_the_time_in_a_window_worth_its_start(
    percents: dict[int, int], cold: float
) -> None:
    period = max(10.0, COLD_STARTS * cold) / min(percents.values()) * sum(percents.values())
    window, seen = None, []
    for step in range(2000):
        window = next_window(percents, window, period * step / 1000, cold, is_kept=False)
        seen.append(window.version)
    for version, percent in percents.items():
        assert abs(seen.count(version) / 2000 - percent / sum(percents.values())) < 0.01
    changes = sum(before != after for before, after in itertools.pairwise(seen))
    assert changes <= 2 * len(percents), "one window for each in a period"


def test_a_window_ends_after_its_own_time_whatever_starts_took_before_and_never_during_one() -> None:
    percents = {1: 90, 2: 10}
    window = next_window(percents, None, NOW, 1.0, is_kept=True)
    assert window == Window(2, NOW), "the newcomer's window is first"
    for cold in (1.0, 30.0, 3.0, 12.0, 60.0):
        seconds = max(10.0, COLD_STARTS * cold) * percents[window.version] / 10
        assert next_window(percents, window, window.since_seconds + 0.99 * seconds, cold, is_kept=False) is window
        after = window.since_seconds + 1.01 * seconds
        assert next_window(percents, window, after, cold, is_kept=True) is window
        window = next_window(percents, window, after, cold, is_kept=False)
    assert window.version == 1


def test_versions_take_turns_where_one_waits_for_memory_beside_the_other() -> None:
    old, new = ReplicaView("a", 1, Phase.HOT, 0.0), ReplicaView("b", 2, Phase.WAITING, NOW - 2)
    assert fits_side_by_side([1, 2], [old, new], NOW) is False
    assert fits_side_by_side([1, 2], [old, replace(new, since_seconds=NOW - 0.5)], NOW) is None
    assert fits_side_by_side([1, 2], [old, replace(new, phase=Phase.STARTING)], NOW) is None
    assert fits_side_by_side([1, 2], [old, replace(new, phase=Phase.HOT)], NOW) is True
    assert fits_side_by_side([1, 2], [new], NOW) is None


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 2**40)), max_size=20))
def test_what_goes_never_lowers_the_worth_of_what_stays(taken: list[tuple[float, int]]) -> None:
    clock = ValueClock()
    for each, size_bytes in taken:
        before = clock.worth
        clock.note_eviction(each, size_bytes)
        assert clock.worth >= before
    assert replica_value(clock.worth, 2, 1.0, 100) >= replica_value(clock.worth, 1, 1.0, 100) >= clock.worth * 100


def test_what_was_called_often_long_ago_goes_before_what_is_called_now() -> None:
    clock, once_popular, now_called = ValueClock(), replica_value(0.0, 8, 1.0, 1), 1
    for _ in range(20):
        clock.note_eviction(replica_value(clock.worth, now_called, 1.0, 1), 1)
    assert replica_value(clock.worth, now_called, 1.0, 1) > once_popular


def test_a_count_of_calls_fades() -> None:
    frequency = Frequency()
    frequency.note(0)
    frequency.note(0)
    assert frequency.at(0) == 2
    assert abs(frequency.at(600) - 1) < 1e-9


@dataclass
class Machine:
    """A machine with room for so many replicas, and one function on it."""

    room: int
    versions: tuple[VersionView, ...]
    is_broken: frozenset[int] = frozenset()
    has_fallback: bool = True
    now: float = 0.0
    replicas: list[ReplicaView] = field(default_factory=list)
    ids: int = 0
    given_up: list[int] = field(default_factory=list)

    def turn(self, seconds: float = 0.5) -> None:
        """Do what is decided, and let jobs and replicas come on."""
        for step in plan_steps(
            FunctionView(self.now, self.versions, tuple(self.replicas), has_fallback=self.has_fallback)
        ):
            if isinstance(step, StartReplica):
                self.ids += 1
                self.replicas.append(ReplicaView(str(self.ids), step.version, Phase.WAITING, self.now))
            elif isinstance(step, DrainReplica):
                self._become(step.job_id, Phase.DRAINING)
            elif isinstance(step, StopReplica):
                self.replicas = [each for each in self.replicas if each.job_id != step.job_id]
            elif isinstance(step, FailVersion):
                self.given_up.append(step.version)
                self.versions = (VersionView(1, has_been_ready=True, minimum=1),)
        self.now += seconds
        for each in list(self.replicas):
            self._come_on(each)

    def _become(self, job_id: str, phase: Phase) -> None:
        self.replicas = [
            replace(each, phase=phase, since_seconds=self.now, idle_since_seconds=self.now)
            if each.job_id == job_id
            else each
            for each in self.replicas
        ]

    def _come_on(self, each: ReplicaView) -> None:
        held = sum(other.phase is not Phase.WAITING for other in self.replicas)
        if each.phase is Phase.WAITING and held < self.room:
            self._become(each.job_id, Phase.STARTING)
        elif each.phase is Phase.STARTING and each.version not in self.is_broken:
            self._become(each.job_id, Phase.HOT)
            self.versions = tuple(
                replace(version, has_been_ready=version.has_been_ready or version.number == each.version)
                for version in self.versions
            )

    def hot(self) -> list[int]:
        return [each.version for each in self.replicas if each.phase is Phase.HOT]


@settings(max_examples=50)
@given(room=st.integers(1, 4), old=st.integers(1, 4), minimum=st.integers(0, 1), busy=st.booleans())
def test_a_new_version_takes_over_however_full_the_gpu_is(room: int, old: int, minimum: int, busy: bool) -> None:
    machine = Machine(room, (VersionView(2, has_been_ready=False, minimum=minimum, idle_seconds=1e9),))
    machine.replicas = [
        ReplicaView(f"old{index}", 1, Phase.HOT, 0.0, in_flight=int(busy)) for index in range(min(room, old))
    ]
    for turn in range(20):
        if turn == 5:  # their calls have ended
            machine.replicas = [replace(each, in_flight=0) for each in machine.replicas]
        machine.turn()
    assert machine.hot() == [2]


def test_old_replicas_serve_until_the_new_one_is_hot_where_both_fit() -> None:
    machine = Machine(2, (VersionView(2, has_been_ready=False),))
    machine.replicas = [ReplicaView("old", 1, Phase.HOT, 0.0)]
    while 2 not in machine.hot():
        assert 1 in machine.hot()
        machine.turn()
    machine.turn()
    machine.turn()
    assert machine.hot() == [2]


@given(st.integers(1, 3))
def test_a_version_that_does_not_come_up_is_given_up_and_the_old_one_serves(room: int) -> None:
    machine = Machine(
        room, (VersionView(2, has_been_ready=False, startup_timeout_seconds=3.0),), is_broken=frozenset({2})
    )
    machine.replicas = [ReplicaView("old", 1, Phase.HOT, 0.0)]
    for _ in range(30):
        machine.turn()
    assert machine.given_up == [2]
    assert machine.hot() == [1]


def test_an_idle_function_goes_to_zero_and_a_pinned_one_stays() -> None:
    for minimum in (0, 1):
        version = VersionView(1, has_been_ready=True, minimum=minimum, maximum=3, idle_seconds=10)
        machine = Machine(3, (version,))
        machine.replicas = [ReplicaView(str(index), 1, Phase.HOT, 0.0) for index in range(3)]
        for _ in range(19):
            machine.turn()
        assert len(machine.hot()) == 3
        for _ in range(5):
            machine.turn()
        assert len(machine.hot()) == minimum


def test_an_idle_replica_is_offered_after_a_second_and_sooner_where_somebody_waits_for_memory() -> None:
    idle = ReplicaView("it", 1, Phase.HOT, 0.0, idle_since_seconds=NOW - 0.5)
    view = FunctionView(NOW, (VersionView(1, has_been_ready=True, value=3.0),), (idle,))
    assert plan_steps(view) == ()
    assert plan_steps(replace(view, is_memory_short=True)) == (MarkEvictable("it", 3.0),)


def test_a_replica_that_waits_for_memory_leaves_the_queue_once_nobody_wants_it_any_more() -> None:
    waiting = ReplicaView("it", 1, Phase.WAITING, 0.0)
    version = VersionView(1, has_been_ready=True, last_call_seconds=NOW - 11)
    assert plan_steps(FunctionView(NOW, (version,), (waiting,))) == (DrainReplica("it"),)
    assert plan_steps(FunctionView(NOW, (replace(version, last_call_seconds=NOW - 9),), (waiting,))) == ()
    assert plan_steps(FunctionView(NOW, (replace(version, queued=1),), (waiting,))) == ()
    assert plan_steps(FunctionView(NOW, (replace(version, minimum=1),), (waiting,))) == ()


def test_who_is_parked_is_woken_before_another_one_starts_and_ends_after_ten_idle_times() -> None:
    version = VersionView(1, has_been_ready=True, queued=1, maximum=3, brief_part=1.0, can_park=True)
    parked = tuple(
        ReplicaView(name, 1, Phase.PARKED, NOW - 10, idle_since_seconds=at) for name, at in (("a", 1), ("b", 2))
    )
    assert plan_steps(FunctionView(NOW, (version,), parked)) == (WakeReplica("b"),)
    assert plan_steps(FunctionView(NOW, (replace(version, queued=3),), parked)) == (
        WakeReplica("b"),
        WakeReplica("a"),
        StartReplica(1),
    )
    late = tuple(replace(each, retry_at_seconds=NOW + 0.1) for each in parked)
    assert plan_steps(FunctionView(NOW, (version,), late)) == ()
    idle = replace(version, queued=0, idle_seconds=0.9)
    assert plan_steps(FunctionView(NOW, (idle,), parked)) == (StopReplica("a"), StopReplica("b"))
    assert plan_steps(FunctionView(NOW, (), parked)) == (StopReplica("a"), StopReplica("b"))


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 100)), st.booleans(), st.integers(0, 5))
def test_those_worth_least_end_where_too_many_are_parked(values: dict[str, float], is_short: bool, most: int) -> None:
    gone = excess_parked(values, is_host_short=is_short, most=most)
    assert len(values) - len(gone) <= most
    assert len(gone) == max(len(values) - most, int(is_short and bool(values)), 0)
    stay = values.keys() - set(gone)
    assert not gone or not stay or max(values[each] for each in gone) <= min(values[each] for each in stay)
