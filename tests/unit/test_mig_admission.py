"""Who gets which MIG instance: whole, to one job, the smallest that covers the request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgpu.errors import RequestError
from pgpu.model import Gpu, Request
from pgpu.scheduling import Candidate, GpuRoom, Headroom, admit, check_can_ever_fit
from pgpu.scheduling.capacity import IDLE_INSTANCE_BYTES
from pgpu.units import GIB


def instance(number: int, memory_bytes: int) -> Gpu:
    return Gpu(
        f"MIG-{number}", "Test", 0, memory_bytes, "1.0", is_simulated=False, parent_uuid="GPU-0", mig_index=number
    )


def whole(number: int, memory_bytes: int = 24 * GIB) -> Gpu:
    return Gpu(f"GPU-{number}", "Test", number, memory_bytes, "1.0", is_simulated=False)


def room(gpu: Gpu, granted_bytes: int = 0, outsiders_bytes: int = 0) -> GpuRoom:
    return GpuRoom(gpu, Headroom().of(gpu), outsiders_bytes, granted_bytes)


def queue(*gib: float) -> list[Candidate]:
    return [Candidate(f"job{number}", Request(int(amount * GIB))) for number, amount in enumerate(gib)]


def placed(rooms: list[GpuRoom], waiting: list[Candidate]) -> dict[str, str]:
    return {grant.job_id: grant.slices[0].gpu_uuid for grant in admit(rooms, waiting, 0.0).grants}


machines = st.lists(st.tuples(st.integers(1, 80), st.booleans(), st.booleans()), max_size=6).map(
    lambda parts: [
        room(instance(i, m * GIB) if is_instance else whole(i, m * GIB), m * GIB if is_taken else 0)
        for i, (m, is_instance, is_taken) in enumerate(parts)
    ]
)
queues = st.lists(st.tuples(st.integers(1, 80), st.integers(1, 2)), max_size=8).map(
    lambda parts: [Candidate(f"job{i}", Request(m * GIB, c)) for i, (m, c) in enumerate(parts)]
)


@given(machines, queues)
def test_an_instance_is_never_given_to_two_jobs_nor_to_a_job_on_several_gpus(
    machine: list[GpuRoom], waiting: list[Candidate]
) -> None:
    grants = admit(machine, waiting, 0.0).grants
    for each in machine:
        theirs = [grant for grant in grants if any(part.gpu_uuid == each.gpu.uuid for part in grant.slices)]
        if each.gpu.is_instance:
            assert len(theirs) <= (0 if each.granted_bytes else 1)
            assert all(len(grant.slices) == 1 for grant in theirs)


@given(machines, st.integers(1, 80))
def test_the_head_gets_the_smallest_free_instance_that_covers_it(machine: list[GpuRoom], gib: int) -> None:
    covering = [
        each.gpu.memory_bytes
        for each in machine
        if each.gpu.is_instance and not each.granted_bytes and each.gpu.memory_bytes >= gib * GIB
    ]
    where = placed(machine, queue(gib)).get("job0")
    if covering:
        assert next(each.gpu.memory_bytes for each in machine if each.gpu.uuid == where) == min(covering)
    else:
        assert where is None or where.startswith("GPU-")


def test_each_job_gets_an_instance_of_its_own_and_the_next_one_waits() -> None:
    machine = [room(instance(0, 10 * GIB)), room(instance(1, 20 * GIB)), room(instance(2, 40 * GIB))]
    assert placed(machine, queue(15, 15, 15, 15)) == {"job0": "MIG-1", "job1": "MIG-2"}
    assert admit(machine, queue(15, 15, 15, 15), 0.0).waits[0].reason == (
        "waits for 15 GiB on one GPU: at most 10 GiB free of 10 GiB on any of 3"
    )


def test_all_of_an_instance_can_be_asked_for() -> None:
    check_can_ever_fit([instance(0, 10 * GIB)], Request(10 * GIB), Headroom())
    assert placed([room(instance(0, 10 * GIB))], queue(10)) == {"job0": "MIG-0"}


def test_a_slice_may_grow_to_all_of_its_instance_and_not_past_it() -> None:
    assert room(instance(0, 10 * GIB), granted_bytes=10 * GIB).most_bytes(2 * GIB) == 10 * GIB
    gpu = whole(0)
    full = gpu.memory_bytes - Headroom().of(gpu)
    assert room(gpu, granted_bytes=3 * GIB).most_bytes(2 * GIB) == full - GIB


@pytest.mark.parametrize(
    ("outsiders_bytes", "is_free"), [(IDLE_INSTANCE_BYTES, True), (IDLE_INSTANCE_BYTES + 1, False)]
)
def test_an_instance_that_somebody_else_uses_is_not_granted(outsiders_bytes: int, *, is_free: bool) -> None:
    machine = [room(instance(0, 10 * GIB), outsiders_bytes=outsiders_bytes)]
    assert bool(placed(machine, queue(1))) is is_free


def test_a_job_on_several_gpus_is_refused_where_there_are_only_instances() -> None:
    with pytest.raises(RequestError, match="2 GPUs were asked for, and there are 0") as refusal:
        check_can_ever_fit([instance(0, GIB), instance(1, GIB)], Request(GIB, 2), Headroom())
    assert refusal.value.hint == "a process can use only one MIG instance, so they are given to jobs on one GPU"
