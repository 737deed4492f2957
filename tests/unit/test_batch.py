"""Submissions become jobs in an order in which nobody comes before whom it waits for."""

import itertools
from collections.abc import Callable, Sequence

import pytest

from pgpu.engine.submission_expansion import Element, expand, order_submissions, with_batches
from pgpu.errors import JobNotFoundError, RequestError
from pgpu.model import Array, Batch, JobSpec, Request, Submission
from pgpu.model.job import MOST_ELEMENTS
from pgpu.units import MIB


def submission(name: str | None = None, *after: str, array: Array | None = None) -> Submission:
    return Submission(JobSpec(("true",), "process", name=name), Request(MIB), after, array)


def counted() -> Callable[[], str]:
    numbers = itertools.count(1)
    return lambda: str(next(numbers))


def nobody(word: str) -> Sequence[str]:
    raise JobNotFoundError(f"no job has the id or name {word!r}")


def made(*submissions: Submission, find: Callable[[str], Sequence[str]] = nobody) -> list[Element]:
    return expand(submissions, find, counted())


def test_jobs_keep_their_order_where_nobody_waits() -> None:
    assert [each.spec.name for each in made(submission("a"), submission(), submission("c"))] == ["a", None, "c"]


def test_whoever_others_wait_for_comes_first() -> None:
    jobs = made(submission("last", "middle"), submission("middle", "first"), submission("first"))
    assert [each.spec.name for each in jobs] == ["first", "middle", "last"]
    assert [each.place.after for each in jobs] == [(), ("1",), ("2",)]


def test_jobs_come_in_the_order_of_the_batch_as_far_as_they_can() -> None:
    jobs = order_submissions(
        [submission("a"), submission("b", "a"), submission("c"), submission("d", "f"), submission("f")]
    )
    assert [job.spec.name for job in jobs] == ["a", "b", "c", "f", "d"]


def test_a_chain_of_thousands_is_arranged() -> None:
    chain = [submission(f"j{place}", f"j{place + 1}") for place in range(5000)]
    assert order_submissions([*chain, submission("j5000")])[0].spec.name == "j5000"


def test_a_name_of_the_batch_beats_one_of_the_ledger() -> None:
    jobs = made(submission("a"), submission("b", "a", "old"), find=lambda word: [f"ledger's {word}"])
    assert jobs[1].place.after == ("1", "ledger's old")


def test_jobs_that_many_submissions_name_are_looked_up_once() -> None:
    words: list[str] = []

    def find(word: str) -> Sequence[str]:
        words.append(word)
        return ["ledger's"]

    assert [each.place.after for each in made(*[submission(None, "old")] * 3, find=find)] == [("ledger's",)] * 3
    assert words == ["old"]


def test_one_element_of_an_array_of_the_batch_can_be_waited_for_and_beats_an_older_job_of_its_name() -> None:
    jobs = made(
        submission("end", "train-3"), submission("train", array=Array((3, 5))), find=lambda word: [f"ledger's {word}"]
    )
    assert [each.spec.name for each in jobs] == ["train-3", "train-5", "end"]
    assert jobs[2].place.after == (jobs[0].job_id,)


def test_an_element_that_the_array_of_the_batch_has_not_is_looked_for_among_older_jobs() -> None:
    with pytest.raises(JobNotFoundError, match="train-4"):
        made(submission("train", array=Array((3, 5))), submission("end", "train-4"))


def test_an_array_cannot_wait_for_what_waits_for_one_of_its_elements() -> None:
    with pytest.raises(RequestError, match="train → mid → train"):
        made(submission("train", "mid", array=Array((3, 5))), submission("mid", "train-3"))


def test_a_name_that_two_of_a_batch_would_have_is_refused() -> None:
    with pytest.raises(RequestError, match="'train-3' is the name of two"):
        made(submission("train", array=Array((3, 5))), submission("train-3"), submission("end", "train-3"))


def test_one_that_is_named_twice_is_waited_for_once() -> None:
    assert made(submission("a"), submission("b", "a", "a"))[1].place.after == ("1",)


@pytest.mark.parametrize(
    ("submissions", "circle"),
    [
        ((submission("a", "b"), submission("b", "a")), "a → b → a"),
        ((submission("self", "self"),), "self → self"),
        ((submission("x"), submission("a", "c"), submission("b", "a"), submission("c", "b")), "→"),
    ],
)
def test_jobs_that_wait_for_each_other_are_refused(submissions: Sequence[Submission], circle: str) -> None:
    with pytest.raises(RequestError, match="would wait for each other") as caught:
        order_submissions(submissions)
    assert circle in str(caught.value)


def test_each_element_of_an_array_has_its_number() -> None:
    jobs = made(submission("train", array=Array((3, 5), 1)), submission("end", "train"))
    assert [each.spec.name for each in jobs] == ["train-3", "train-5", "end"]
    assert [each.place.array_index for each in jobs] == [3, 5, None]
    assert {each.place.array_id for each in jobs[:2]} == {"1"}
    assert jobs[0].place.variables == (("PGPU_ARRAY_ID", "1"), ("PGPU_ARRAY_INDEX", "3"))
    assert jobs[0].spec.environment is jobs[1].spec.environment
    assert jobs[2].place.variables == ()
    assert jobs[0].place.array_most_at_once == 1
    assert jobs[2].place.after == (jobs[0].job_id, jobs[1].job_id)


@pytest.mark.parametrize(
    "array", [Array(()), Array((1, 1)), Array((-1,)), Array(tuple(range(MOST_ELEMENTS + 1))), Array((1,), 0)]
)
def test_what_is_no_array_is_refused(array: Array) -> None:
    with pytest.raises(RequestError):
        made(submission(array=array))


def test_a_word_that_nobody_knows_is_refused() -> None:
    with pytest.raises(JobNotFoundError):
        made(submission("a", "who"))


def test_a_request_is_for_so_many_jobs_with_the_elements_of_its_arrays_counted() -> None:
    half = Array(tuple(range(MOST_ELEMENTS // 2)))
    assert len(made(submission("a", array=half), submission("b", array=half))) == MOST_ELEMENTS
    with pytest.raises(RequestError, match=f"at most {MOST_ELEMENTS} jobs, and this one is for {MOST_ELEMENTS + 1}$"):
        made(submission("a", array=half), submission("b", array=half), submission())


def signed(signature: str, memory_bytes: int = MIB, gpu_count: int = 1, array: Array | None = None) -> Submission:
    request = Request(memory_bytes, gpu_count)
    return Submission(JobSpec(("true",), "process"), request, array=array, signature=signature)


def test_equal_requests_of_one_program_in_one_submission_are_a_batch() -> None:
    jobs = with_batches(
        made(
            signed("train@1 --lr=1", array=Array((0, 1))),
            signed("train@1 --lr=2"),
            signed("train@1 --lr=3", 2 * MIB),
            signed("other@1"),
            signed("", array=Array((0, 1))),
            signed("wide@1", gpu_count=2, array=Array((0, 1))),
        )
    )
    batch = Batch(jobs[0].job_id, 3)
    assert [each.place.batch for each in jobs] == [batch] * 3 + [None] * 6
    assert [each.place.array_index for each in jobs] == [0, 1, None, None, None, 0, 1, 0, 1]
