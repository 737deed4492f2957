"""Who starts now: the properties that hold for every machine and every queue."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgpu.errors import RequestError
from pgpu.model import Gpu, Request
from pgpu.scheduling import Admission, Candidate, Cause, GpuRoom, Headroom, admit, check_can_ever_fit
from pgpu.structs import replace
from pgpu.units import GIB, MIB

P1_GPU_BYTES = 24265 * MIB
P1_JOB_BYTES = 1205 * MIB


def gpu(index: int = 0, memory_bytes: int = 24 * GIB) -> Gpu:
    return Gpu(f"GPU-{index}", "Test", index, memory_bytes, "1.0", is_simulated=False)


def room(index: int = 0, memory_bytes: int = 24 * GIB, granted_bytes: int = 0, outsiders_bytes: int = 0) -> GpuRoom:
    return GpuRoom(gpu(index, memory_bytes), 0, outsiders_bytes, granted_bytes)


def queue(*gib: float, gpu_count: int = 1) -> list[Candidate]:
    return [Candidate(f"job{number}", Request(int(amount * GIB), gpu_count)) for number, amount in enumerate(gib)]


def started(admission: Admission) -> list[str]:
    return [grant.job_id for grant in admission.grants]


rooms = st.lists(
    st.builds(
        lambda memory, headroom, outsiders, granted: (memory, headroom, outsiders, granted),
        st.integers(1, 100),
        st.integers(0, 10),
        st.integers(0, 50),
        st.integers(0, 100),
    ),
    max_size=4,
).map(lambda parts: tuple(GpuRoom(gpu(i, m), h, o, g) for i, (m, h, o, g) in enumerate(parts)))
queues = st.lists(
    st.tuples(
        st.integers(1, 60),
        st.integers(1, 3),
        st.none() | st.floats(0, 200),
        st.none() | st.sampled_from(["GPU-0", "GPU-1"]),
    ),
    max_size=12,
).map(
    lambda parts: [
        Candidate(f"job{i}", Request(m, c), d, gpu_uuid=uuid if c == 1 else None)
        for i, (m, c, d, uuid) in enumerate(parts)
    ]
)


@given(rooms, queues)
def test_no_gpu_is_ever_granted_past_its_capacity(rooms: tuple[GpuRoom, ...], queue: list[Candidate]) -> None:
    admission = admit(rooms, queue, 100.0)
    for each in rooms:
        new = sum(s.memory_bytes for g in admission.grants for s in g.slices if s.gpu_uuid == each.gpu.uuid)
        assert new == 0 or each.granted_bytes + new <= each.capacity_bytes


@given(rooms, queues)
def test_who_was_on_a_gpu_starts_there_or_waits(rooms: tuple[GpuRoom, ...], queue: list[Candidate]) -> None:
    wanted = {candidate.job_id: candidate.gpu_uuid for candidate in queue}
    for grant in admit(rooms, queue, 100.0).grants:
        assert wanted[grant.job_id] in {None, *(part.gpu_uuid for part in grant.slices)}


@given(rooms, queues)
def test_every_candidate_gets_one_answer_and_the_same_each_time(
    rooms: tuple[GpuRoom, ...], queue: list[Candidate]
) -> None:
    admission = admit(rooms, queue, 100.0)
    answered = [*started(admission), *(wait.job_id for wait in admission.waits), *admission.expired]
    assert sorted(answered) == sorted(candidate.job_id for candidate in queue)
    assert admit(rooms, list(queue), 100.0) == admission


@given(rooms, queues)
def test_somebody_starts_whenever_anybody_fits(rooms: tuple[GpuRoom, ...], queue: list[Candidate]) -> None:
    admission = admit(rooms, queue, 100.0)

    def able(candidate: Candidate) -> int:
        return sum(r.free_bytes >= candidate.request.memory_bytes and candidate.can_use(r.gpu) for r in rooms)

    fits = [candidate for candidate in queue if able(candidate) >= candidate.request.gpu_count]
    assert bool(fits) <= bool(started(admission)) or admission.waits[0].cause is Cause.MEMORY


@given(rooms, st.integers(1, 60), st.integers(1, 3), st.integers(0, 10))
def test_equal_jobs_of_one_user_start_in_order_of_arrival(
    rooms: tuple[GpuRoom, ...], memory_bytes: int, gpu_count: int, jobs: int
) -> None:
    waiting = [Candidate(f"job{number}", Request(memory_bytes, gpu_count)) for number in range(jobs)]
    admission = admit(rooms, waiting, 100.0)
    assert [*started(admission), *(wait.job_id for wait in admission.waits)] == [each.job_id for each in waiting]


@given(rooms, queues)
def test_a_grant_is_what_was_asked_for_on_distinct_gpus(rooms: tuple[GpuRoom, ...], queue: list[Candidate]) -> None:
    requests = {candidate.job_id: candidate.request for candidate in queue}
    for grant in admit(rooms, queue, 100.0).grants:
        assert len({part.gpu_uuid for part in grant.slices}) == requests[grant.job_id].gpu_count == len(grant.slices)
        assert {part.memory_bytes for part in grant.slices} == {requests[grant.job_id].memory_bytes}


@given(
    rooms,
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 6), st.integers(0, 2)), max_size=5),
    st.sampled_from([0.0, 10_000.0]),
)
def test_elements_of_an_array_are_decided_as_the_same_jobs_one_by_one(
    rooms: tuple[GpuRoom, ...], arrays: list[tuple[int, int, int]], now_seconds: float
) -> None:
    elements = [
        Candidate(f"{array}-{element}", Request(memory_bytes), owner_uid=uid)
        for array, (memory_bytes, count, uid) in enumerate(arrays)
        for element in range(count)
    ]
    # A family decides nothing without a limit of it; but no two of these are alike.
    one_by_one = [replace(each, family=(each.job_id, each.owner_uid)) for each in elements]
    at_once = admit(rooms, elements, now_seconds)
    expected = admit(rooms, one_by_one, now_seconds)
    assert at_once.grants == expected.grants
    assert [(each.job_id, each.cause, each.reason) for each in at_once.waits] == [
        (each.job_id, each.cause, each.reason) for each in expected.waits
    ]
    assert (at_once.reservation, at_once.kept, at_once.time) == (expected.reservation, expected.kept, expected.time)


@given(queues)
def test_nobody_starves_while_jobs_end(queue: list[Candidate]) -> None:
    """Every job that fits an idle machine starts within as many rounds as there are jobs."""
    machine = (room(0, 60), room(1, 60), room(2, 60))
    waiting = [Candidate(candidate.job_id, candidate.request) for candidate in queue]
    for _ in range(len(queue)):
        done = set(started(admit(machine, waiting, 0.0)))
        waiting = [candidate for candidate in waiting if candidate.job_id not in done]
    assert waiting == []


@pytest.mark.parametrize(("headroom", "jobs"), [(Headroom(), 19), (Headroom(0, 0.0), 20)])
def test_as_many_of_p1s_jobs_run_at_once_as_its_table_allows(headroom: Headroom, jobs: int) -> None:
    device = gpu(0, P1_GPU_BYTES)
    machine = [GpuRoom(device, headroom.of(device), 0, 0)]
    waiting = [Candidate(f"job{number}", Request(P1_JOB_BYTES)) for number in range(25)]
    assert len(admit(machine, waiting, 0.0).grants) == jobs


def test_equal_gpus_are_taken_in_their_order_and_the_last_stays_whole() -> None:
    admission = admit([room(0), room(1), room(2)], queue(12, 12, 12), 0.0)
    assert [grant.slices[0].gpu_uuid for grant in admission.grants] == ["GPU-0", "GPU-0", "GPU-1"]


def test_a_small_job_leaves_the_idle_gpu_whole_for_a_large_one() -> None:
    admission = admit([room(0), room(1, granted_bytes=12 * GIB)], queue(4, 24), 0.0)
    assert [grant.slices[0].gpu_uuid for grant in admission.grants] == ["GPU-1", "GPU-0"]


def test_what_outsiders_hold_is_not_granted() -> None:
    assert started(admit([room(outsiders_bytes=20 * GIB)], queue(5), 0.0)) == []
    assert started(admit([room(outsiders_bytes=19 * GIB)], queue(5), 0.0)) == ["job0"]


def test_outsiders_that_came_after_the_grants_take_no_room_below_zero() -> None:
    full = room(granted_bytes=20 * GIB, outsiders_bytes=10 * GIB)
    assert full.free_bytes == 0
    assert room(outsiders_bytes=30 * GIB).capacity_bytes == 0


def test_a_wait_that_ran_out_still_starts_if_it_fits_now() -> None:
    late = [Candidate("late", Request(GIB), 50.0), Candidate("big", Request(30 * GIB), 50.0)]
    admission = admit([room()], late, 100.0)
    assert (started(admission), admission.expired) == (["late"], ("big",))


def test_one_that_gave_up_holds_nobody_back() -> None:
    late = [Candidate("big", Request(30 * GIB), 50.0), Candidate("small", Request(GIB))]
    assert started(admit([room()], late, 100.0)) == ["small"]


@pytest.mark.parametrize(
    ("machine", "waiting", "reason"),
    [
        ([room(granted_bytes=23 * GIB)], queue(1.5), "waits for 1.5 GiB on one GPU: 1 GiB free of 24 GiB"),
        (
            [room(granted_bytes=23 * GIB), room(1, granted_bytes=24 * GIB)],
            queue(2, gpu_count=2),
            "waits for 2 GiB on each of 2 GPUs: none of 2 has that much free",
        ),
        (
            [room(outsiders_bytes=23 * GIB)],
            queue(2),
            "waits for 2 GiB on one GPU: 1 GiB free of 1 GiB, 23 GiB held by others",
        ),
        ([], queue(2), "waits for 2 GiB on one GPU: no GPU answers"),
    ],
)
def test_a_waiting_job_says_why(machine: list[GpuRoom], waiting: list[Candidate], reason: str) -> None:
    assert admit(machine, waiting, 0.0).waits[0].reason == reason


def test_a_waiting_job_counts_those_ahead() -> None:
    waits = admit([room(granted_bytes=24 * GIB)], queue(1, 1, 1), 0.0).waits
    assert [wait.reason.partition("; ")[2] for wait in waits] == ["", "1 job ahead", "2 jobs ahead"]


def test_what_can_never_fit_is_refused_with_what_could() -> None:
    with pytest.raises(RequestError) as refusal:
        check_can_ever_fit([gpu()], Request(24 * GIB), Headroom())
    assert refusal.value.nearest_bytes is not None
    check_can_ever_fit([gpu()], Request(refusal.value.nearest_bytes), Headroom())
    with pytest.raises(RequestError):
        check_can_ever_fit([gpu()], Request(refusal.value.nearest_bytes + 1), Headroom())


def test_the_nearest_for_several_gpus_is_what_the_smallest_of_them_has() -> None:
    with pytest.raises(RequestError) as refusal:
        check_can_ever_fit([gpu(0, 8 * GIB), gpu(1, 16 * GIB)], Request(10 * GIB, 2), Headroom(0, 0.0))
    assert refusal.value.nearest_bytes == 8 * GIB


def test_headroom_is_the_larger_of_an_amount_and_a_share() -> None:
    assert Headroom().of(gpu(0, 4 * GIB)) == 256 * MIB
    assert Headroom().of(gpu(0, 100 * GIB)) == 3 * GIB


def test_a_job_on_several_gpus_is_told_how_many_have_room_and_how_many_take_no_jobs() -> None:
    """An administrator has closed one: what is free on the other is not what the job waits for."""
    wait = admit([room()], queue(10, gpu_count=2), 0.0, closed_gpus=1).waits[0]
    assert wait.reason == "waits for 10 GiB on each of 2 GPUs: 1 of 1 has that much free; 1 more takes no jobs"
    machine = [room(granted_bytes=20 * GIB), room(1), room(2)]
    wait = admit(machine, queue(10, gpu_count=3), 0.0, closed_gpus=2).waits[0]
    assert wait.reason == "waits for 10 GiB on each of 3 GPUs: 2 of 3 have that much free; 2 more take no jobs"


def two_models() -> list[GpuRoom]:
    return [
        replace(room(index), gpu=replace(gpu(index), name=name))
        for index, name in enumerate(("Tesla T4", "NVIDIA A100"))
    ]


def on(*models: str, gib: int = 20) -> Request:
    return Request(gib * GIB, gpu_models=models)


def test_a_job_that_names_models_waits_for_them_beside_idle_gpus_of_others() -> None:
    waiting = [Candidate(f"job{number}", on("a100")) for number in range(2)]

    admission = admit(two_models(), waiting, 100.0)

    assert [(grant.job_id, grant.slices[0].gpu_uuid) for grant in admission.grants] == [("job0", "GPU-1")]
    [wait] = admission.waits
    assert (wait.job_id, wait.reason) == ("job1", "waits for 20 GiB on one GPU of 'a100': 4 GiB free of 24 GiB")


def test_a_job_that_names_several_models_runs_on_any_of_them() -> None:
    waiting = [Candidate(f"job{number}", on("A100", "T4")) for number in range(2)]

    assert started(admit(two_models(), waiting, 100.0)) == ["job0", "job1"]


def test_no_grant_of_a_round_is_moved_to_a_model_that_its_job_does_not_name() -> None:
    """Moving the first job to the other GPU would make room for the second one."""
    rooms = [replace(each, granted_bytes=granted * GIB) for each, granted in zip(two_models(), (10, 0), strict=True)]
    waiting = [Candidate("named", on("A100", gib=10)), Candidate("any", Request(20 * GIB))]

    admission = admit(rooms, waiting, 100.0)

    assert [(grant.job_id, grant.slices[0].gpu_uuid) for grant in admission.grants] == [("named", "GPU-1")]


def test_models_that_are_not_here_or_too_few_or_too_small_are_refused() -> None:
    gpus = [each.gpu for each in two_models()]
    check_can_ever_fit(gpus, on("tesla"), Headroom(0, 0))
    with pytest.raises(RequestError, match="1 GPU was asked for of 'H100', and there are 0") as refused:
        check_can_ever_fit(gpus, on("H100"), Headroom(0, 0))
    assert refused.value.hint == "the GPUs here are NVIDIA A100, Tesla T4"
    with pytest.raises(RequestError, match="2 GPUs were asked for of 'A100', and there is 1"):
        check_can_ever_fit(gpus, replace(on("A100"), gpu_count=2), Headroom(0, 0))
