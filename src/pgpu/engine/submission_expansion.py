"""The jobs that submissions handed in together stand for: arrays expanded, each job after those it waits for. Pure."""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from graphlib import CycleError, TopologicalSorter

from pgpu.advising.memory_demand import program_of
from pgpu.errors import RequestError
from pgpu.model import Batch, JobSpec, Place, Request, Submission
from pgpu.model.job import MOST_ELEMENTS
from pgpu.structs import Struct, replace

MANY_JOBS = 100
"""A server handles one request for more jobs at a time."""


class Element(Struct, frozen=True):
    """One future job."""

    job_id: str
    spec: JobSpec
    place: Place
    submission: Submission


def expand(
    submissions: Sequence[Submission], find: Callable[[str], Sequence[str]], new_id: Callable[[], str]
) -> list[Element]:
    """Return the jobs that submissions stand for, each after its predecessors.

    Args:
        submissions: Handed in together.
        find: Returns the ids of the existing jobs that a word of `after` names.
        new_id: Returns another id each time.

    Raises:
        RequestError: Their dependencies are circular, an array is empty or malformed, or there are too many.
    """
    check_count(submissions)
    ids_by_name: dict[str, list[str]] = {}
    find = cache(find)  # thousands of submissions may name one array of thousands
    found: list[Element] = []
    for submission in order_submissions(submissions):
        # A name in the same request hides that of a job in the ledger.
        after = dict.fromkeys(job_id for word in submission.after for job_id in ids_by_name.get(word) or find(word))
        elements = list(_expand_array(submission, tuple(after), new_id))
        if submission.spec.name is not None:
            ids_by_name[submission.spec.name] = [element.job_id for element in elements]
            ids_by_name |= {element.spec.name: [element.job_id] for element in elements if element.spec.name}
        found += elements
    return found


def with_batches(elements: Sequence[Element]) -> list[Element]:
    """Return the jobs of one submission, those that request the same for the same program as one batch."""
    groups: dict[tuple[str, Request], list[Element]] = defaultdict(list)
    for each in elements:
        if each.submission.signature and each.submission.request.gpu_count == 1:
            groups[program_of(each.submission.signature), each.submission.request].append(each)
    batches = {
        each.job_id: Batch(group[0].job_id, len(group)) for group in groups.values() if len(group) > 1 for each in group
    }
    return [replace(each, place=replace(each.place, batch=batches.get(each.job_id))) for each in elements]


def count_jobs(submissions: Sequence[Submission]) -> int:
    """Return how many jobs submissions stand for."""
    return sum(1 if each.array is None else len(each.array.indices) for each in submissions)


def check_count(submissions: Sequence[Submission]) -> None:
    """Raise RequestError for more jobs at once than `MOST_ELEMENTS`."""
    count = count_jobs(submissions)
    if count > MOST_ELEMENTS:
        raise RequestError(
            f"one request is for at most {MOST_ELEMENTS} jobs, and this one is for {count}",
            hint="submit several smaller ones",
        )


def order_submissions(submissions: Sequence[Submission]) -> list[Submission]:
    """Return submissions with each after those it waits for, and otherwise in the given order.

    Raises:
        RequestError: Their dependencies are circular, or two have one name.
    """
    index_by_name: dict[str, int] = {}
    for index, submission in enumerate(submissions):
        # By these names `after` may mean a submission: its own, and those of its elements.
        own_name, array = submission.spec.name, submission.array
        indices = array.indices if array is not None else ()
        for name in [own_name, *(element_name(own_name, each) for each in indices)] if own_name else ():
            if name in index_by_name:
                raise RequestError(f"{name!r} is the name of two of these jobs", hint="give them names of their own")
            index_by_name[name] = index
    graph: TopologicalSorter[int] = TopologicalSorter()
    for index, submission in enumerate(submissions):
        graph.add(index, *(index_by_name[word] for word in submission.after if word in index_by_name))
    try:
        graph.prepare()
    except CycleError as exc:
        circle = " → ".join(submissions[index].spec.name or "?" for index in reversed(exc.args[1]))
        raise RequestError(f"these jobs would wait for each other: {circle}", hint="leave one `after` out") from exc
    return [submissions[index] for index in _smallest_ready_first(graph)]


def element_name(name: str, index: int) -> str:
    """Return the name of one element of an array."""
    return f"{name}-{index}"


def _smallest_ready_first(graph: TopologicalSorter[int]) -> Iterator[int]:
    # Topological order; of several ready nodes the smallest, which keeps the given order stable.
    ready: list[int] = list(graph.get_ready())
    heapq.heapify(ready)
    while ready:
        index = heapq.heappop(ready)
        yield index
        graph.done(index)
        for freed in graph.get_ready():
            heapq.heappush(ready, freed)


def _expand_array(submission: Submission, after: tuple[str, ...], new_id: Callable[[], str]) -> Iterator[Element]:
    array, spec = submission.array, submission.spec
    if array is None:
        yield Element(new_id(), spec, Place(after), submission)
        return
    if not array.indices or len(set(array.indices)) < len(array.indices) or min(array.indices) < 0:
        raise RequestError("an array's indices are distinct numbers from 0 on", hint="write 0-9, 0-9:2 or 1,3,7")
    if array.most_at_once is not None and array.most_at_once < 1:
        raise RequestError("of an array at least one job may run at a time", hint="write 0-9%2")
    array_id = new_id()
    for index in array.indices:
        # One command, environment and list of volumes for all elements: the ledger stores them once.
        own = spec if spec.name is None else replace(spec, name=element_name(spec.name, index))
        yield Element(new_id(), own, Place(after, array_id, index, array.most_at_once), submission)
