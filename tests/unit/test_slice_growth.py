"""Slices whose size pgpu chose grow while there is room, wait, give way, and shrink again."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from pgpu.model import Gpu, Request, SharingMode, Slice
from pgpu.scheduling import Admission, Candidate, GpuRoom, Held, OrderRules, admit
from pgpu.scheduling.capacity import IDLE
from pgpu.scheduling.reservations import left_for_growth
from pgpu.scheduling.slice_growth import (
    GROWN_BYTES,
    LEAST_SHRINKING_BYTES,
    MOST_ATTEMPTS,
    MOST_WAIT_ON_SEVERAL_SECONDS,
    MOST_WAIT_SECONDS,
    POOL_FRACTION,
    Grower,
    Neighbour,
    Verdict,
    answer_growth,
    grows,
    most_wait_seconds,
    next_attempt_bytes,
    shrunk_bytes,
)
from pgpu.structs import replace
from pgpu.units import GIB, MIB

GPU_BYTES = 20 * GIB
SIZES = st.integers(64 * MIB, 80 * GIB)
CHOSEN = Request(2 * GIB, is_estimated=True, basis="history")
NOW = 10_000.0


def grower(need_bytes: int, began: float = 0.0, since: float = 1000.0, slice_bytes: int = 4 * GIB) -> Grower:
    return Grower("job", began, slice_bytes, need_bytes, since)


# Growth.


@given(SIZES, st.integers(1, 80 * GIB), st.floats(0, 1e6), st.integers(0, 80 * GIB))
def test_a_job_alone_on_its_gpu_is_never_refused_what_the_gpu_has(
    slice_bytes: int, more_bytes: int, age: float, spare_bytes: int
) -> None:
    asking = grower(slice_bytes + more_bytes, 0.0, age, slice_bytes)
    answer = answer_growth(asking, more_bytes + spare_bytes, (), age)
    assert answer.verdict is Verdict.GRANT
    assert asking.need_bytes <= answer.slice_bytes <= slice_bytes + more_bytes + spare_bytes


def test_a_job_gets_a_little_more_than_it_needs_so_that_it_asks_few_times() -> None:
    answer = answer_growth(grower(6 * GIB), 10 * GIB, (), 1000.0)
    assert 6 * GIB + GROWN_BYTES < answer.slice_bytes < 7 * GIB
    assert answer_growth(grower(6 * GIB), 2 * GIB, (), 1000.0).slice_bytes == 6 * GIB, "all that is free"


def test_a_job_waits_as_long_as_it_has_run_and_no_longer() -> None:
    asking, running = grower(6 * GIB, began=940.0), [Neighbour("other", 0.0, waits=False)]
    assert answer_growth(asking, GIB, running, 1000.0).verdict is Verdict.WAIT
    assert answer_growth(asking, GIB, running, 1059.0).verdict is Verdict.WAIT
    assert answer_growth(asking, GIB, running, 1060.0).verdict is Verdict.REFUSE
    assert answer_growth(asking, 2 * GIB, running, 1e9).verdict is Verdict.GRANT, "what is free is granted at any time"
    assert most_wait_seconds(grower(6 * GIB, began=-1e6)) == MOST_WAIT_SECONDS
    assert most_wait_seconds(replace(asking, began_seconds=-1e6, gpu_count=2)) == MOST_WAIT_ON_SEVERAL_SECONDS


def test_where_all_wait_for_each_other_the_youngest_is_refused_and_the_oldest_goes_first() -> None:
    old, young = Neighbour("old", 10.0, waits=True), Neighbour("young", 20.0, waits=True)
    eldest, youngest = grower(6 * GIB, began=5.0), grower(6 * GIB, began=30.0)
    assert answer_growth(youngest, GIB, [old, young], 1000.0).verdict is Verdict.REFUSE
    assert answer_growth(eldest, GIB, [old, young], 1000.0).verdict is Verdict.WAIT
    assert answer_growth(youngest, 9 * GIB, [old], 1000.0).verdict is Verdict.REFUSE, "what is free is the older one's"
    assert answer_growth(eldest, 9 * GIB, [old], 1000.0).verdict is Verdict.GRANT


def test_what_no_gpu_or_quota_has_is_refused_at_once() -> None:
    running = [Neighbour("other", 0.0, waits=False)]
    assert answer_growth(grower(6 * GIB), 0, running, 1000.0, 5 * GIB).verdict is Verdict.REFUSE
    assert answer_growth(grower(6 * GIB), 0, running, 1000.0, 6 * GIB).verdict is Verdict.WAIT


@given(st.lists(st.tuples(st.integers(1, 9), st.floats(0, 999), st.integers(1, 40)), min_size=1, max_size=6), st.data())
def test_any_set_of_jobs_that_grow_on_one_gpu_ends(jobs: Sequence[tuple[int, float, int]], data: st.DataObject) -> None:
    """Each of them asks for more at some time, or ends; one that was refused or granted ends as well."""
    held = {f"job{place}": size * GIB for place, (size, _, _) in enumerate(jobs)}
    began = {f"job{place}": at for place, (_, at, _) in enumerate(jobs)}
    capacity_bytes, now, since = sum(held.values()), 1000.0, dict[str, float]()
    ends = st.booleans()
    while held:
        name = min(since, default="") or sorted(held)[data.draw(st.integers(0, len(held) - 1))]
        if name not in since and data.draw(ends):
            del held[name]
            continue
        for each in [name, *since]:
            since.setdefault(each, now)
            others = [Neighbour(other, began[other], other in since) for other in held if other != each]
            need_bytes = held[each] + jobs[int(each[3:])][2] * GIB
            asking = Grower(each, began[each], held[each], need_bytes, since[each])
            answer = answer_growth(asking, capacity_bytes - sum(held.values()), others, now)
            if answer.verdict is not Verdict.WAIT:
                has_time = now < asking.waits_since_seconds + most_wait_seconds(asking)
                if answer.verdict is Verdict.REFUSE and others and has_time:
                    assert all((began[each], each) > (other.began_seconds, other.job_id) for other in others)
                del held[each], since[each]
                break
        now += 10.0
        running = [each for each in held if each not in since]
        if data.draw(ends) and running:
            del held[running[0]]
        assert now < 1000.0 + 10.0 * 200 * len(jobs), "somebody waits for ever"


def test_what_is_kept_for_the_queue_is_awaited_and_not_taken() -> None:
    assert answer_growth(grower(6 * GIB), 4 * GIB, (), 1000.0, kept_bytes=2 * GIB).slice_bytes == 6 * GIB
    assert answer_growth(grower(7 * GIB), 4 * GIB, (), 1000.0, kept_bytes=2 * GIB).verdict is Verdict.WAIT
    young = grower(7 * GIB, began=1000.0)
    assert answer_growth(young, 4 * GIB, (), 1000.0, kept_bytes=2 * GIB).verdict is Verdict.REFUSE


def test_a_slice_that_has_what_is_needed_already_is_granted_behind_an_older_one_that_waits() -> None:
    old = Neighbour("old", -1.0, waits=True)
    answer = answer_growth(grower(4 * GIB), 0, [old], 1000.0)
    assert (answer.verdict, answer.slice_bytes) == (Verdict.GRANT, 4 * GIB)


def left_beside(waiting: Candidate, seconds: float = 9000.0, uid: int = 1) -> int | None:
    """Return by how much a slice of 4 GiB may grow beside one of 12 GiB that ends in a minute, on a GPU of 20 GiB."""
    own = Held("own", uid, (Slice("GPU-0", 4 * GIB),), NOW, duration_seconds=seconds, grows=True)
    other = Held("other", 9, (Slice("GPU-0", 12 * GIB),), NOW, duration_seconds=60.0)
    where = room(16 * GIB, growing=1, jobs=2, growers=(uid,), holds_others=True)
    found = admit([where], [waiting], NOW, held=[own, other])
    return left_for_growth(found, own, [where], NOW, OrderRules())


def test_growth_leaves_what_is_reserved_for_another_user_s_job() -> None:
    def large(gib: float, uid: int = 2) -> Candidate:
        return Candidate("large", Request(int(gib * GIB)), None, uid, NOW)

    assert left_beside(large(14)) == GIB, "it fits once the other one has ended, with the part that is kept for growth"
    assert left_beside(large(14, uid=1)) == 4 * GIB, "its own user's job would lose less by waiting than it by ending"
    assert left_beside(large(14), seconds=30.0) == 4 * GIB, "it has ended by then"
    assert left_beside(large(18)) == 4 * GIB, "it must have ended anyway"


@given(
    st.lists(st.tuples(st.integers(1, 8), st.floats(1, 9000), st.booleans()), min_size=1, max_size=5),
    st.integers(1, 20),
)
def test_no_growth_delays_what_is_reserved_for_another_user_s_job(
    jobs: Sequence[tuple[int, float, bool]], wanted: int
) -> None:
    held = [
        Held(f"job{n}", 1, (Slice("GPU-0", size * GIB),), NOW, duration_seconds=seconds, grows=grows)
        for n, (size, seconds, grows) in enumerate([(jobs[0][0], jobs[0][1], True), *jobs[1:]])
    ]

    def decide(jobs: Sequence[Held]) -> tuple[GpuRoom, Admission]:
        granted_bytes, growing = sum(each.slices[0].memory_bytes for each in jobs), sum(each.grows for each in jobs)
        where = room(min(GPU_BYTES, granted_bytes), growing, len(jobs), growers=(1,))
        return where, admit([where], [Candidate("large", Request(wanted * GIB), None, 2, NOW)], NOW, held=jobs)

    where, before = decide(held)
    left_bytes = left_for_growth(before, held[0], [where], NOW, OrderRules())
    assert left_bytes is not None
    grown = replace(held[0].slices[0], memory_bytes=held[0].slices[0].memory_bytes + left_bytes)
    _, after = decide([replace(held[0], slices=(grown,)), *held[1:]])
    assert len(after.grants) == len(before.grants)
    assert [each.start_seconds for each in after.kept] == [each.start_seconds for each in before.kept]


def test_growth_takes_nothing_that_an_explicit_size_starts_with_now() -> None:
    for uid in (1, 2):
        assert left_beside(Candidate("fits", Request(2 * GIB), None, uid, NOW)) == GIB
        assert left_beside(Candidate("chosen", CHOSEN, None, uid, NOW)) == 4 * GIB, "it holds such back"


# Shrinking.


@given(SIZES, st.floats(0.001, 1), st.one_of(st.none(), SIZES), st.integers(0, 20))
def test_a_slice_shrinks_to_no_less_than_was_held_or_is_expected(
    slice_bytes: int, share: float, estimate_bytes: int | None, runs: int
) -> None:
    held_bytes = max(1, int(share * slice_bytes))
    fit_bytes = shrunk_bytes(slice_bytes, held_bytes, estimate_bytes, runs)
    if fit_bytes is not None:
        assert max(1.05 * held_bytes, estimate_bytes or 0) <= fit_bytes <= slice_bytes - LEAST_SHRINKING_BYTES
        assert shrunk_bytes(fit_bytes, held_bytes, estimate_bytes, runs) is None, "once it has shrunk it stays"


def test_a_slice_keeps_more_while_little_is_known() -> None:
    assert shrunk_bytes(20 * GIB, 10 * GIB, None, 0) == int(11.5 * GIB)
    known = shrunk_bytes(20 * GIB, 10 * GIB, GIB, 3)
    assert known is not None
    assert known < 11 * GIB


# The next attempt.


@given(st.integers(1, MOST_ATTEMPTS), SIZES, st.one_of(st.none(), SIZES), SIZES)
def test_a_next_attempt_has_what_the_last_one_attempted_or_all_there_is(
    attempt: int, attempted_bytes: int, estimate_bytes: int | None, most_bytes: int
) -> None:
    found = next_attempt_bytes(attempt, attempted_bytes, estimate_bytes, most_bytes)
    if attempt == MOST_ATTEMPTS or attempted_bytes > most_bytes:
        assert found is None
        return
    assert found is not None
    memory_bytes, is_alone = found
    assert memory_bytes <= most_bytes, "more would wait for ever"
    assert is_alone or memory_bytes >= max(1.1 * attempted_bytes, estimate_bytes or 0)
    assert is_alone >= (attempt + 1 == MOST_ATTEMPTS)


def test_only_a_size_that_pgpu_chose_grows() -> None:
    assert grows(CHOSEN, SharingMode.TIME_SLICE)
    assert grows(CHOSEN, SharingMode.EXCLUSIVE)
    assert not grows(Request(2 * GIB), SharingMode.TIME_SLICE)
    assert not grows(replace(CHOSEN, basis=None), SharingMode.TIME_SLICE), "a user has resized it"
    assert not grows(replace(CHOSEN, oversubscribes=True), SharingMode.TIME_SLICE)
    assert not grows(CHOSEN, SharingMode.MPS)


# Starts beside jobs that grow.


def room(granted_bytes: int = 0, growing: int = 0, jobs: int = 1, **growers: object) -> GpuRoom:
    gpu = Gpu("GPU-0", "Test", 0, GPU_BYTES, "1.0", is_simulated=False)
    tenancy = IDLE
    for _ in range(jobs if granted_bytes else 0):
        tenancy = tenancy.with_job(SharingMode.TIME_SLICE, 0)
    return GpuRoom(gpu, 0, 0, granted_bytes, tenancy=tenancy, growing_jobs=growing, **growers)  # type: ignore[arg-type]


def starts(where: GpuRoom, *requests: Request, uid: int = 0, takes_free: bool = False) -> list[int]:
    queue = [
        Candidate(f"job{place}", request, None, uid, NOW, takes_free=takes_free)
        for place, request in enumerate(requests)
    ]
    return [grant.slices[0].memory_bytes for grant in admit([where], queue, NOW).grants]


def test_explicit_sizes_alone_fill_a_gpu_to_its_last_byte() -> None:
    assert starts(room(), *[Request(GIB)] * 21) == [GIB] * 20


def test_part_of_a_gpu_is_kept_for_jobs_that_grow_beside_others() -> None:
    pool_bytes = int(POOL_FRACTION * GPU_BYTES)
    large = replace(CHOSEN, memory_bytes=8 * GIB)
    assert starts(room(12 * GIB), large) == [], "it would grow itself"
    assert starts(room(12 * GIB - pool_bytes), large) == [8 * GIB]
    assert starts(room(12 * GIB, growing=1), Request(8 * GIB)) == [], "another one may"
    assert starts(room(12 * GIB), Request(8 * GIB)) == [8 * GIB], "nobody may"
    assert starts(room(), replace(CHOSEN, memory_bytes=GPU_BYTES)) == [GPU_BYTES], "it has the GPU for itself"
    assert starts(room(), large, Request(11 * GIB)) == [8 * GIB, 11 * GIB], "in one round, too"
    assert starts(room(), large, Request(12 * GIB)) == [8 * GIB]


def test_a_job_of_unknown_need_leaves_that_part_free_where_others_run() -> None:
    unknown = replace(CHOSEN, basis="unknown")
    assert starts(room(), unknown, takes_free=True) == [GPU_BYTES]
    assert starts(room(10 * GIB), unknown, takes_free=True) == [9 * GIB]


def test_a_job_that_waits_to_grow_holds_back_its_user_s_chosen_sizes_and_others_for_a_while() -> None:
    mine, both = room(8 * GIB, growing=1, growers=(1,)), room(8 * GIB, growing=1, growers=(1,), holds_others=True)
    assert (starts(mine, CHOSEN, uid=1), starts(mine, CHOSEN, uid=2)) == ([], [2 * GIB])
    assert (starts(both, CHOSEN, uid=1), starts(both, CHOSEN, uid=2)) == ([], [])
    assert starts(both, Request(8 * GIB), uid=1) == [8 * GIB], "an explicit size that fits starts"


def test_the_reason_of_a_wait_names_what_is_kept_for_growth() -> None:
    large = Candidate("large", replace(CHOSEN, memory_bytes=8 * GIB), None, 1, NOW)
    (kept,) = admit([room(12 * GIB)], [large], NOW).waits
    assert kept.reason == "waits for 8 GiB on one GPU: 8 GiB free of 20 GiB; 5% of a GPU are kept for jobs that grow"
    (held,) = admit([room(8 * GIB, growing=1, growers=(1,))], [large], NOW).waits
    assert held.reason.endswith("; a running job that needs more goes first")
    (full,) = admit([room(19 * GIB)], [large], NOW).waits
    assert full.reason == "waits for 8 GiB on one GPU: 1 GiB free of 20 GiB"


def test_what_ends_no_longer_keeps_room_for_its_growth() -> None:
    """A reservation is computed from the ends of jobs: the last job that grows takes its part of the GPU with it."""
    held = [
        Held("grows", 0, (Slice("GPU-0", 4 * GIB),), NOW, duration_seconds=60.0, grows=True),
        Held("stays", 0, (Slice("GPU-0", 4 * GIB),), NOW, duration_seconds=9000.0),
    ]
    where = room(8 * GIB, growing=1, jobs=2)
    queue = [
        Candidate("large", Request(16 * GIB, priority=9), None, 0, NOW),
        Candidate("long", Request(GIB), None, 0, NOW),
    ]
    found = admit([where], queue, NOW, held=held)
    assert [wait.job_id for wait in found.waits] == ["large", "long"], "16 GiB are free once the first has ended"
