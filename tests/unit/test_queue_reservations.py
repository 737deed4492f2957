"""For whom GPUs and quotas are kept, round by round, and how those who wait for it are told."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgpu.model import Gpu, Request, Slice
from pgpu.scheduling import (
    Admission,
    Candidate,
    Cause,
    GpuRoom,
    Held,
    OrderRules,
    OverdueReservation,
    Precedence,
    Quota,
    VirtualTime,
    admit,
)
from pgpu.scheduling.reservations import UNABLE_SECONDS
from pgpu.structs import replace
from pgpu.units import GIB

NOW = 100_000.0
OVERDUE = 3600.0
UNTIL = NOW + OrderRules().faith_seconds


def rooms(*free_gib: int, outsiders_gib: int = 0) -> list[GpuRoom]:
    gpus = [Gpu(f"GPU-{index}", "Test", index, 24 * GIB, "1.0", is_simulated=False) for index in range(len(free_gib))]
    return [
        GpuRoom(gpu, 0, outsiders_gib * GIB, (24 - gib - outsiders_gib) * GIB)
        for gpu, gib in zip(gpus, free_gib, strict=True)
    ]


def job(
    name: str,
    gib: int,
    *,
    uid: int = 0,
    waited: float = 0.0,
    lasts: float | None = None,
    priority: int = 0,
    gpus: int = 1,
) -> Candidate:
    return Candidate(name, Request(gib * GIB, gpus, priority=priority), None, uid, NOW - waited, lasts)


def holds(name: str, gib: int, gpu: int, *, ran: float, lasts: float | None = None, uid: int = 0) -> Held:
    return Held(name, uid, (Slice(f"GPU-{gpu}", gib * GIB),), NOW - ran, 0.0, lasts)


def started(admission: Admission) -> list[str]:
    return [grant.job_id for grant in admission.grants]


def reasons(admission: Admission) -> dict[str, str]:
    return {wait.job_id: wait.reason.partition("; 1 job ahead")[0] for wait in admission.waits}


LARGE = job("large", 20, waited=OVERDUE)
FULL = [holds("sooner", 16, 0, ran=60, lasts=600, uid=9), holds("later", 16, 1, ran=60, lasts=900, uid=9)]


def test_the_gpu_that_drains_first_is_kept_for_an_overdue_job() -> None:
    admission = admit(rooms(8, 8), [LARGE, job("small", 6, uid=1)], NOW, held=FULL)
    assert admission.reservation == OverdueReservation("large", ("GPU-0",), NOW, NOW + 540, UNTIL)
    assert [(grant.job_id, grant.slices[0].gpu_uuid) for grant in admission.grants] == [("small", "GPU-1")]


def test_it_stays_the_same_gpu_though_another_looks_better_later() -> None:
    reservation = OverdueReservation("large", ("GPU-1",), NOW - 100, NOW + 800, UNTIL)
    assert admit(rooms(8, 8), [LARGE], NOW, held=FULL, precedence=Precedence(reservation)).reservation == reservation


def test_what_is_kept_on_one_gpu_does_not_keep_its_job_from_another() -> None:
    reservation = OverdueReservation("large", ("GPU-1",), NOW - 100, NOW + 800, UNTIL)
    admission = admit(rooms(24, 8), [LARGE], NOW, held=FULL[1:], precedence=Precedence(reservation))
    assert (started(admission), admission.reservation) == (["large"], None)


@pytest.mark.parametrize(
    ("machine", "unable_since"),
    [(rooms(8), None), ([*rooms(8), *rooms(0, 6, outsiders_gib=18)[1:]], NOW - UNABLE_SECONDS)],
    ids=["closed", "outsiders"],
)
def test_another_gpu_is_chosen_where_the_kept_one_cannot_host_the_job_any_more(
    machine: list[GpuRoom], unable_since: float | None
) -> None:
    reservation = OverdueReservation("large", ("GPU-1",), NOW - 100, NOW + 800, UNTIL, unable_since)
    after = admit(machine, [LARGE], NOW, held=FULL[:1], precedence=Precedence(reservation)).reservation
    assert after is not None
    assert (after.gpu_uuids, after.since_seconds, after.start_seconds) == (("GPU-0",), NOW, NOW + 800)


def test_after_some_hours_another_gpu_is_chosen_for_twice_as_long() -> None:
    reservation = OverdueReservation("large", ("GPU-1",), NOW - 14_400, NOW - 10_000, NOW)
    after = admit(rooms(8, 8), [LARGE], NOW, held=FULL, precedence=Precedence(reservation)).reservation
    assert after == OverdueReservation("large", ("GPU-0",), NOW, NOW - 10_000, NOW + 28_800)


def test_no_gpu_is_kept_for_a_job_that_no_end_of_others_lets_start() -> None:
    admission = admit(rooms(6, outsiders_gib=10), [LARGE, job("small", 6, uid=1)], NOW)
    assert (started(admission), admission.reservation) == (["small"], None)


def test_a_short_job_is_let_in_before_the_first_promise_and_not_once_that_was_broken() -> None:
    short = job("short", 6, lasts=300, uid=1)
    reservation = OverdueReservation("large", ("GPU-0",), NOW - 60, NOW + 540, UNTIL)
    late = replace(reservation, start_seconds=NOW - 1)
    for before, names in ((reservation, ["short"]), (late, [])):
        assert started(admit(rooms(8), [LARGE, short], NOW, held=FULL[:1], precedence=Precedence(before))) == names


small_jobs = st.lists(st.tuples(st.integers(1, 8), st.none() | st.integers(1, 4000)), max_size=8)


@given(small_jobs, small_jobs)
def test_what_is_let_in_leaves_a_kept_gpu_to_its_job_once_all_that_was_there_has_ended(
    parts: list[tuple[int, int | None]], came_later: list[tuple[int, int | None]]
) -> None:
    """Rounds on one GPU: whoever is let in beyond the promise, now or before, takes no more than the job leaves."""
    held = [holds("there", 16, 0, ran=600)]
    reservation = OverdueReservation("large", ("GPU-0",), NOW - 60, NOW + 540, UNTIL)
    free = 8
    for number, some in enumerate((parts, came_later)):
        queue = [LARGE, *(job(f"{number}-{i}", gib, uid=1, lasts=lasts) for i, (gib, lasts) in enumerate(some))]
        admission = admit(rooms(free), queue, NOW, held=held, precedence=Precedence(reservation))
        known = {each.job_id: each for each in queue}
        for grant in admission.grants:
            held.append(Held(grant.job_id, 1, grant.slices, NOW, 0.0, known[grant.job_id].duration_seconds))
            free -= grant.slices[0].memory_bytes // GIB
    beyond = [each for each in held[1:] if each.duration_seconds is None or NOW + each.duration_seconds > NOW + 540]
    assert sum(each.slices[0].memory_bytes for each in beyond) <= 4 * GIB


def test_the_first_of_the_order_keeps_memory_beside_an_overdue_job() -> None:
    """Else a large job of high priority would starve behind small ones for as long as anybody is overdue."""
    queue = [LARGE, job("urgent", 20, uid=1, priority=50), job("small", 6, uid=2)]
    admission = admit(rooms(8, 8), queue, NOW, held=FULL)
    assert started(admission) == []
    assert reasons(admission)["small"].startswith("waits its turn: the memory that is free on GPU")


def test_overdue_jobs_below_a_higher_priority_go_first_for_a_quarter_of_the_machine() -> None:
    queue = [
        *(job(f"old{number}", 6, uid=1, waited=OVERDUE - number) for number in range(3)),
        job("theirs", 6, uid=2, waited=OVERDUE - 5),
        job("urgent", 6, uid=3, priority=50),
        job("more urgent", 6, uid=3, priority=60),
    ]
    admission = admit(rooms(24), queue, NOW)
    assert started(admission) == ["old0", "more urgent", "urgent", "theirs"]
    assert [grant.is_late for grant in admission.grants] == [True, False, False, True]
    assert admission.late_ids == {"old0", "old1", "old2", "theirs"}


@pytest.mark.parametrize(("late_seconds", "first"), [(0.0, "old"), (1000.0, "old"), (1001.0, "urgent")])
def test_late_jobs_go_first_until_they_have_had_a_third_of_what_the_others_have(
    late_seconds: float, first: str
) -> None:
    queue = [job("old", 20, waited=OVERDUE), job("urgent", 20, uid=1, priority=50)]
    time = VirtualTime(late_seconds=late_seconds, other_seconds=3000.0)
    assert started(admit(rooms(24), queue, NOW, precedence=Precedence(None, time))) == [first]


def test_the_time_of_late_jobs_counts_while_there_are_any_and_what_nobody_hosts_earns_a_bounded_lead() -> None:
    late, urgent = job("old", 25, waited=OVERDUE), job("urgent", 20, uid=1, priority=50)
    time = VirtualTime(late_seconds=0.0, other_seconds=1e9)
    after = admit(rooms(24), [late, urgent], NOW, precedence=Precedence(None, time)).time
    assert (after.late_seconds, after.other_seconds) == (0.0, OrderRules().credit_seconds)
    assert admit(rooms(24), [urgent], NOW, precedence=Precedence(None, after)).time.late_seconds is None


def test_what_is_reserved_goes_to_a_job_that_needs_all_of_it_and_is_first_by_the_clocks() -> None:
    claim = OverdueReservation("large", ("GPU-0",), NOW - 100, NOW + 100, UNTIL)
    others = Precedence(claim, VirtualTime(clocks={0: 5000.0, 1: 0.0, 2: 9000.0}))
    equal, small = job("equal", 22, uid=1), job("small", 6, uid=1)
    assert started(admit(rooms(24), [LARGE, equal], NOW, precedence=others)) == ["equal"]
    assert started(admit(rooms(24), [LARGE, small], NOW, precedence=others)) == ["large"]
    waits = admit(rooms(8), [LARGE, equal], NOW, held=FULL[:1], precedence=others)
    assert waits.reservation == replace(claim, job_id="equal")


QUOTAS = {0: Quota(memory_bytes=8 * GIB)}
OWN = [holds("own", 6, 0, ran=60, lasts=600)]


def quota_round(*queue: Candidate, quotas: dict[int, Quota] = QUOTAS, held: Sequence[Held] = OWN) -> Admission:
    return admit(rooms(18), queue, NOW, held=held, quotas=quotas)


@pytest.mark.parametrize(("lasts", "names"), [(500, ["small"]), (700, []), (None, [])])
def test_a_job_that_would_delay_its_owners_first_inside_the_quota_waits_its_turn(
    lasts: float | None, names: list[str]
) -> None:
    admission = quota_round(job("first", 7, priority=1), job("small", 2, lasts=lasts), job("theirs", 4, uid=1))
    assert sorted(started(admission)) == sorted(["theirs", *names])
    if not names:
        assert {wait.job_id: wait.cause for wait in admission.waits} == {
            "first": Cause.QUOTA,
            "small": Cause.QUOTA_TURN,
        }
        assert reasons(admission) == {
            "first": "waits for its owner's other jobs: they hold 6 GiB of a quota of 8 GiB",
            "small": "waits its turn: its owner's quota is kept for job first",
        }


def test_what_the_first_leaves_of_a_quota_is_given_out_once() -> None:
    admission = quota_round(job("first", 6, priority=1), job("one", 2), job("two", 1))
    assert started(admission) == ["two"]


def test_a_number_of_jobs_is_kept_as_memory_is() -> None:
    quotas = {0: Quota(memory_bytes=24 * GIB, jobs=2)}
    waiting = [job("first", 20, waited=OVERDUE), job("small", 1)]
    assert started(quota_round(*waiting, quotas=quotas)) == []


def test_a_quota_is_kept_for_nobody_who_asks_for_more_than_all_of_it() -> None:
    assert started(quota_round(job("never", 9, waited=OVERDUE), job("small", 2))) == ["small"]


def test_an_overdue_job_that_waits_for_its_owners_quota_keeps_no_gpu_from_others() -> None:
    admission = quota_round(job("first", 8, waited=OVERDUE), job("theirs", 18, uid=1))
    assert (started(admission), admission.reservation) == (["theirs"], None)


def test_who_gpus_are_kept_for_is_told_which() -> None:
    waits = admit(rooms(8, 8), [LARGE], NOW, held=FULL).waits
    assert waits[0].reason == (
        "waits for 20 GiB on one GPU: at most 8 GiB free of 24 GiB on any of 2; what becomes free on GPU 0 is kept for it"
    )
    both = admit(rooms(8, 8), [job("both", 20, waited=OVERDUE, gpus=2)], NOW, held=FULL).waits
    assert both[0].reason.endswith("; what becomes free is kept for it")


@pytest.mark.parametrize(
    ("machine", "quota"),
    [
        (rooms(14, outsiders_gib=10), Quota(jobs=1)),
        (rooms(14, outsiders_gib=10), Quota(memory_bytes=20 * GIB)),
    ],
    ids=["jobs", "memory"],
)
@pytest.mark.parametrize("waited", [OVERDUE, 60.0], ids=["overdue", "young"])
def test_no_quota_is_kept_for_a_job_that_outsiders_leave_too_little_for(
    machine: list[GpuRoom], quota: Quota, waited: float
) -> None:
    young = [job("small", 2, waited=10)]
    assert started(admit(machine, [job("large", 20, waited=waited), *young], NOW, quotas={0: quota})) == ["small"]


def test_no_quota_is_kept_for_a_job_on_more_gpus_than_are_open() -> None:
    waiting = [job("wide", 10, waited=OVERDUE, gpus=2), job("small", 8, waited=10)]
    assert started(admit(rooms(24), waiting, NOW, quotas={0: Quota(memory_bytes=24 * GIB)})) == ["small"]


def test_no_full_quota_is_kept_for_a_job_that_nothing_can_host() -> None:
    """Neither is overdue: the quota itself keeps the first waiting."""
    waiting = [job("wide", 10, waited=60, gpus=2, priority=10), job("small", 8, waited=10)]
    held = [holds("own", 6, 0, ran=60)]
    assert started(admit(rooms(18), waiting, NOW, held=held, quotas={0: Quota(memory_bytes=24 * GIB)})) == ["small"]


def test_the_oldest_of_a_user_is_the_one_that_was_let_go_first_and_not_the_one_that_came_first() -> None:
    waiting = [job("chained", 20, waited=OVERDUE), job("alone", 20, waited=2 * OVERDUE), job("other", 20, priority=50)]
    assert started(admit(rooms(24), waiting, NOW)) == ["alone"]


ON_ONE = OverdueReservation("large", ("GPU-0",), NOW - 100, NOW + 100, UNTIL)


def test_a_claim_outlives_a_round_in_which_no_gpu_can_be_read() -> None:
    late = replace(job("late", 1, uid=1, waited=60), deadline_seconds=NOW)
    admission = admit([], [LARGE, late], NOW, precedence=Precedence(ON_ONE))
    assert (admission.reservation, admission.expired) == (ON_ONE, ("late",))
    assert reasons(admission) == {"large": "waits for 20 GiB on one GPU: no GPU answers"}


def test_a_claim_outlives_an_outsider_that_soon_goes() -> None:
    held = [holds("own", 19, 0, ran=200, uid=1), holds("later", 19, 1, ran=200, uid=1)]
    machine = [rooms(0, outsiders_gib=5)[0], rooms(5, 5)[1]]
    blocked = admit(machine, [LARGE], NOW, held=held, precedence=Precedence(ON_ONE)).reservation
    assert blocked == replace(ON_ONE, unable_since_seconds=NOW)
    assert admit(machine, [LARGE], NOW + 9, held=held, precedence=Precedence(blocked)).reservation == blocked
    again = admit(rooms(5), [LARGE, job("small", 5, uid=1)], NOW + 1, held=held[:1], precedence=Precedence(blocked))
    assert (started(again), again.reservation) == ([], ON_ONE)


def test_a_claim_ends_where_an_outsider_stays() -> None:
    reservation = replace(ON_ONE, unable_since_seconds=NOW - UNABLE_SECONDS)
    other = job("other", 12, uid=1, waited=OVERDUE)
    held = [holds("own", 14, 0, ran=200, uid=2)]
    after = admit(
        rooms(0, outsiders_gib=10), [LARGE, other], NOW, held=held, precedence=Precedence(reservation)
    ).reservation
    assert after is not None
    assert after.job_id == "other"
