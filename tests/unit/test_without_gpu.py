"""Jobs without a GPU have a line of their own: as many as may run, and nothing about the other line changes."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgpu.errors import RequestError
from pgpu.model import Gpu, Request, SharingWish, Slice
from pgpu.model.validation import check_request
from pgpu.scheduling import Candidate, GpuRoom, Held, Quota, admit
from pgpu.scheduling.admission_round import Admission, Cause
from pgpu.units import GIB

NOW = 10_000.0


def bare(name: str, uid: int = 0, priority: int = 0, **words: float) -> Candidate:
    return Candidate(name, Request(0, 0, priority=priority), words.get("deadline"), uid, words.get("came", NOW))


def sized(name: str, gib: int, uid: int = 0) -> Candidate:
    return Candidate(name, Request(gib * GIB), None, uid, NOW)


def rooms(count: int = 1) -> list[GpuRoom]:
    return [GpuRoom(Gpu(f"GPU-{n}", "Fake", n, 10 * GIB, "1", is_simulated=True), 0, 0, 0) for n in range(count)]


def granted(admission: Admission) -> list[str]:
    return [grant.job_id for grant in admission.grants]


def decide(
    queue: Sequence[Candidate], most: int, held: Sequence[Held] = (), quotas: dict[int, Quota] | None = None
) -> Admission:
    return admit(rooms(), queue, NOW, held=held, most_without_gpu=most, quotas=quotas)


def test_as_many_run_as_may_and_the_rest_says_why_it_waits() -> None:
    found = decide([bare("a"), bare("b"), bare("c"), bare("d")], 2, [Held("z", 0, (), 0.0)])
    assert granted(found) == ["a"]
    assert [(wait.job_id, wait.cause, wait.ahead) for wait in found.waits] == [
        (name, Cause.CROWD, ahead) for ahead, name in enumerate("bcd")
    ]
    assert found.waits[2].reason == "waits for another job without a GPU to end: as many run as may; 2 jobs ahead"


def test_they_start_where_no_gpu_is() -> None:
    assert granted(admit([], [sized("a", 1), bare("b")], NOW)) == ["b"]


def test_priority_goes_first_and_then_who_runs_fewest() -> None:
    held = [Held("z", 1, (), 0.0)]
    queue = [bare("a", 1), bare("b", 2), bare("c", 2), bare("d", 1, priority=5)]
    assert granted(decide(queue, 3, held)) == ["d", "b"]
    assert granted(decide(queue, 4, held)) == ["d", "b", "c"]


def test_a_quota_of_jobs_counts_both_kinds() -> None:
    quotas = {7: Quota(jobs=2)}
    found = decide([sized("a", 1, 7), bare("b", 7), bare("c", 7)], 9, quotas=quotas)
    assert granted(found) == ["a", "b"]
    assert [wait.cause for wait in found.waits] == [Cause.QUOTA]


def test_who_would_not_wait_is_given_up() -> None:
    assert decide([bare("a", deadline=NOW)], 0).expired == ("a",)
    assert granted(decide([bare("a", deadline=NOW)], 1)) == ["a"]


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 12), st.integers(0, 2)), max_size=12),
    st.integers(0, 4),
    st.integers(0, 3),
)
def test_the_line_for_gpus_is_what_it_is_without_them(
    jobs: list[tuple[bool, int, int]], most: int, running: int
) -> None:
    queue = [bare(f"b{n}", uid) if is_bare else sized(f"g{n}", gib, uid) for n, (is_bare, gib, uid) in enumerate(jobs)]
    held = [Held("x", 1, (Slice("GPU-0", 2 * GIB),), 0.0), *(Held(f"r{n}", 0, (), 0.0) for n in range(running))]
    both = admit(rooms(2), queue, NOW, held=held, most_without_gpu=most)
    alone = admit(rooms(2), [each for each in queue if each.request.gpu_count], NOW, held=held)
    assert [grant for grant in both.grants if grant.slices] == list(alone.grants)
    assert list(both.waits)[: len(alone.waits)] == list(alone.waits)
    assert sum(not grant.slices for grant in both.grants) == min(
        max(0, most - running), sum(each.request.is_without_gpu for each in queue)
    )


@pytest.mark.parametrize(
    "request_",
    [
        Request(1, 0),
        Request(0, 0, 0.5),
        Request(0, 0, is_estimated=True),
        Request(0, 0, sharing=SharingWish.MPS),
        Request(0, 0, preempts=True),
        Request(0, 0, retries_out_of_memory=True),
        Request(0, -1),
        Request(0, 1),
    ],
)
def test_words_about_gpus_are_refused_without_one(request_: Request) -> None:
    with pytest.raises(RequestError):
        check_request(request_)
    check_request(Request(0, 0, priority=3))
