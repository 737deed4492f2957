"""Compute shares and sharing modes: never over the whole, never mixed, and nobody left out for ever."""

import pytest
from benchmarks.replaying import (
    NO_HEADROOM,
    Arrival,
    Fate,
    Policy,
    SharingFailureError,
    cards,
    default_objective,
    makespan_objective,
    replay,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from pgpu.errors import RequestError
from pgpu.model import Gpu, Request, SharingMode, SharingWish, Slice
from pgpu.scheduling import Admission, Candidate, Cause, GpuRoom, Grant, Headroom, Held, admit, check_can_ever_fit
from pgpu.scheduling.capacity import IDLE, MOST_MPS_CLIENTS, Tenancy
from pgpu.scheduling.free_capacity import FreeCapacity
from pgpu.structs import replace
from pgpu.units import GIB

TIME_SLICED = Tenancy(SharingMode.TIME_SLICE, None, 1)
UNDER_MPS = Tenancy(SharingMode.MPS, 7, 1)
ALONE = Tenancy(SharingMode.EXCLUSIVE, None, 1)
GPUS = cards(2, 24 * GIB)
TOGETHER = "waits for a GPU shared by MPS with jobs of the same user"


def room(gpu: Gpu = GPUS[0], granted_gib: int = 0, compute: float = 0.0, tenancy: Tenancy = IDLE) -> GpuRoom:
    return GpuRoom(gpu, 0, 0, granted_gib * GIB, compute, tenancy)


def job(
    name: str,
    gib: int = 1,
    share: float | None = None,
    sharing: SharingWish = SharingWish.TIME_SLICE,
    *,
    uid: int = 7,
    count: int = 1,
    lasts: float | None = None,
    came: float = 0.0,
) -> Candidate:
    return Candidate(name, Request(gib * GIB, count, share, sharing=sharing), None, uid, came, lasts)


def started(admission: Admission) -> list[str]:
    return [grant.job_id for grant in admission.grants]


wishes = st.sampled_from(SharingWish)
parts = st.tuples(
    st.integers(1, 20),
    st.none() | st.integers(1, 100),
    wishes,
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(0, 400),
    st.integers(1, 300),
    st.booleans(),
)


def arrival(number: int, part: tuple[int, int | None, SharingWish, int, int, int, int, bool]) -> Arrival:
    gib, percent, sharing, count, uid, came, lasts, is_known = part
    if sharing is SharingWish.MPS:
        count = 1
    share = None if percent is None or sharing is SharingWish.EXCLUSIVE else percent / 100
    told = job(
        f"job{number}", gib, share, sharing, uid=uid, count=count, lasts=lasts if is_known else None, came=float(came)
    )
    return Arrival(told, float(lasts))


@settings(deadline=None, max_examples=60)
@given(st.lists(parts, max_size=14), st.sampled_from([default_objective, makespan_objective(50, 50)]))
def test_a_day_of_any_jobs_never_mixes_modes_nor_passes_the_whole_of_a_gpu_and_every_job_ends(
    some: list[tuple[int, int | None, SharingWish, int, int, int, int, bool]], policy: Policy
) -> None:
    """The replay itself looks at every GPU after every round."""
    arrivals = [arrival(number, part) for number, part in enumerate(some)]
    assert len(replay(GPUS, arrivals, policy, headroom=NO_HEADROOM)) == len(arrivals)


def test_the_replay_sees_modes_that_mix_and_time_that_is_promised_twice() -> None:
    def careless(*words: object) -> Admission:
        queue: list[Candidate] = words[1]  # type: ignore[assignment]
        slices = (Slice(GPUS[0].uuid, GIB),)
        return Admission(tuple(Grant(each.job_id, slices, mode=each.mode) for each in queue), (), ())

    for pair in (
        (job("a", share=0.6), job("b", share=0.5)),
        (job("a"), job("b", sharing=SharingWish.MPS)),
        (job("a", sharing=SharingWish.EXCLUSIVE), job("b", sharing=SharingWish.EXCLUSIVE)),
        (job("a", sharing=SharingWish.MPS), job("b", sharing=SharingWish.MPS, uid=8)),
    ):
        with pytest.raises(SharingFailureError):
            replay(GPUS, [Arrival(each, 1.0) for each in pair], careless, headroom=NO_HEADROOM)


@pytest.mark.parametrize("shares", [(0.9, 0.1), (0.7, 0.2, 0.1), (0.3, 0.3, 0.3, 0.1), (0.01,) * 100])
def test_shares_that_make_a_whole_fit_together(shares: tuple[float, ...]) -> None:
    gpu = cards(1, 200 * GIB)[0]
    admission = admit([room(gpu)], [job(f"job{n}", 1, share) for n, share in enumerate(shares)], 0.0)
    assert len(admission.grants) == len(shares)
    assert [grant.slices[0].compute_share for grant in admission.grants] == list(shares)


def test_what_waits_for_compute_says_compute() -> None:
    admission = admit([room(compute=0.8, tenancy=TIME_SLICED)], [job("late", share=0.3)], 0.0)
    assert [wait.cause for wait in admission.waits] == [Cause.COMPUTE]
    assert admission.waits[0].reason == "waits for 30% of a GPU's time: 20% are free"
    two = [room(compute=0.8, tenancy=TIME_SLICED), room(GPUS[1], compute=0.9, tenancy=TIME_SLICED)]
    assert admit(two, [job("late", share=0.3)], 0.0).waits[0].reason.endswith("at most 20% are free on any of 2")
    both = admit(two, [job("both", share=0.15, count=2)], 0.0).waits[0].reason
    assert both == "waits for 15% of the time of each of 2 GPUs: 1 of 2 has that much free"


@pytest.mark.parametrize(
    ("tenancy", "sharing", "uid", "words"),
    [
        (
            TIME_SLICED,
            SharingWish.EXCLUSIVE,
            7,
            "waits for a GPU of its own: the one there is is shared in time slices",
        ),
        (
            ALONE,
            SharingWish.TIME_SLICE,
            7,
            "waits for a GPU shared in time slices: the one there is is one job's alone",
        ),
        (
            UNDER_MPS,
            SharingWish.MPS,
            8,
            f"{TOGETHER}: the one there is is shared by MPS with another user's jobs",
        ),
        (
            Tenancy(SharingMode.MPS, 7, MOST_MPS_CLIENTS),
            SharingWish.MPS,
            7,
            f"{TOGETHER}: the one there is is shared by as many as MPS takes",
        ),
    ],
)
def test_what_waits_for_a_mode_says_which(tenancy: Tenancy, sharing: SharingWish, uid: int, words: str) -> None:
    wait = admit([room(tenancy=tenancy)], [job("late", sharing=sharing, uid=uid)], 0.0).waits[0]
    assert (wait.cause, wait.reason) == (Cause.SHARING, words)


def test_a_job_without_room_for_its_memory_still_says_memory() -> None:
    admission = admit([room(granted_gib=20, compute=0.9, tenancy=ALONE)], [job("late", 8, 0.5)], 0.0)
    assert admission.waits[0].cause is Cause.MEMORY


def test_a_job_goes_where_its_mode_is_already_rather_than_to_an_idle_gpu() -> None:
    rooms = [room(), room(GPUS[1], granted_gib=1, tenancy=UNDER_MPS)]
    [grant] = admit(rooms, [job("third", sharing=SharingWish.MPS)], 0.0).grants
    assert (grant.slices[0].gpu_uuid, grant.mode) == (GPUS[1].uuid, SharingMode.MPS)


def test_those_who_change_places_for_one_more_never_change_into_another_mode() -> None:
    """The large one fits only if the small one moved to the GPU under MPS."""
    rooms = [room(granted_gib=4, tenancy=TIME_SLICED), room(GPUS[1], granted_gib=20, tenancy=UNDER_MPS)]
    admission = admit(rooms, [job("small", 4), job("large", 20)], 0.0)
    assert started(admission) == ["small"]
    assert admission.waits[0].job_id == "large"


def test_mps_is_refused_where_no_gpu_knows_it() -> None:
    old = Gpu("GPU-0", "old", 0, GIB, "1", is_simulated=False, compute_capability=(5, 2))
    with pytest.raises(RequestError, match="Volta"):
        check_can_ever_fit([old], job("any", sharing=SharingWish.MPS).request, Headroom(0, 0.0))


def test_before_volta_a_measurement_beside_an_antagonist_runs_under_mps_all_the_same() -> None:
    old = Gpu("GPU-0", "old", 0, 24 * GIB, "1", is_simulated=False, compute_capability=(5, 2))
    measured = replace(job("any", sharing=SharingWish.MPS).request, measures=True)
    check_can_ever_fit([old], measured, Headroom(0, 0.0))
    [grant] = admit([room(old)], [replace(job("any"), request=measured)], 0.0).grants
    assert grant.mode is SharingMode.MPS


def stream(wanted: Candidate, *, others: int, lasts: float, known: bool) -> dict[str, Fate]:
    """Play small jobs that come one after the other beside one that wants more."""
    small = [job(f"small{n}", 1, 0.2, uid=8, lasts=lasts if known else None, came=n * lasts / 5) for n in range(others)]
    arrivals = [Arrival(each, lasts) for each in small] + [Arrival(wanted, 60.0)]
    return dict(replay(cards(1, 24 * GIB), arrivals, default_objective, headroom=NO_HEADROOM))


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize(
    "wanted",
    [
        job("wanted", 1, 1.0, came=500.0),
        job("wanted", 1, sharing=SharingWish.EXCLUSIVE, came=500.0),
        job("wanted", 1, 0.5, SharingWish.MPS, came=500.0),
    ],
    ids=["all of the time", "alone", "under MPS"],
)
def test_a_stream_of_small_jobs_does_not_keep_one_out_that_wants_more_than_a_part(
    wanted: Candidate, *, known: bool
) -> None:
    """For ten hours five of them are there at every moment; it waits no longer than one of them runs."""
    fate = stream(wanted, others=300, lasts=600.0, known=known)["wanted"]
    assert fate.started_seconds - fate.came_seconds <= 600.0 + 1


def test_a_short_job_may_go_before_one_that_waits_for_a_gpu_of_its_own_and_a_long_one_may_not() -> None:
    held = [Held("there", 9, (Slice(GPUS[0].uuid, GIB),), 0.0, 0.0, 100.0)]
    alone = job("alone", sharing=SharingWish.EXCLUSIVE, lasts=1.0)
    for lasts, names in ((50.0, ["beside"]), (200.0, [])):
        admission = admit(
            [room(granted_gib=1, tenancy=TIME_SLICED)], [alone, job("beside", uid=8, lasts=lasts)], 0.0, held=held
        )
        assert started(admission) == names
        assert admission.waits[-1].job_id == (["beside"] if not names else ["alone"])[0]


def test_who_has_a_gpu_alone_holds_all_of_its_time_and_the_other_user_goes_first() -> None:
    """By shares of memory alone the first user would hold next to nothing."""
    rooms = [room(granted_gib=1, tenancy=ALONE, compute=1.0), room(GPUS[1])]
    held = [Held("alone", 1, (Slice(GPUS[0].uuid, GIB),), 0.0, 1.0, None, SharingMode.EXCLUSIVE)]
    held += [Held("other", 2, (Slice(GPUS[0].uuid, 8 * GIB),), 0.0)]
    queue = [job("first", 20, uid=1), job("second", 20, uid=2)]
    assert started(admit(rooms, queue, 0.0, held=held)) == ["second"]


tenancies = st.sampled_from([IDLE, TIME_SLICED, UNDER_MPS, ALONE, Tenancy(SharingMode.MPS, 1, MOST_MPS_CLIENTS)])
machines = st.lists(st.tuples(st.integers(0, 24), st.integers(0, 100), tenancies), min_size=1, max_size=3).map(
    lambda some: [
        room(gpu, 0 if each[2] == IDLE else each[0], 0.0 if each[2] == IDLE else each[1] / 100, each[2])
        for gpu, each in zip(cards(3, 24 * GIB), some, strict=False)
    ]
)


@given(machines, st.lists(parts, max_size=10))
def test_one_round_on_any_machine_grants_what_fits_and_somebody_if_anybody_does(
    machine: list[GpuRoom], some: list[tuple[int, int | None, SharingWish, int, int, int, int, bool]]
) -> None:
    queue = [arrival(number, part).candidate for number, part in enumerate(some)]
    admission = admit(machine, queue, 1000.0)
    known = {each.job_id: each for each in queue}
    space = FreeCapacity.of(machine)
    gpus = {each.gpu.uuid: each.gpu for each in machine}
    fits = [each for each in queue if sum(space.hosts(gpu, each) for gpu in gpus.values()) >= each.request.gpu_count]
    assert bool(fits) <= bool(admission.grants) or admission.waits[0].cause in {
        Cause.MEMORY,
        Cause.COMPUTE,
        Cause.SHARING,
    }
    for grant in admission.grants:
        each = known[grant.job_id]
        assert all(space.hosts(gpus[part.gpu_uuid], each) for part in grant.slices)
        space.take(Held(each.job_id, each.owner_uid, grant.slices, 0.0, each.compute_share, None, grant.mode), gpus)
    assert all(wait.reason for wait in admission.waits)
