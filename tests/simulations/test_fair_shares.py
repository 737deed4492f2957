"""Shares of users over time, in simulated time: equal by weight whatever they submit, and no wait without a bound."""

import math
import random
from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest
from benchmarks import fair_shares
from benchmarks.replaying import NO_HEADROOM, Arrival, cards, replay
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from pgpu.model import Request
from pgpu.scheduling import Admission, Candidate, GpuRoom, Held, OrderRules, Precedence, Quota, VirtualTime, admit
from pgpu.scheduling.admission import machine_of
from pgpu.scheduling.order import NO_PLAN, PlannedOrder, RoundOrder
from pgpu.scheduling.virtual_clocks import UserClocks, contenders_of
from pgpu.structs import replace
from pgpu.units import GIB

CARD_BYTES = 24 * GIB
MINUTE, HOUR = 60.0, 3600.0
RULES = OrderRules()
A, B = 1, 2


def jobs(
    uid: int, count: int, lasts: float, *, slots: int, came: float = 0.0, said: float | None = None
) -> list[Arrival]:
    request = Request(CARD_BYTES // slots)
    known = lasts if said is None else said
    return [Arrival(Candidate(f"{uid}-{i}", request, None, uid, came, known), lasts) for i in range(count)]


class Recorder:
    """The default policy, which records what each round leaves."""

    def __init__(self, quotas: Mapping[int, Quota]) -> None:
        self.quotas = quotas
        self.rounds: list[tuple[float, Admission]] = []

    def __call__(
        self,
        rooms: Sequence[GpuRoom],
        queue: Sequence[Candidate],
        now: float,
        held: Sequence[Held],
        before: Precedence,
    ) -> Admission:
        found = admit(rooms, queue, now, held=held, quotas=self.quotas, precedence=before)
        self.rounds.append((now, found))
        return found


def both_wait(admission: Admission) -> bool:
    return admission.time.contenders == {(A, 0): True, (B, 0): True}


def play(arrivals: Sequence[Arrival], gpus: int, weights: Mapping[int, float]) -> list[tuple[float, Admission]]:
    policy = Recorder({uid: Quota(weight=weight) for uid, weight in weights.items()})
    replay(cards(gpus, CARD_BYTES), arrivals, policy, headroom=NO_HEADROOM, quotas=policy.quotas)
    return policy.rounds


@examples(3, 8)
@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.floats(0, 600),
    st.sampled_from([MINUTE, 5 * MINUTE, 20 * MINUTE]),
    st.sampled_from([MINUTE, 7 * MINUTE, HOUR]),
    st.sampled_from([1.0, 2.0, 3.0]),
    st.sampled_from([None, 1.0]),
)
def test_clocks_of_users_that_always_wait_differ_by_one_job_at_most(
    slots: int, gpus: int, offset: float, lasts_a: float, lasts_b: float, weight: float, said: float | None
) -> None:
    """The bound of start-time fair queueing; with wrong predictions it holds for what was used in the end."""
    of_a = jobs(A, int(2 * HOUR / lasts_a) * slots * gpus, lasts_a, slots=slots, said=said)
    of_b = jobs(B, int(2 * HOUR / lasts_b) * slots * gpus, lasts_b, slots=slots, came=offset)
    rounds = play([*of_a, *of_b], gpus, {A: weight})
    rate = 1 / (slots * gpus)
    largest = max(lasts_a * rate / weight, lasts_b * rate)
    # Said to be over at once, jobs of all slots start before the first of them is charged.
    bound = largest * (1 if said is None else slots * gpus)
    compared = [admission for now, admission in rounds if now > offset and both_wait(admission)]
    assert compared
    for admission in compared:
        times = admission.time.clocks
        if said is None:
            times = {uid: turn for (uid, _), turn in admission.turns.items()}
        assert abs(times[A] - times[B]) <= bound * (1 + 1e-6) + offset / weight


@examples(2, 5)
@given(st.integers(0, 1000), st.integers(1, 5))
def test_cutting_jobs_into_pieces_changes_the_share_by_less_than_a_job(seed: int, pieces: int) -> None:
    dice = random.Random(seed)
    lasts = [dice.uniform(2, 20) * MINUTE for _ in range(40)]
    whole = [Arrival(Candidate(f"a{i}", Request(CARD_BYTES), None, A, 0.0, each), each) for i, each in enumerate(lasts)]
    cut = [
        Arrival(Candidate(f"a{i}-{part}", Request(CARD_BYTES), None, A, 0.0, each / pieces), each / pieces)
        for i, each in enumerate(lasts)
        for part in range(pieces)
    ]
    used = []
    for own in (whole, cut):
        rounds = play([*own, *jobs(B, 60, 10 * MINUTE, slots=1)], 1, {})
        used.append(next(found.time.clocks[A] for now, found in rounds if now >= 4 * HOUR))
    assert abs(used[0] - used[1]) <= 20 * MINUTE


@examples(2, 5)
@given(st.floats(0, 40), st.sampled_from([5 * MINUTE, 30 * MINUTE]), st.integers(1, 3))
def test_a_pause_of_any_length_earns_the_credit_and_keeps_nobody_waiting_for_longer(
    pause_hours: float, lasts: float, slots: int
) -> None:
    came = pause_hours * HOUR
    of_a = jobs(A, int((pause_hours + 8) * HOUR / lasts) * slots, lasts, slots=slots)
    arrivals = [*of_a, *jobs(B, int(8 * HOUR / lasts) * slots, lasts, slots=slots, came=came)]
    policy = Recorder({})
    fates = replay(cards(1, CARD_BYTES), arrivals, policy, headroom=NO_HEADROOM)
    starts = sorted(fates[each.candidate.job_id].started_seconds for each in of_a)
    later = [came, *(start for start in starts if start > came)]
    gaps = [after - before for before, after in pairwise(later)]
    assert max(gaps) <= RULES.credit_seconds + 2 * lasts
    leads = [found.turns[A, 0] - found.turns[B, 0] for now, found in policy.rounds if now >= came and both_wait(found)]
    assert max(leads) <= RULES.credit_seconds + lasts


@examples(2, 5)
@given(st.integers(2, 12), st.sampled_from([-50, -1, 1]), st.sampled_from([5 * MINUTE, 25 * MINUTE]), st.integers(1, 2))
def test_short_jobs_that_always_wait_at_another_priority_earn_no_more_than_a_pause(
    hours: int, priority: int, apart: float, slots: int
) -> None:
    """B keeps short jobs waiting while A has the machine, and then floods at A's priority."""
    lasts, came = 30 * MINUTE, hours * HOUR
    short = [
        Arrival(Candidate(f"short{number}", Request(CARD_BYTES, priority=priority), None, B, number * apart, 1.0), 1.0)
        for number in range(int(came / apart))
    ]
    of_a = jobs(A, (hours + 6) * 2 * slots, lasts, slots=slots)
    arrivals = [*of_a, *short, *jobs(B, 16 * slots, lasts, slots=slots, came=came + 1)]
    policy = Recorder({})
    fates = replay(cards(1, CARD_BYTES), arrivals, policy, headroom=NO_HEADROOM)
    starts = sorted(fates[each.candidate.job_id].started_seconds for each in of_a)
    later = [came, *(start for start in starts if start > came)]
    # The short jobs have a second each of the machine.
    assert max(after - before for before, after in pairwise(later)) <= RULES.credit_seconds + 2 * lasts + MINUTE


def test_users_that_wait_below_a_flood_of_a_higher_priority_keep_their_distances() -> None:
    """Neither the clock of the flood nor that of a third user of their priority takes a lead from the one that has had less."""
    before = VirtualTime(
        {A: 20 * HOUR, B: 3 * HOUR, 3: 1 * HOUR}, {50: 20 * HOUR, 0: HOUR}, {(A, 50): True, (B, 0): True, (3, 0): True}
    )
    queue = [Candidate(f"{uid}", Request(CARD_BYTES), None, uid, 0.0, 60.0) for uid in (B, 3, 4)]
    rooms = [GpuRoom(gpu, 0, 0, 0) for gpu in cards(1, CARD_BYTES)]
    found = admit(rooms, queue, 60.0, precedence=Precedence(None, before))
    assert [grant.job_id for grant in found.grants] == ["4"], (
        "a newcomer leads by the credit, and not by all that A has had"
    )
    assert found.turns[B, 0] - found.turns[3, 0] == 2 * HOUR


@pytest.mark.parametrize("slots", [1, 2])
def test_a_user_that_ran_while_nobody_waited_is_behind_by_the_credit_at_most(slots: int) -> None:
    """A starts a job whenever its last one has ended, for twelve hours; then B floods, and A has one more job."""
    lasts, came = 30 * MINUTE, 12 * HOUR
    of_a = [
        Arrival(Candidate(f"a{i}", Request(CARD_BYTES // slots), None, A, i * lasts, lasts), lasts) for i in range(24)
    ]
    late = Arrival(Candidate("late", Request(CARD_BYTES // slots), None, A, came + 1, lasts), lasts)
    arrivals = [*of_a, *jobs(B, 100, lasts, slots=slots, came=came), late]
    fates = replay(cards(1, CARD_BYTES), arrivals, Recorder({}), headroom=NO_HEADROOM)
    assert fates["a23"].started_seconds < came
    assert fates["late"].started_seconds - came <= RULES.credit_seconds + 2 * lasts


def order_of(queue: Sequence[Candidate], now: float) -> list[str]:
    rooms = [GpuRoom(gpu, 0, 0, 0) for gpu in cards(1, CARD_BYTES)]
    clocks = UserClocks(
        VirtualTime(), contenders_of(queue), (), machine_of(rooms), quotas={}, rules=RULES, now_seconds=now
    )
    return [each.job_id for each in RoundOrder(clocks, PlannedOrder(NO_PLAN, ()), RULES, now).of(queue)]


waiting_jobs = st.lists(
    st.tuples(st.integers(1, 24), st.floats(0, 7200), st.none() | st.floats(1, 90_000)), min_size=2, max_size=12
)


@given(waiting_jobs, st.floats(0, 100_000))
def test_two_jobs_of_one_user_never_change_their_order(
    parts: list[tuple[int, float, float | None]], later: float
) -> None:
    queue = [Candidate(f"{i}", Request(gib * GIB), None, A, came, lasts) for i, (gib, came, lasts) in enumerate(parts)]
    assert order_of(queue, 7200.0) == order_of(queue, 7200.0 + later)
    assert [each for each in order_of(queue, 7200.0) if each != "0"] == order_of(queue[1:], 7200.0)


@pytest.mark.parametrize(("seed", "load"), [(1, 0.8), (2, 0.8), (3, 0.7)])
def test_the_kth_large_job_waits_for_what_its_size_puts_before_it_and_the_large_ones_before(
    seed: int, load: float
) -> None:
    dice = random.Random(seed)
    small, large, run = 3 * GIB, CARD_BYTES, 10 * MINUTE
    arrivals: list[Arrival] = []
    came = 0.0
    while (came := came + dice.expovariate(load * 8 / (3 * MINUTE))) < 5 * HOUR:
        candidate = Candidate(f"s{len(arrivals)}", Request(small), None, A, came, 3 * MINUTE)
        arrivals.append(Arrival(candidate, 3 * MINUTE))
    arrivals += [Arrival(Candidate(f"large{i}", Request(large), None, A, HOUR, run), run) for i in range(4)]
    fates = replay(cards(1, CARD_BYTES), arrivals, Recorder({}), headroom=NO_HEADROOM)
    waits = sorted(fates[f"large{i}"].started_seconds - HOUR for i in range(4))
    ratio = large * run / (small * 3 * MINUTE)
    for number, wait in enumerate(waits):
        # Beside its size's part: what waited when it came, and the drain.
        assert wait <= RULES.ageing_seconds * math.log2(ratio) + 3 * 3 * MINUTE + number * run


@pytest.mark.parametrize("priority", [50, 1])
def test_overdue_jobs_below_a_flood_of_a_higher_priority_have_a_quarter_of_the_machine(priority: int) -> None:
    flood = [replace_priority(each, priority) for each in jobs(B, 200, 10 * MINUTE, slots=4)]
    low = jobs(A, 40, 10 * MINUTE, slots=4)
    rounds = play([*flood, *low], 1, {})
    # Six hours from the time at which they are overdue, while both wait.
    began = next(found for now, found in rounds if now > RULES.patience_seconds).time.clocks
    ended = next(found for now, found in rounds if now > RULES.patience_seconds + 3 * HOUR).time.clocks
    had = {uid: ended[uid] - began.get(uid, 0.0) for uid in (A, B)}
    assert 0.2 <= had[A] / (had[A] + had[B]) <= 0.3


def replace_priority(arrival: Arrival, priority: int) -> Arrival:
    request = replace(arrival.candidate.request, priority=priority)
    return Arrival(replace(arrival.candidate, request=request), arrival.duration_seconds)


def test_a_job_that_only_its_owners_quota_bars_earns_nothing() -> None:
    """B keeps one job that can never be granted for twenty hours, and then floods: it leads by the credit, as after a pause."""
    lasts, quotas = 10 * MINUTE, {B: Quota(memory_bytes=CARD_BYTES // 2)}
    barred = Candidate("barred", Request(CARD_BYTES), None, B, 0.0, lasts)
    time = VirtualTime()
    rooms = [GpuRoom(gpu, 0, 0, 0) for gpu in cards(1, CARD_BYTES)]
    own = Candidate("own", Request(CARD_BYTES), None, A, 0.0, lasts)
    waits = admit(
        rooms, [barred, own, replace(own, job_id="next")], 0.0, quotas=quotas, precedence=Precedence(None, time)
    )
    assert waits.time.contenders == {(A, 0): True, (B, 0): False}
    later = replace(waits.time, clocks={A: 20 * HOUR, B: 0.0})
    after = admit(
        rooms, [replace(barred, request=Request(CARD_BYTES // 2)), own], 20 * HOUR, precedence=Precedence(None, later)
    )
    assert after.time.clocks[B] == 20 * HOUR - RULES.credit_seconds
    assert after.time.floors[0] >= 20 * HOUR


@pytest.mark.parametrize(
    "name", [each for each in fair_shares.SCENARIOS if each.startswith(("e1 ", "e5 ", "e7 ", "e9 "))]
)
def test_the_bars_of_the_benchmark_hold(name: str) -> None:
    scenario = fair_shares.SCENARIOS[name]()
    quotas = {uid: Quota(weight=weight) for uid, weight in scenario.weights.items()}
    gpus = cards(scenario.gpus, CARD_BYTES)
    fates = replay(gpus, scenario.arrivals, Recorder(quotas), headroom=NO_HEADROOM, quotas=quotas)
    assert all(each.is_met for each in scenario.measure(scenario.arrivals, fates))
