"""What jobs that take no turns leave of a GPU to those that do."""

from pgpu.engine.watch.turn_arbiter import device_only_bytes
from pgpu.ledger import Entry
from pgpu.model import Job, JobSpec, JobState, Lease, Request, Slice
from pgpu.structs import replace
from pgpu.units import GIB

GPU, OTHER = "GPU-0", "GPU-1"


def entry(job_id: str, *, gib: int = 2, gpu: str = GPU, oversubscribes: bool = False, by: str | None = None) -> Entry:
    job = Job(
        id=job_id,
        spec=JobSpec(command=("true",), runtime="process"),
        request=Request(gib * GIB, oversubscribes=oversubscribes),
        state=JobState.RUNNING,
        created_at_seconds=0.0,
        lease=Lease(job_id, (Slice(gpu, gib * GIB),), 0.0),
        suspended_by=by,
    )
    return Entry(job)


def test_slices_of_jobs_without_oversubscription_count_whole_on_their_own_gpu() -> None:
    entries = [entry("one"), entry("two", gib=3), entry("elsewhere", gpu=OTHER), entry("pages", oversubscribes=True)]

    assert device_only_bytes(entries, GPU, {}) == 5 * GIB


def test_of_a_suspended_job_that_oversubscribes_what_stays_counts() -> None:
    suspended = entry("pages", oversubscribes=True, by="urgent")

    assert device_only_bytes([suspended], GPU, {("pages", GPU): GIB}) == GIB


def test_what_stays_of_a_suspended_job_that_oversubscribes_counts_once_it_holds_still_too() -> None:
    entries = [entry("pages", oversubscribes=True, by="urgent"), entry("urgent")]

    assert device_only_bytes(entries, GPU, {("pages", GPU): GIB}, away=["pages"]) == 3 * GIB


def test_who_left_as_a_whole_takes_nothing_and_who_has_its_place_counts() -> None:
    entries = [entry("left", by="urgent"), entry("urgent")]

    assert device_only_bytes(entries, GPU, {}, away=["left"]) == 2 * GIB
    assert device_only_bytes(entries, GPU, {}) == 4 * GIB


def test_the_place_of_who_left_is_kept_for_it_once_nobody_has_it_any_more() -> None:
    left = entry("left", by="urgent")

    assert device_only_bytes([left], GPU, {}, away=["left"]) == 2 * GIB
    ended = replace(entry("urgent"), lease_released_at_seconds=1.0)
    assert device_only_bytes([left, ended], GPU, {}, away=["left"]) == 2 * GIB


def test_who_is_parked_takes_nothing() -> None:
    there = entry("there", gib=3)
    parked = replace(there, job=replace(there.job, parked_at_seconds=1.0))

    assert device_only_bytes([parked, there], GPU, {}) == 3 * GIB
