"""Who goes first: priorities, fairness between users, ageing, and the promise to the first in the queue."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgpu.model import Gpu, Request, Slice
from pgpu.scheduling import Admission, Candidate, Cause, GpuRoom, Held, OrderRules, Quota, admit
from pgpu.structs import replace
from pgpu.units import GIB

NOW = 10_000.0


def room(index: int = 0, gib: int = 24, granted_gib: int = 0, granted_compute: float = 0.0) -> GpuRoom:
    gpu = Gpu(f"GPU-{index}", "Test", index, gib * GIB, "1.0", is_simulated=False)
    return GpuRoom(gpu, 0, 0, granted_gib * GIB, granted_compute)


def job(
    name: str, gib: float, *, uid: int = 0, priority: int = 0, waited: float = 0.0, lasts: float | None = None
) -> Candidate:
    return Candidate(name, Request(int(gib * GIB), priority=priority), None, uid, NOW - waited, lasts)


def holds(name: str, gib: int, *, uid: int = 0, ran: float = 0.0, lasts: float | None = None, gpu: int = 0) -> Held:
    return Held(name, uid, (Slice(f"GPU-{gpu}", gib * GIB),), NOW - ran, 0.0, lasts)


def started(admission: Admission) -> list[str]:
    return [grant.job_id for grant in admission.grants]


def test_the_shorter_and_the_smaller_go_first() -> None:
    waiting = [job("long", 20, lasts=3600), job("large", 20, lasts=60), job("small", 16, lasts=60)]
    assert started(admit([room()], waiting, NOW)) == ["small"]
    assert started(admit([room()], waiting[:2], NOW)) == ["large"]


def test_a_wait_makes_up_for_size() -> None:
    waiting = [job("large", 20, waited=1500), job("small", 12)]
    assert started(admit([room()], waiting, NOW)) == ["large"]


def test_a_higher_priority_goes_first_whatever_its_size() -> None:
    waiting = [job("small", 10, lasts=1), job("urgent", 20, priority=10, lasts=9000)]
    assert started(admit([room()], waiting, NOW)) == ["urgent"]


def test_who_waited_longer_than_anybody_should_goes_before_every_priority() -> None:
    waiting = [job("starving", 20, waited=1801, lasts=9000), job("urgent", 20, priority=100, lasts=1)]
    assert started(admit([room()], waiting, NOW)) == ["starving"]


@given(st.lists(st.integers(0, 2), min_size=30, max_size=60))
def test_users_with_enough_to_do_hold_equal_shares(uids: list[int]) -> None:
    """Whoever submitted more or earlier: 24 slices are dealt out as evenly as the jobs allow."""
    waiting = [job(f"job{number}", 1, uid=uid, waited=60 - number) for number, uid in enumerate(uids)]
    owners = {each.job_id: each.owner_uid for each in waiting}
    given_out = Counter(owners[name] for name in started(admit([room()], waiting, NOW)))
    asked = Counter(uids)
    hungry = [given_out[uid] for uid in asked if given_out[uid] < asked[uid]]
    assert sum(given_out.values()) == 24
    assert all(given_out[uid] <= least + 1 for least in hungry for uid in asked)


def test_what_a_user_holds_already_counts() -> None:
    waiting = [job("rich", 8, uid=1, waited=100), job("poor", 8, uid=2)]
    held = [holds("running", 12, uid=1, lasts=60)]
    assert started(admit([room(granted_gib=12)], waiting, NOW, held=held)) == ["poor"]


def test_a_user_of_twice_the_weight_gets_twice_as_much() -> None:
    waiting = [job(f"{uid}-{number}", 1, uid=uid) for uid in (1, 2) for number in range(24)]
    admission = admit([room()], waiting, NOW, quotas={2: Quota(weight=2.0)})
    assert Counter(name[0] for name in started(admission)) == {"1": 8, "2": 16}


def test_compute_counts_as_memory_does() -> None:
    waiting = [
        replace(job("hungry", 1, uid=1), request=Request(GIB, compute_share=0.5)),
        replace(job("more", 1, uid=1), request=Request(GIB, compute_share=0.5)),
        job("other", 8, uid=2, waited=1),
    ]
    assert started(admit([room()], waiting, NOW)) == ["hungry", "other", "more"]


def test_compute_is_never_granted_past_the_whole_gpu() -> None:
    waiting = [replace(job("half", 1), request=Request(GIB, compute_share=0.5))]
    assert started(admit([room(granted_compute=0.5)], waiting, NOW)) == ["half"]
    assert started(admit([room(granted_compute=0.51)], waiting, NOW)) == []


@pytest.mark.parametrize(
    ("quota", "reason"),
    [
        (Quota(memory_bytes=8 * GIB), "waits for its owner's other jobs: they hold 6 GiB of a quota of 8 GiB"),
        (Quota(jobs=1), "waits for its owner's other jobs: 1 run, and the quota is 1"),
    ],
)
def test_a_quota_holds_back_its_owner_and_nobody_else(quota: Quota, reason: str) -> None:
    waiting = [job("mine", 4, uid=1, waited=900), job("theirs", 4, uid=2)]
    admission = admit([room(granted_gib=6)], waiting, NOW, held=[holds("running", 6, uid=1)], quotas={1: quota})
    assert started(admission) == ["theirs"]
    assert [(wait.job_id, wait.cause, wait.reason) for wait in admission.waits] == [("mine", Cause.QUOTA, reason)]


def test_a_short_job_goes_before_the_first_that_does_not_fit_yet() -> None:
    held = [holds("running", 16, lasts=600)]
    waiting = [job("first", 20, priority=1), job("short", 6, lasts=500)]
    assert started(admit([room(granted_gib=16)], waiting, NOW, held=held)) == ["short"]


@pytest.mark.parametrize("lasts", [700, None])
def test_a_job_that_would_delay_the_first_waits_its_turn(lasts: float | None) -> None:
    held = [holds("running", 16, lasts=600)]
    waiting = [job("first", 20, priority=1), job("long", 6, lasts=lasts)]
    waits = admit([room(granted_gib=16)], waiting, NOW, held=held).waits
    assert [(wait.job_id, wait.cause) for wait in waits] == [("first", Cause.MEMORY), ("long", Cause.TURN)]
    assert waits[1].reason == "waits its turn: the memory that is free is kept for job first; 1 job ahead"


def test_who_waits_for_another_users_job_is_not_told_which() -> None:
    held = [holds("running", 16, lasts=600)]
    waiting = [job("first", 20, priority=1, uid=1), job("long", 6, lasts=700, uid=2)]
    waits = admit([room(granted_gib=16)], waiting, NOW, held=held).waits
    assert waits[1].reason == "waits its turn: the memory that is free is kept for another user's job; 1 job ahead"


def test_what_the_first_leaves_free_is_given_to_jobs_of_any_length_once() -> None:
    held = [holds("running", 16, lasts=600)]
    waiting = [job("first", 20, priority=1), job("one", 3), job("two", 3)]
    assert started(admit([room(granted_gib=16)], waiting, NOW, held=held)) == ["one"]


def test_other_gpus_than_those_kept_are_free_to_all() -> None:
    held = [holds("running", 16, lasts=600), holds("other", 16, gpu=1, lasts=900)]
    waiting = [job("first", 20, priority=1), job("long", 6)]
    admission = admit([room(granted_gib=16), room(1, granted_gib=16)], waiting, NOW, held=held)
    assert [(grant.job_id, grant.slices[0].gpu_uuid) for grant in admission.grants] == [("long", "GPU-1")]


def test_one_that_waits_for_outsiders_keeps_nothing_from_others() -> None:
    gpu = Gpu("GPU-0", "Test", 0, 24 * GIB, "1.0", is_simulated=False)
    waiting = [job("first", 20, priority=1), job("long", 6)]
    assert started(admit([GpuRoom(gpu, 0, 10 * GIB, 0)], waiting, NOW)) == ["long"]


jobs = st.lists(st.tuples(st.integers(1, 24), st.integers(1, 50), st.integers(0, 1700)), min_size=1, max_size=10).map(
    lambda parts: [job(f"job{i}", gib, lasts=lasts, waited=waited) for i, (gib, lasts, waited) in enumerate(parts)]
)
running = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 50)), max_size=3).map(
    lambda parts: [holds(f"run{i}", gib, lasts=lasts) for i, (gib, lasts) in enumerate(parts)]
)


@given(jobs, running)
def test_nobody_delays_the_first_that_does_not_fit(waiting: list[Candidate], held: list[Held]) -> None:
    """Where durations are known, it starts no later beside those let in before it than without them."""
    machine = room(granted_gib=sum(part.memory_bytes for each in held for part in each.slices) // GIB)
    admission = admit([machine], waiting, NOW, held=held)
    first = next((wait.job_id for wait in admission.waits), None)
    if first is None:
        return
    known = {each.job_id: each for each in waiting}
    before = started(admission)[: _looked_at_before(first, waiting)]
    alone = _fits_at(known[first], [*held, *(_granted(known[name]) for name in before)])
    beside = _fits_at(known[first], [*held, *(_granted(known[name]) for name in started(admission))])
    assert beside <= alone


def _looked_at_before(first: str, waiting: Sequence[Candidate]) -> int:
    """How many of the grants were made before the first had to wait: those that start in a queue that ends with it."""
    machine_order = admit([room(gib=10_000)], waiting, NOW)
    return started(machine_order).index(first)


def _granted(candidate: Candidate) -> Held:
    part = Slice("GPU-0", candidate.request.memory_bytes)
    return Held(candidate.job_id, 0, (part,), NOW, 0.0, candidate.duration_seconds)


def _fits_at(candidate: Candidate, held: Sequence[Held]) -> float:
    for moment in sorted({NOW, *(each.granted_at_seconds + (each.duration_seconds or 0) for each in held)}):
        holding = [h for h in held if h.granted_at_seconds + (h.duration_seconds or 0) > moment]
        used = sum(part.memory_bytes for each in holding for part in each.slices)
        if used + candidate.request.memory_bytes <= 24 * GIB:
            return moment
    raise AssertionError("an idle GPU fits everybody")


def test_a_job_that_runs_longer_than_it_should_is_thought_to_run_as_long_again() -> None:
    held = [holds("late", 16, ran=1000, lasts=600)]
    waiting = [job("first", 20, priority=1), job("short", 6, lasts=900), job("long", 6, lasts=1100)]
    assert started(admit([room(granted_gib=16)], waiting, NOW, held=held)) == ["short"]


def test_what_a_job_of_unknown_length_is_taken_for_is_a_rule() -> None:
    held = [holds("unknown", 16)]
    waiting = [job("first", 20, priority=1), job("short", 6, lasts=900)]
    short = admit([room(granted_gib=16)], waiting, NOW, held=held, rules=OrderRules(default_duration_seconds=300))
    long = admit([room(granted_gib=16)], waiting, NOW, held=held, rules=OrderRules(default_duration_seconds=1000))
    assert (started(short), started(long)) == ([], ["short"])
