"""Jobs in the answers of a server: of an array the first element, and of those that equal it only id and index.

A submission, or the cancellation, of ten thousand jobs has an answer of some hundred kilobytes that way.
"""

from collections.abc import Iterable, Iterator

from pgpu.model import Job
from pgpu.structs import Struct, replace


class ArrayElement(Struct, frozen=True):
    """One more element of an array: as the last whole job of the answer, but for id, index and name."""

    id: str
    array_index: int


JOBS = tuple[ArrayElement | Job, ...]
"""Type of such an answer."""


def compact(jobs: Iterable[Job]) -> Iterator[Job | ArrayElement]:
    """Yield jobs, as an `ArrayElement` where the last whole one tells the rest."""
    first: Job | None = None
    for job in jobs:
        index = job.place.array_index
        if first is not None and index is not None and job == _element(first, job.id, index):
            yield ArrayElement(job.id, index)
        else:
            first = job
            yield job


def restore(answer: Iterable[Job | ArrayElement]) -> Iterator[Job]:
    """Yield the jobs of which `compact` made an answer."""
    first: Job | None = None
    for each in answer:
        if isinstance(each, Job):
            first = each
            yield each
        elif first is not None:
            yield _element(first, each.id, each.array_index)


def _element(first: Job, job_id: str, index: int) -> Job:
    """Return the job that differs from an element of an array in id, index and name alone."""
    spec = first.spec
    if spec.name is not None:
        spec = replace(spec, name=f"{spec.name.removesuffix(f'-{first.place.array_index}')}-{index}")
    return replace(first, id=job_id, spec=spec, place=replace(first.place, array_index=index))
