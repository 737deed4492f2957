"""What jobs of unknown size ask for, when a job is tried again, and which program a command is."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgpu.advising.memory_demand import Basis, estimate, shrunk_bytes
from pgpu.enforcement import SliceUse
from pgpu.engine.admission.dependencies import cancel_entry
from pgpu.engine.history.retry_policy import EndedRun, NextTry, observe_end
from pgpu.engine.history.run_history import NOTHING, MemoryObservation, RunHistory
from pgpu.engine.job_submission import signature_of_job
from pgpu.errors import NodeError
from pgpu.ledger import Decision, Entry, Waiting
from pgpu.ledger.ledger import migrate
from pgpu.model import Gpu, Job, JobSpec, JobState, Lease, Request, Run, SharingWish, Slice
from pgpu.scheduling import GpuRoom, Headroom, Quota
from pgpu.structs import replace
from pgpu.units import GIB, MIB

GPU = Gpu("GPU-" + "0" * 36, "RTX 3090", 0, 24 * GIB, "615.42.01", is_simulated=True)
LEARNING = RunHistory("rtx-3090", Headroom(GIB, 0.0))
MOST_BYTES = 23 * GIB
UNKNOWN = Waiting("a" * 12, Request(8 * GIB, is_estimated=True, basis="unknown"), 1000, 0.0, None, "a@b", False)
FAILED = Job(
    id="a" * 12,
    spec=JobSpec(("train",), "process"),
    request=Request(4 * GIB, retries_out_of_memory=True),
    state=JobState.EXITED,
    created_at_seconds=0.0,
    exit_code=1,
)
OBSERVED = MemoryObservation(4 * GIB, 4 * GIB - MIB, 254 * MIB, 1, attempted_bytes=5 * GIB, refused_at_bytes=4 * GIB)


def a_room(granted_bytes: int = 0, outsiders_bytes: int = 0) -> GpuRoom:
    return GpuRoom(GPU, GIB, outsiders_bytes, granted_bytes)


def asked(waiting: Waiting, room: GpuRoom, quota_bytes: int | None = None) -> int:
    (found,) = LEARNING.update_sizes([room], [waiting], {1000: Quota(quota_bytes)})
    return found.request.memory_bytes


def test_a_parked_job_asks_for_the_slice_that_it_had() -> None:
    for basis in ("unknown", "alone"):
        parked = replace(UNKNOWN, request=replace(UNKNOWN.request, basis=basis), gpu_uuid=GPU.uuid)
        assert asked(parked, a_room(), quota_bytes=GIB) == 8 * GIB


def test_every_other_job_asks_for_what_it_asks() -> None:
    for basis in ("unknown", "history", "retry", None):
        known = replace(UNKNOWN, request=replace(UNKNOWN.request, basis=basis))
        assert asked(known, a_room(outsiders_bytes=20 * GIB)) == 8 * GIB


def test_a_job_of_unknown_size_follows_a_quota_that_was_made_smaller() -> None:
    assert asked(UNKNOWN, a_room(), 5 * GIB) == 5 * GIB
    on_two = replace(UNKNOWN, request=replace(UNKNOWN.request, gpu_count=2))
    assert asked(on_two, a_room(), 5 * GIB) == 5 * GIB // 2
    assert asked(UNKNOWN, a_room(), 50 * GIB) == 8 * GIB
    known = replace(UNKNOWN, request=replace(UNKNOWN.request, basis="history"))
    assert asked(known, a_room(), 5 * GIB) == 8 * GIB, "it needs so much, and says what it waits for"


def test_the_last_try_has_all_that_jobs_can_have_beside_outsiders() -> None:
    alone = replace(UNKNOWN, request=Request(4 * GIB, basis="alone"))
    assert asked(alone, a_room(granted_bytes=20 * GIB)) == MOST_BYTES
    assert asked(alone, a_room(outsiders_bytes=2 * GIB)) == 21 * GIB
    assert asked(alone, a_room(), 5 * GIB) == 5 * GIB


@given(st.integers(0, 24 * GIB), st.integers(0, 24 * GIB))
def test_a_last_try_waits_rather_than_have_less_than_what_was_too_small(least_bytes: int, outsiders_bytes: int) -> None:
    alone = replace(UNKNOWN, request=Request(least_bytes, basis="alone"))
    assert asked(alone, a_room(outsiders_bytes=outsiders_bytes)) >= least_bytes


@given(st.integers(0, 30 * GIB), st.integers(0, 22 * GIB))
def test_a_last_try_can_be_granted_one_day(granted_bytes: int, outsiders_bytes: int) -> None:
    room = a_room(granted_bytes, outsiders_bytes)
    assert asked(replace(UNKNOWN, request=Request(GIB, basis="alone")), room) <= room.capacity_bytes


def test_a_job_that_hit_its_limit_asks_for_half_as_much_again_or_what_it_attempted() -> None:
    first = follows(FAILED)
    assert (first.memory_bytes, first.basis) == (6 * GIB, Basis.RETRY)
    assert follows(FAILED, replace(OBSERVED, attempted_bytes=10 * GIB)).memory_bytes == 11 * GIB
    last = follows(replace(FAILED, attempt=2))
    assert (last.memory_bytes, last.basis) == (5 * GIB, Basis.ALONE), "no less than it attempted"
    unclear = replace(OBSERVED, attempted_bytes=90 * GIB)
    assert follows(replace(FAILED, attempt=2), unclear).memory_bytes == 4 * GIB, "no GPU has what it attempted"
    assert follows(FAILED, replace(OBSERVED, attempted_bytes=22 * GIB)).basis == Basis.ALONE


def a_shrunk_job_that_was_refused() -> MemoryObservation:
    """It took all there was, shrank to 4 GiB, and wanted 5."""
    calm = SliceUse(GPU.uuid, 3 * GIB, 3 * GIB, 0, 0, 254 * MIB)
    refused = replace(calm, refusals=1, attempted_bytes=5 * GIB)
    seen = NOTHING.with_more(calm, Slice(GPU.uuid, MOST_BYTES)).with_more(calm, Slice(GPU.uuid, 4 * GIB))
    return seen.with_more(refused, Slice(GPU.uuid, 4 * GIB)).with_more(refused, Slice(GPU.uuid, 4 * GIB))


def test_a_job_that_pgpu_itself_had_shrunk_is_tried_again_with_more_than_it_shrank_to() -> None:
    observed = a_shrunk_job_that_was_refused()
    assert observed.slice_bytes == MOST_BYTES, "greed is told by the largest"
    assert follows(FAILED, observed).memory_bytes == 6 * GIB


def test_a_job_that_was_given_more_after_a_refusal_asks_for_more_than_it_had_last() -> None:
    grown = replace(FAILED, request=replace(FAILED.request, memory_bytes=8 * GIB))
    assert follows(grown).memory_bytes == 12 * GIB


def test_history_keeps_in_which_slice_a_job_was_refused() -> None:
    view = a_view()
    lease = Lease(FAILED.id, (Slice(GPU.uuid, 4 * GIB),), 0.0)
    job = replace(FAILED, signature="train@1", started_at_seconds=1.0, finished_at_seconds=2.0, lease=lease)
    LEARNING.remember(view, job, a_shrunk_job_that_was_refused(), (GPU,))
    (run,) = view.history.runs(None, 10)
    assert (run.slice_bytes, run.refused_at_bytes) == (MOST_BYTES, 4 * GIB)
    well = Run("train@1", run.gpu_name, "b" * 12, 1000, 20 * GIB, 3 * GIB, 0, 0, 100.0, 1.0, 0)
    assert run.attempted_bytes == 5 * GIB
    memory_bytes = estimate("train@1", [well, well, well, run]).memory_bytes
    assert memory_bytes is not None
    assert memory_bytes >= 1.1 * run.attempted_bytes


def test_a_slice_that_cannot_grow_is_as_large_as_any_run_needed() -> None:
    view = a_view()
    for number, peak in enumerate([2, 2, 2, 2, 2, 2, 4]):
        observed = MemoryObservation(20 * GIB, peak * GIB, 0, 0, attempted_bytes=0)
        lease = Lease(FAILED.id, (Slice(GPU.uuid, 20 * GIB),), 0.0)
        ended = replace(FAILED, signature="train@2", exit_code=0, lease=lease)
        ended = replace(ended, started_at_seconds=1.0, finished_at_seconds=2.0 + number)
        LEARNING.remember(view, ended, observed, (GPU,))

    def size(**words: Any) -> int:
        request = Request(0, is_estimated=True, **words)
        return LEARNING.choose_size(view, request, "train@2", FAILED.owner_uid, (GPU,)).memory_bytes

    assert size() < 3 * GIB, "it grows"
    assert size(sharing=SharingWish.MPS) == size(sharing=SharingWish.AUTO) == size(oversubscribes=True) > 4 * GIB


def test_no_try_asks_for_more_than_its_owner_s_quota_could_ever_grant() -> None:
    assert follows(FAILED, quota_bytes=5 * GIB).memory_bytes == 5 * GIB
    assert follows(replace(FAILED, attempt=2), quota_bytes=5 * GIB).memory_bytes == 5 * GIB
    assert follows(FAILED, quota_bytes=90 * GIB).memory_bytes == 6 * GIB
    on_two = replace(FAILED, request=replace(FAILED.request, gpu_count=2))
    assert follows(on_two, quota_bytes=10 * GIB, gpus=(GPU, replace(GPU, uuid="other"))).memory_bytes == 5 * GIB


@pytest.mark.parametrize(
    ("job", "observed", "quota_bytes", "why"),
    [
        (replace(FAILED, attempt=3), OBSERVED, None, "this was the last of 3 tries"),
        (FAILED, replace(OBSERVED, refused_at_bytes=MOST_BYTES), None, "no slice can be larger than 23 GiB"),
        (FAILED, OBSERVED, 4 * GIB, "its owner's quota allows no larger slice than 4 GiB"),
    ],
    ids=["third try", "had all", "had its quota"],
)
def test_a_last_try_says_why_it_was_the_last(
    job: Job, observed: MemoryObservation, quota_bytes: int | None, why: str
) -> None:
    told = EndedRun(LEARNING, observed, (GPU,)).follow(a_view(quota_bytes), job)
    assert isinstance(told, str)
    assert told.endswith(f"and was not tried again: {why}")


@pytest.mark.parametrize(
    ("job", "observed"),
    [
        (replace(FAILED, exit_code=0), OBSERVED),
        (replace(FAILED, exit_code=None), OBSERVED),
        (FAILED, replace(OBSERVED, refusals=0)),
        (replace(FAILED, request=Request(4 * GIB)), OBSERVED),
    ],
    ids=["ended well", "end unseen", "never refused", "did not ask"],
)
def test_nothing_else_is_tried_again(job: Job, observed: MemoryObservation) -> None:
    assert EndedRun(LEARNING, observed, (GPU,)).follow(a_view(), job) is None


FULL_GPU = replace(OBSERVED, refusals=0, attempted_bytes=0, device_refusals=1)
DECLARED = replace(FAILED, request=Request(4 * GIB), lease=Lease(FAILED.id, (Slice(GPU.uuid, 4 * GIB),), 100.0))


def of_full_gpu(job: Job, observed: MemoryObservation = FULL_GPU, deadline_seconds: float | None = None) -> Any:
    """Return what follows the failure of a job whose memory was promised."""
    entry = Entry(job, wait_deadline_seconds=deadline_seconds)
    return EndedRun(LEARNING, observed, (GPU,)).follow_full_gpu(entry, is_promised=True)


def test_a_job_that_failed_on_a_full_gpu_within_its_limit_is_started_again_with_the_same_size() -> None:
    for deadline_seconds in (None, 101.0):
        found = of_full_gpu(DECLARED, deadline_seconds=deadline_seconds)
        assert isinstance(found, NextTry)
        assert found.request == DECLARED.request
        assert found.warning is not None
        assert found.warning.endswith("it is started again (try 2 of 3) once there is room")


@pytest.mark.parametrize(
    ("job", "deadline_seconds", "why"),
    [
        (replace(DECLARED, attempt=3), None, "this was the last of 3 tries"),
        (DECLARED, 100.0, "its time limit for waiting is used up"),
        (replace(DECLARED, spec=JobSpec(("sh",), "process", wants_tty=True)), None, "cannot be repeated"),
        (replace(DECLARED, spec=JobSpec(("sh",), "process", wants_stdin=True)), None, "cannot be repeated"),
        (replace(DECLARED, spec=JobSpec((), "oci")), None, "only its container engine or its function starts it"),
        (replace(DECLARED, spec=JobSpec(("f",), "process", serves="f")), None, "or its function starts it"),
    ],
    ids=["third try", "no wait", "terminal", "input", "container", "replica"],
)
def test_a_job_that_is_not_started_again_on_a_full_gpu_says_why(
    job: Job, deadline_seconds: float | None, why: str
) -> None:
    told = of_full_gpu(job, deadline_seconds=deadline_seconds)
    assert isinstance(told, str)
    assert told.startswith("it failed because its GPU was full, although its slice was not; it was not started again: ")
    assert told.endswith(why)


def test_a_full_gpu_is_named_where_pgpu_promised_nothing_beside_outsiders() -> None:
    told = EndedRun(LEARNING, FULL_GPU, (GPU,)).follow_full_gpu(Entry(DECLARED), is_promised=False)
    assert isinstance(told, str)
    assert told.endswith("only for jobs for which headroom yields")


def test_a_job_that_did_not_fail_or_had_its_memory_is_not_started_again() -> None:
    assert of_full_gpu(replace(DECLARED, exit_code=0)) is None
    assert of_full_gpu(replace(DECLARED, exit_code=None)) is None
    assert of_full_gpu(DECLARED, OBSERVED) is None


@pytest.mark.parametrize("exit_code", [129, 130, 131, 137, 143])
def test_a_job_that_a_signal_from_outside_ended_is_not_tried_again(exit_code: int) -> None:
    assert of_full_gpu(replace(DECLARED, exit_code=exit_code)) is None
    assert EndedRun(LEARNING, OBSERVED, (GPU,)).follow(a_view(), replace(FAILED, exit_code=exit_code)) is None


@pytest.mark.parametrize("exit_code", [134, 139])
def test_a_job_that_crashed_on_a_full_gpu_is_started_again(exit_code: int) -> None:
    assert isinstance(of_full_gpu(replace(DECLARED, exit_code=exit_code)), NextTry)


@pytest.mark.parametrize("attempted_bytes", [0, 3 * GIB])
def test_no_attempt_is_smaller_than_the_slice_that_was_too_small(attempted_bytes: int) -> None:
    job = replace(FAILED, request=replace(FAILED.request, is_estimated=True, basis="family"))
    request = follows(job, replace(OBSERVED, attempted_bytes=attempted_bytes))
    assert request.memory_bytes == pytest.approx(1.1 * 4 * GIB)


class Blind:
    """An engine whose GPUs cannot be read."""

    learning = LEARNING

    def recent_gpus(self) -> None:
        raise NodeError("the driver does not answer")


def test_a_job_is_started_again_on_a_full_gpu_although_its_gpus_cannot_be_read_at_its_end() -> None:
    blind: Any = Blind()
    run = observe_end(blind, FULL_GPU)
    assert isinstance(run.follow_full_gpu(Entry(DECLARED), is_promised=True), NextTry)
    run.learn(a_view(), DECLARED)
    told = observe_end(blind, OBSERVED).follow(a_view(), FAILED)
    assert isinstance(told, str)
    assert told.endswith("4 GiB, and was not tried again: its GPUs could not be read")


def test_a_job_that_is_cancelled_before_its_next_try_no_longer_announces_it() -> None:
    waiting = Entry(replace(FAILED, state=JobState.WAITING, attempt=2, warning="it is started again"))
    for timed_out in (False, True):
        assert cancel_entry(waiting, 1.0, timed_out=timed_out).job.warning is None


def a_view(quota_bytes: int | None = None) -> Decision:
    """Read a ledger in memory in which the job's owner has a quota, or none."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.row_factory = sqlite3.Row
    migrate(connection, Path(":memory:"))
    decision = Decision(connection)
    if quota_bytes is not None:
        decision.put_quota(FAILED.owner_uid, Quota(quota_bytes))
    return decision


def follows(
    job: Job, observed: MemoryObservation = OBSERVED, quota_bytes: int | None = None, gpus: tuple[Gpu, ...] = (GPU,)
) -> Request:
    """Return what the next try asks for."""
    found = EndedRun(LEARNING, observed, gpus).follow(a_view(quota_bytes), job)
    assert isinstance(found, NextTry)
    return found.request


@given(
    st.integers(MIB, 24 * GIB),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(0, 24 * GIB),
)
def test_a_slice_shrinks_to_less_and_never_below_what_is_held(
    slice_bytes: int, peak_share: float, used_share: float, floor_bytes: int
) -> None:
    peak_bytes = int(slice_bytes * peak_share)
    used_bytes = int(peak_bytes * used_share)
    fit_bytes = shrunk_bytes(slice_bytes, peak_bytes, used_bytes, floor_bytes)
    if fit_bytes is not None:
        assert max(peak_bytes * 1.1, floor_bytes, used_bytes + 256 * MIB) <= fit_bytes < slice_bytes


def a_process(*command: str, directory: str = "/home/a") -> str:
    return signature_of_job(JobSpec(command, "process", working_directory=directory), "")


def test_a_script_is_the_program_and_its_interpreter_only_how_it_was_called() -> None:
    signature = a_process("python3", "-u", "train.py", "--epochs", "5")
    assert signature.startswith("train.py@")
    assert signature.endswith(" python3 -u --epochs 5")
    assert a_process("/usr/bin/python3", "-u", "a/../train.py", "--epochs", "5") == signature
    assert a_process("python3", "-u", "/home/a/train.py", "--epochs", "5", directory="/") == signature
    assert a_process("python3", "-u", "train.py", "--epochs", "5", directory="/home/b") != signature
    assert a_process("torchrun", "--nproc", "2", "train.py").startswith("train.py@")
    assert a_process("bash", "-e", "job").startswith("job@")


def test_a_module_a_program_and_an_image_have_names_of_their_own() -> None:
    module = a_process("python3", "-m", "tool.train", "8")
    assert module.endswith(" -m tool.train 8")
    image = JobSpec(("python", "/app/train.py"), "docker", image="registry:5000/lab/train:3")
    assert signature_of_job(image, "sha256:one") != signature_of_job(image, "sha256:two")
    assert signature_of_job(image, "sha256:one").startswith("train:3@")
    assert signature_of_job(image, "sha256:one").endswith(" python */train.py")
    assert a_process("no-such-program\0")
