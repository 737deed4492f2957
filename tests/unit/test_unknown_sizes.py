"""Jobs whose need nobody knows take what is free where they are placed, and no less than is careful."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from pgpu.model import Gpu, Request, Slice
from pgpu.scheduling import Admission, Candidate, GpuRoom, Held, OrderRules, Quota, admit
from pgpu.scheduling.quota_usage import QuotaUsage

NOW = 10_000.0


def room(index: int, total: int, granted: int = 0) -> GpuRoom:
    return GpuRoom(Gpu(f"GPU-{index}", "Test", index, total, "1.0", is_simulated=False), 0, 0, granted)


def unknown(name: str, careful: int = 8, *, uid: int = 0, count: int = 1, lasts: float | None = None) -> Candidate:
    return Candidate(name, Request(careful, count), None, uid, NOW, lasts, takes_free=True)


def sizes(admission: Admission) -> dict[str, list[int]]:
    return {grant.job_id: [part.memory_bytes for part in grant.slices] for grant in admission.grants}


def test_one_takes_all_that_is_free_and_no_less_than_is_careful() -> None:
    assert sizes(admit([room(0, 23)], [unknown("one")], NOW)) == {"one": [23]}
    assert sizes(admit([room(0, 23, granted=10)], [unknown("one")], NOW)) == {"one": [13]}
    assert sizes(admit([room(0, 23, granted=20)], [unknown("one")], NOW)) == {}


def test_two_that_come_at_once_start_at_once_each_with_what_is_free_on_its_gpu() -> None:
    machine = [room(0, 23), room(1, 23, granted=9)]
    assert sizes(admit(machine, [unknown("first"), unknown("second")], NOW)) == {"first": [23], "second": [14]}


def test_two_users_with_quotas_share_a_gpu_at_once() -> None:
    quotas = {1: Quota(12), 2: Quota(12)}
    waiting = [unknown("hers", uid=1), unknown("his", uid=2)]
    assert sizes(admit([room(0, 23)], waiting, NOW, quotas=quotas)) == {"hers": [12], "his": [11]}


def test_one_takes_no_more_than_its_user_s_quota_leaves() -> None:
    held = [Held("other", 1, (Slice("GPU-0", 3),), NOW)]
    machine = [room(0, 23, granted=3)]
    assert sizes(admit(machine, [unknown("one", uid=1)], NOW, held=held, quotas={1: Quota(13)})) == {"one": [10]}
    assert sizes(admit(machine, [unknown("one", uid=1)], NOW, held=held, quotas={1: Quota(10)})) == {}
    assert sizes(admit(machine, [unknown("one", uid=2)], NOW, held=held, quotas={1: Quota(13)})) == {"one": [20]}


def test_on_several_gpus_it_takes_what_is_free_on_each_of_them() -> None:
    machine = [room(0, 23), room(1, 23, granted=9), room(2, 23, granted=12)]
    assert sizes(admit(machine, [unknown("one", count=2)], NOW)) == {"one": [14, 14]}


def test_beside_memory_that_is_kept_for_another_it_takes_what_is_careful() -> None:
    """The large one starts once what runs has ended, and then 3 are left."""
    held = [Held("runs", 0, (Slice("GPU-0", 10),), NOW, 0.0, 60)]
    large = Candidate("large", Request(20), None, 1, NOW - 1900)
    waiting = [large, unknown("short", 2), unknown("long", 4)]
    assert sizes(admit([room(0, 23, granted=10)], waiting, NOW, held=held)) == {"short": [2]}


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 60)), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 2), st.booleans(), st.integers(0, 2)), max_size=8),
    st.integers(1, 100),
)
def test_nobody_gets_less_than_is_careful_or_more_than_there_is(
    gpus: Sequence[tuple[int, int]], jobs: Sequence[tuple[int, int, bool, int]], quota: int
) -> None:
    machine = [room(index, total, min(total, granted)) for index, (total, granted) in enumerate(gpus)]
    waiting = [
        Candidate(f"job{place}", Request(size, count), None, uid, NOW, None, takes_free=takes)
        for place, (size, count, takes, uid) in enumerate(jobs)
    ]
    admission = admit(machine, waiting, NOW, quotas={1: Quota(quota)})
    known = {each.job_id: each for each in waiting}
    for each in machine:
        given_out = [s.memory_bytes for g in admission.grants for s in g.slices if s.gpu_uuid == each.gpu.uuid]
        assert sum(given_out) <= each.free_bytes
    for grant in admission.grants:
        candidate, taken = known[grant.job_id], grant.slices[0].memory_bytes
        assert taken >= candidate.request.memory_bytes
        assert candidate.takes_free or taken == candidate.request.memory_bytes
    theirs = [s.memory_bytes for g in admission.grants for s in g.slices if known[g.job_id].owner_uid == 1]
    assert sum(theirs) <= quota


def test_who_has_no_quota_of_memory_is_bound_by_nothing_but_the_gpus() -> None:
    allowances = QuotaUsage(
        [Held("runs", 1, (Slice("GPU-0", 3),), NOW)], {1: Quota(13), 2: Quota(jobs=4)}, OrderRules(), NOW
    )
    assert [allowances.left_bytes(uid) for uid in (1, 2, 3)] == [10, None, None]
