"""Idle leases are taken for jobs that would not start otherwise: the cheapest, never one in vain, never for a lower priority."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from pgpu.model import Gpu, Request, SharingMode, SharingWish, Slice
from pgpu.scheduling import Candidate, GpuRoom, Held, Quota, admit
from pgpu.scheduling.admission_round import Admission
from pgpu.scheduling.capacity import IDLE, Tenancy
from pgpu.scheduling.preemption import DecideRound, EvictableLease, ReclaimedRound, reclaim_leases
from pgpu.structs import replace
from pgpu.units import GIB

NOW = 10_000.0
GPU_GIB = 10


def rooms_of(count: int, held: Sequence[Held]) -> list[GpuRoom]:
    found = []
    for index in range(count):
        parts = [(each, part) for each in held for part in each.slices if part.gpu_uuid == f"GPU-{index}"]
        tenancy = Tenancy(SharingMode.TIME_SLICE, None, len(parts)) if parts else IDLE
        gpu = Gpu(f"GPU-{index}", "Fake", index, GPU_GIB * GIB, "1", is_simulated=True)
        granted = sum(part.memory_bytes for _, part in parts)
        found.append(GpuRoom(gpu, 0, 0, granted, sum(each.compute_share for each, _ in parts), tenancy))
    return found


def holding(name: str, *gibs_by_gpu: tuple[int, float], uid: int = 0, share: float = 0.0) -> Held:
    return Held(name, uid, tuple(Slice(f"GPU-{gpu}", int(gib * GIB)) for gpu, gib in gibs_by_gpu), 0.0, share, 600.0)


def asking(name: str, gib: float, gpus: int = 1, uid: int = 0, **words: object) -> Candidate:
    return Candidate(name, Request(int(gib * GIB), gpus, **words), None, uid, NOW)  # type: ignore[arg-type]


def decide(
    gpus: int,
    held: Sequence[Held],
    queue: Sequence[Candidate],
    offers: Sequence[EvictableLease],
    quotas: dict[int, Quota] | None = None,
    most_without_gpu: int = 128,
) -> ReclaimedRound:
    return reclaim_leases(rooms_of(gpus, held), queue, held, offers, playing(quotas, most_without_gpu))


def playing(quotas: dict[int, Quota] | None = None, most_without_gpu: int = 128) -> DecideRound:
    def play(rooms: Sequence[GpuRoom], queue: Sequence[Candidate], held: Sequence[Held]) -> Admission:
        return admit(rooms, queue, NOW, held=held, quotas=quotas, most_without_gpu=most_without_gpu)

    return play


def started(admission: Admission) -> set[str]:
    return {grant.job_id for grant in admission.grants}


def taken(*words: object, **more: object) -> tuple[str, ...]:
    return decide(*words, **more).admission.reclaimed  # type: ignore[arg-type]


FOUR = [holding(name, (0, 2)) for name in "abcd"]
"""Two gibibytes each, of ten."""


def test_the_cheapest_for_each_byte_is_taken_and_no_more_than_are_needed() -> None:
    offers = [
        EvictableLease("a", 0, 5.0),
        EvictableLease("b", 0, 1.0),
        EvictableLease("c", 0, 3.0),
        EvictableLease("d", 0, 9.0),
    ]
    assert taken(1, FOUR, [asking("new", 4)], offers) == ("b",)
    assert taken(1, FOUR, [asking("new", 6)], offers) == ("b", "c")
    mixed = [holding("small", (0, 1)), holding("large", (0, 8))]
    assert taken(1, mixed, [asking("new", 2)], [EvictableLease("small", 0, 1.0), EvictableLease("large", 0, 7.0)]) == (
        "large",
    )


def test_what_is_cheap_and_does_not_help_is_left() -> None:
    mixed = [holding("small", (0, 1)), holding("large", (0, 8))]
    assert taken(1, mixed, [asking("new", 3)], [EvictableLease("small", 0, 0.0), EvictableLease("large", 0, 99.0)]) == (
        "large",
    )
    elsewhere = [holding("a", (0, 8)), holding("b", (1, 8))]
    offers = [EvictableLease("a", 0, 9.0), EvictableLease("b", 0, 1.0)]
    assert taken(2, elsewhere, [asking("new", 9)], offers) == ("b",)


def test_nobody_is_taken_in_vain_or_who_is_not_on_offer() -> None:
    offers = [EvictableLease("a", 0, 1.0), EvictableLease("b", 0, 1.0)]
    assert taken(1, FOUR, [asking("new", 7)], offers) == ()
    assert taken(1, FOUR, [asking("new", 1)], offers) == ()
    assert taken(1, FOUR, [], offers) == ()


def test_a_job_of_a_lower_priority_waits() -> None:
    offers = [EvictableLease("a", 1, 1.0), EvictableLease("b", 0, 9.0)]
    assert taken(1, FOUR, [asking("new", 4)], offers) == ("b",)
    assert taken(1, FOUR, [asking("new", 4, priority=1)], offers) == ("a",)
    assert taken(1, FOUR, [asking("new", 4, priority=-1)], offers) == ()


def test_several_gpus_a_quota_a_share_and_a_mode_are_reasons_too() -> None:
    wide = [holding("a", (0, 8)), holding("b", (1, 8))]
    assert taken(2, wide, [asking("new", 9, 2)], [EvictableLease("a", 0, 1.0), EvictableLease("b", 0, 1.0)]) == (
        "a",
        "b",
    )
    own = [holding("a", (0, 2), uid=7)]
    assert taken(1, own, [asking("new", 2, uid=7)], [EvictableLease("a", 0, 1.0)], {7: Quota(jobs=1)}) == ("a",)
    busy = [holding("a", (0, 1), share=0.8)]
    assert taken(1, busy, [asking("new", 1, compute_share=0.5)], [EvictableLease("a", 0, 1.0)]) == ("a",)
    exclusive = asking("new", 1, sharing=SharingWish.EXCLUSIVE)
    assert taken(1, [holding("a", (0, 1))], [exclusive], [EvictableLease("a", 0, 1.0)]) == ("a",)


def test_who_would_not_wait_at_all_gets_one_too() -> None:
    impatient = replace(asking("new", 4), deadline_seconds=NOW)
    found = decide(1, FOUR, [impatient], [EvictableLease("a", 0, 1.0)]).admission
    assert (found.reclaimed, found.expired, started(found)) == (("a",), (), {"new"})
    assert decide(
        1, FOUR, [replace(impatient, request=Request(9 * GIB))], [EvictableLease("a", 0, 1.0)]
    ).admission.expired


def test_without_a_gpu_only_those_without_one_make_room() -> None:
    held = [holding("a", (0, 1)), holding("b"), holding("c")]
    offers = [EvictableLease("a", 0, 0.0), EvictableLease("b", 0, 2.0), EvictableLease("c", 0, 1.0)]
    bare = Candidate("new", Request(0, 0), None, 0, NOW)
    assert taken(1, held, [bare], offers, most_without_gpu=2) == ("c",)
    assert taken(1, held, [bare], offers, most_without_gpu=3) == ()


def test_what_is_kept_for_the_first_in_line_stays_kept() -> None:
    """The first does not fit with every offer taken; the second would, and would delay it."""
    held = [holding("runs", (0, 5)), holding("idle", (0, 3))]
    queue = [asking("first", 9, priority=5), asking("second", 4)]
    assert taken(1, held, queue, [EvictableLease("idle", 0, 1.0)]) == ()


def test_a_long_queue_and_many_offers_take_few_rounds() -> None:
    held = [holding(f"idle-{n:03}", (n % 8, 0.4)) for n in range(160)]
    queue = [asking(f"new-{n:05}", 2, uid=n % 5) for n in range(3000)]
    offers = [EvictableLease(each.job_id, 0, float(n % 7)) for n, each in enumerate(held)]
    rounds = []

    def play(rooms: Sequence[GpuRoom], line: Sequence[Candidate], rest: Sequence[Held]) -> Admission:
        rounds.append(len(line))
        return playing()(rooms, line, rest)

    admission = reclaim_leases(rooms_of(8, held), queue, held, offers, play).admission
    assert len(admission.grants) == len(admit(rooms_of(8, []), queue, NOW).grants)
    assert sum(length == len(queue) for length in rounds) <= 6, (
        "the whole queue was looked at more often than a few times"
    )
    assert len(rounds) < len(held)


names = st.integers(0, 2)
Lease = tuple[list[int], float, float, int, tuple[int, float] | None]
Wish = tuple[float, int, int, int, float | None, SharingWish]

leases: st.SearchStrategy[list[Lease]] = st.lists(
    st.tuples(
        st.lists(names, max_size=2, unique=True),
        st.sampled_from([0.5, 1, 2, 3]),
        st.sampled_from([0.0, 0.0, 0.3]),
        names,
        st.none() | st.tuples(st.integers(-1, 1), st.sampled_from([0.0, 1.0, 2.0, 50.0])),
    ),
    max_size=7,
)
wishes: st.SearchStrategy[list[Wish]] = st.lists(
    st.tuples(
        st.sampled_from([0, 0.5, 1, 3, 6, 9]),
        st.integers(1, 2),
        st.integers(-1, 1),
        names,
        st.sampled_from([None, None, 0.4]),
        st.sampled_from([SharingWish.TIME_SLICE, SharingWish.TIME_SLICE, SharingWish.EXCLUSIVE]),
    ),
    max_size=6,
)


@settings(max_examples=150)
@given(leases, wishes, st.sampled_from([None, {1: Quota(jobs=2)}, {1: Quota(memory_bytes=4 * GIB)}]), st.integers(1, 3))
def test_few_and_enough_are_taken_and_nothing_is_granted_twice(
    there: list[Lease], wanted: list[Wish], quotas: dict[int, Quota] | None, most_without_gpu: int
) -> None:
    held: list[Held] = []
    offers: list[EvictableLease] = []
    for number, (gpus, gib, share, uid, offer) in enumerate(there):
        each = holding(f"h{number}", *((gpu, gib) for gpu in gpus), uid=uid, share=share if gpus else 0.0)
        if any(room.granted_bytes > GPU_GIB * GIB or room.granted_compute > 1 for room in rooms_of(3, [*held, each])):
            continue
        held.append(each)
        offers += [EvictableLease(each.job_id, *offer)] if offer is not None else []
    queue = [
        Candidate(f"q{n}", Request(0, 0, priority=priority), None, uid, NOW)
        if gib == 0
        else asking(
            f"q{n}", gib, count, uid, priority=priority, sharing=wish,
            compute_share=share if wish is SharingWish.TIME_SLICE else None,
        )
        for n, (gib, count, priority, uid, share, wish) in enumerate(wanted)
    ]  # fmt: skip
    play = playing(quotas, most_without_gpu)
    rooms = rooms_of(3, held)
    found = reclaim_leases(rooms, queue, held, offers, play)
    admission, gone = found.admission, set(found.admission.reclaimed)

    def played(without: set[str]) -> Admission:
        rest = [each for each in held if each.job_id not in without]
        return play(rooms_of(3, rest), queue, rest)

    assert admission == reclaim_leases(rooms, queue, held, offers, play).admission
    by_id = {each.job_id: each for each in queue}
    priorities = {each.job_id: each.priority for each in offers}
    assert gone <= priorities.keys()
    assert played(gone).grants == admission.grants
    now = started(played(set()))
    gained = started(admission) - now
    assert bool(gained) == bool(gone)
    most = max((by_id[job_id].request.priority for job_id in gained), default=-9)
    for job_id in gone:
        assert priorities[job_id] <= most
        assert not started(admission) <= started(played(gone - {job_id})), "taken in vain"
    if len({*priorities.values(), *(each.request.priority for each in queue)}) == 1:
        assert started(played(set(priorities))) <= started(admission), "left waiting though an offer would have helped"
    final = [*(each for each in held if each.job_id not in gone), *_held(admission, queue)]
    assert all(room.granted_bytes <= GPU_GIB * GIB for room in rooms_of(3, final))


def _held(admission: Admission, queue: Sequence[Candidate]) -> list[Held]:
    owners = {each.job_id: each.owner_uid for each in queue}
    return [Held(grant.job_id, owners[grant.job_id], grant.slices, NOW) for grant in admission.grants]
