"""Submissions that are handed in together become jobs: an array's elements each with its number, nobody before whom it awaits.

Pure. It refuses to look names up that are not of the batch: its caller does.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter

from pgpu.errors import RequestError
from pgpu.model import Array, JobSpec, Place, Submission
from pgpu.model.job import MOST_ELEMENTS

INDEX_VARIABLE = "PGPU_ARRAY_INDEX"
ARRAY_VARIABLE = "PGPU_ARRAY_ID"


@dataclass(frozen=True, slots=True)
class Element:
    """One job to be."""

    job_id: str
    spec: JobSpec
    place: Place
    submission: Submission


def expand(
    submissions: Sequence[Submission], find: Callable[[str], Sequence[str]], new_id: Callable[[], str]
) -> list[Element]:
    """Make jobs of submissions.

    Args:
        submissions: Handed in together.
        find: Returns the ids of the jobs that a word stands for that is no name of these.
        new_id: Returns another id each time.

    Returns:
        The jobs, each after those it waits for.

    Raises:
        RequestError: They wait for each other, an array is none, or there are too many.
    """
    check_count(submissions)
    named: dict[str, list[str]] = {}
    made: list[Element] = []
    for submission in order_submissions(submissions):
        after = dict.fromkeys(job_id for word in submission.after for job_id in named.get(word) or find(word))
        some = list(_elements(submission, tuple(after), new_id))
        if submission.spec.name is not None:
            named[submission.spec.name] = [element.job_id for element in some]
            named |= {element.spec.name: [element.job_id] for element in some if element.spec.name}
        made += some
    return made


def check_count(submissions: Sequence[Submission]) -> None:
    """Refuse more jobs at once than a queue is built for.

    Raises:
        RequestError: There are too many.
    """
    count = sum(1 if each.array is None else len(each.array.indices) for each in submissions)
    if count > MOST_ELEMENTS:
        raise RequestError(
            f"one request is for at most {MOST_ELEMENTS} jobs, and this one is for {count}",
            hint="submit several smaller ones",
        )


def order_submissions(submissions: Sequence[Submission]) -> list[Submission]:
    """Return submissions so that nobody comes before whom it waits for, and else as they came.

    Raises:
        RequestError: They wait for each other, or two have one name.
    """
    places = _places(submissions)
    graph: TopologicalSorter[int] = TopologicalSorter()
    for place, submission in enumerate(submissions):
        graph.add(place, *(places[word] for word in submission.after if word in places))
    try:
        graph.prepare()
    except CycleError as exc:
        circle = " → ".join(submissions[place].spec.name or "?" for place in reversed(exc.args[1]))
        raise RequestError(f"these jobs would wait for each other: {circle}", hint="leave one `after` out") from exc
    return [submissions[place] for place in _first_things_first(graph)]


def _places(submissions: Sequence[Submission]) -> dict[str, int]:
    """Return which of them each name means."""
    places: dict[str, int] = {}
    for place, submission in enumerate(submissions):
        for name in _names(submission):
            if name in places:
                raise RequestError(f"{name!r} is the name of two of these jobs", hint="give them names of their own")
            places[name] = place
    return places


def _names(submission: Submission) -> list[str]:
    """Return its own name, and those of its elements."""
    name, array = submission.spec.name, submission.array
    if not name:
        return []
    return [name, *(element_name(name, index) for index in (array.indices if array is not None else ()))]


def element_name(name: str, index: int) -> str:
    """Return how an element of an array is called, in `after` as everywhere."""
    return f"{name}-{index}"


def _first_things_first(graph: TopologicalSorter[int]) -> Iterator[int]:
    """Yield the smallest number that waits for nobody any more, again and again."""
    ready: list[int] = list(graph.get_ready())
    heapq.heapify(ready)
    while ready:
        place = heapq.heappop(ready)
        yield place
        graph.done(place)
        for freed in graph.get_ready():
            heapq.heappush(ready, freed)


def _elements(submission: Submission, after: tuple[str, ...], new_id: Callable[[], str]) -> Iterator[Element]:
    array, spec = submission.array, submission.spec
    if array is None:
        yield Element(new_id(), spec, Place(after), submission)
        return
    _check(array)
    array_id = new_id()
    for index in array.indices:
        variables = ((ARRAY_VARIABLE, array_id), (INDEX_VARIABLE, str(index)))
        own = replace(
            spec, name=spec.name and element_name(spec.name, index), environment=(*spec.environment, *variables)
        )
        yield Element(new_id(), own, Place(after, array_id, index, array.most_at_once), submission)


def _check(array: Array) -> None:
    if not array.indices or len(set(array.indices)) < len(array.indices) or min(array.indices) < 0:
        raise RequestError("an array's indices are distinct numbers from 0 on", hint="write 0-9, 0-9:2 or 1,3,7")
    if array.most_at_once is not None and array.most_at_once < 1:
        raise RequestError("of an array at least one job may run at a time", hint="write 0-9%2")
