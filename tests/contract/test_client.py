"""What every client promises, the fake one of the unit tests included."""

import io
import tempfile
import threading
import time
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.clearing import clear
from tests.fakes.client import FakeClient, Outcome
from tests.served import serving
from tests.waiting import until

from pgpu.advising.contention import Constants
from pgpu.app.client_factory import open_client
from pgpu.app.settings import Settings
from pgpu.client import Client
from pgpu.errors import CapacityError, JobNotFoundError, RequestError, WaitTimeoutError
from pgpu.model import Array, Bandwidths, Job, JobSpec, JobState, OnTimeLimit, Request, Submission
from pgpu.units import GIB

LONG = ("sleep", "600")
SAYS_HI = ("sh", "-c", "echo hi; exit 3")


@contextmanager
def _fake(_path: Path) -> Iterator[Client]:
    yield FakeClient(outcome=Outcome(exit_code=3, stdout=b"hi\n"))


@contextmanager
def _embedded(path: Path) -> Iterator[Client]:
    settings = Settings(state_dir=path / "state", runtime_dir=path, simulate="RTX 3090", host="embedded")
    yield open_client(settings)


@contextmanager
def _served(path: Path) -> Iterator[Client]:
    with serving(path) as server:
        yield open_client(Settings(host=server.host))


FORMS = {"fake": _fake, "embedded": _embedded, "served": _served}


@contextmanager
def opened(form: str) -> Iterator[Client]:
    path = Path(tempfile.mkdtemp(prefix="pgpu-test-", dir="/dev/shm"))
    try:
        with FORMS[form](path) as made:
            yield made
    finally:
        clear(path)


@pytest.fixture(scope="module", params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def shared_client(form: str) -> Iterator[Client]:
    with opened(form) as made:
        yield made


@pytest.fixture
def client(shared_client: Client) -> Iterator[Client]:
    """Return a client without live jobs. Its machine, with the jobs that ended there, is that of all tests."""
    yield shared_client
    for report in shared_client.jobs(include_final=False):
        shared_client.stop(report.job.id, grace_seconds=0)
    until(lambda: not any(gpu.granted_bytes for gpu in shared_client.gpus()))


@pytest.fixture
def new_client(form: str) -> Iterator[Client]:
    """Return a client of a machine on which nothing ran."""
    with opened(form) as made:
        yield made


def submit(client: Client, command: tuple[str, ...] = LONG, gib: int = 2, **words: Any) -> Job:
    timeout = words.pop("wait_timeout_seconds", None)
    spec = JobSpec(command, "process", working_directory="/", **words)
    return client.submit(spec, Request(gib * GIB), wait_timeout_seconds=timeout)


def state(client: Client, job: Job) -> JobState:
    return client.job(job.id).job.state


def stored(client: Client) -> set[str]:
    return {report.job.id for report in client.jobs(include_final=True)}


def test_a_job_is_found_by_id_by_its_beginning_and_by_name(client: Client) -> None:
    job = submit(client, name="one")
    assert {client.job(key).job.id for key in (job.id, job.id[:11], "one")} == {job.id}
    assert client.job("one").job.request == Request(2 * GIB)


def test_what_is_not_there_is_said_to_be_missing(client: Client) -> None:
    for ask in (client.job, client.wait, lambda name: list(client.logs(name, follow=False))):
        with pytest.raises(JobNotFoundError):
            ask("nobody")
    with pytest.raises(JobNotFoundError):
        client.stop("nobody", grace_seconds=0)
    with pytest.raises(JobNotFoundError):
        client.resize("nobody", GIB)
    with pytest.raises(JobNotFoundError):
        client.signal("nobody", 15)


def test_what_can_never_be_met_is_refused_and_not_stored(client: Client) -> None:
    before = stored(client)
    with pytest.raises(RequestError) as caught:
        submit(client, gib=100)
    assert caught.value.nearest_bytes is not None
    assert stored(client) == before


def test_a_name_belongs_to_one_live_job(client: Client) -> None:
    submit(client, name="one")
    with pytest.raises(RequestError):
        submit(client, name="one")


@pytest.mark.parametrize("name", ["김민준-학습", "обучение_1", "训练.v2", "प्रशिक्षण", "Ärger"])
def test_a_name_may_be_in_any_script_and_is_found_however_it_is_written(client: Client, name: str) -> None:
    job = submit(client, name=name)
    for word in (name, unicodedata.normalize("NFC", name), unicodedata.normalize("NFD", name)):
        assert client.job(word).job.id == job.id
        assert [report.job.id for report in client.members(word)] == [job.id]


@pytest.mark.parametrize("name", ["김 민준", "\u0301a", "a\u202eb", "a\u200db", "漢/字", "A\u0308rger", "é\n"])
def test_a_name_has_no_spaces_and_nothing_that_steers_a_terminal(client: Client, name: str) -> None:
    with pytest.raises(RequestError):
        submit(client, name=name)


def test_a_dry_run_forecasts_start_and_gpu_and_stores_nothing(client: Client) -> None:
    before = stored(client)
    spec = JobSpec(LONG, "process", working_directory="/", name="one")
    reports = client.dry_run([Submission(spec, Request(2 * GIB), array=Array((3, 5)))])
    assert [report.job.spec.name for report in reports] == ["one-3", "one-5"]
    assert [report.position for report in reports] == [1, 2]
    [gpu] = client.gpus()
    assert all(report.is_start_known for report in reports)
    assert all(report.job.expected_start_seconds is not None for report in reports)
    assert {report.job.expected_gpu_uuids for report in reports} == {(gpu.gpu.uuid,)}
    assert stored(client) == before


def test_a_dry_run_refuses_what_a_submission_refuses(client: Client) -> None:
    submit(client, name="one")
    before = stored(client)
    refused = [
        Submission(JobSpec(LONG, "process", working_directory="/"), Request(100 * GIB)),
        Submission(JobSpec(LONG, "process", working_directory="/", name="one"), Request(GIB)),
        Submission(JobSpec(LONG, "process", working_directory="/"), Request(GIB), after=("nobody",)),
    ]
    for submission in refused:
        messages = []
        for ask in (client.submit_all, client.dry_run):
            with pytest.raises((RequestError, JobNotFoundError)) as caught:
                ask([submission])
            messages.append((str(caught.value), caught.value.hint))
        assert messages[0] == messages[1]
    assert stored(client) == before


def test_what_does_not_fit_waits_with_a_reason_and_can_be_cancelled(client: Client) -> None:
    submit(client, gib=20)
    second = submit(client, gib=20)
    until(lambda: client.job(second.id).job.reason is not None)
    assert state(client, second) is JobState.WAITING
    assert client.stop(second.id, grace_seconds=0).state is JobState.CANCELLED


def test_a_held_job_waits_until_it_is_released(client: Client) -> None:
    spec = JobSpec(SAYS_HI, "process", working_directory="/")
    [job] = client.submit_all([Submission(spec, Request(2 * GIB), is_held=True)])
    assert job.held_by_uid is not None
    until(lambda: (client.job(job.id).job.reason or "").startswith("held by"))
    assert [(each.rule, each.position) for each in client.queue()] == [("held", None)]
    assert client.hold([job.id])[0].held_by_uid is not None
    assert client.release([job.id])[0].held_by_uid is None
    with pytest.raises(JobNotFoundError):
        client.hold(["nobody"])


def test_of_an_array_those_that_wait_are_held(client: Client) -> None:
    spec = JobSpec(LONG, "process", working_directory="/")
    jobs = client.submit_all([Submission(spec, Request(20 * GIB), array=Array((0, 1, 2)))])
    until(lambda: JobState.RUNNING in {state(client, job) for job in jobs})
    waiting = {job.id for job in jobs if state(client, job) is JobState.WAITING}
    assert len(waiting) == 2
    array_id = jobs[0].place.array_id
    assert array_id is not None
    assert {job.id for job in client.hold([array_id]) if job.held_by_uid is not None} == waiting
    until(lambda: [each.rule for each in client.queue()] == ["held", "held"])
    assert {job.id for job in client.release([array_id]) if job.held_by_uid is None} == waiting


def test_a_job_that_runs_cannot_be_held(client: Client) -> None:
    job = submit(client)
    until(lambda: state(client, job) is JobState.RUNNING)
    with pytest.raises(RequestError, match="does not wait"):
        client.hold([job.id])


def test_a_begin_and_a_time_limit_are_kept_with_the_job(client: Client) -> None:
    spec, begin_seconds = JobSpec(LONG, "process", working_directory="/"), time.time() + 1000
    request = Request(2 * GIB, time_limit_seconds=60.0, on_time_limit=OnTimeLimit.MARK)
    [job] = client.submit_all([Submission(spec, request, begin_at_seconds=begin_seconds)])
    found = client.job(job.id).job
    assert (found.state, found.begin_at_seconds) == (JobState.WAITING, begin_seconds)
    assert (found.request.time_limit_seconds, found.request.on_time_limit) == (60.0, OnTimeLimit.MARK)


def test_what_is_not_granted_in_time_says_so(client: Client) -> None:
    submit(client, gib=20)
    second = submit(client, gib=20, wait_timeout_seconds=0.1)
    with pytest.raises(WaitTimeoutError):
        client.attach(second.id, None, io.BytesIO(), io.BytesIO())


def test_a_job_that_ended_has_its_exit_code_and_its_log(client: Client) -> None:
    before = stored(client)
    job = submit(client, SAYS_HI)
    assert client.wait(job.id).exit_code == 3
    assert state(client, job) is JobState.EXITED
    assert b"".join(data for stream, data in client.logs(job.id, follow=False) if stream == "stdout") == b"hi\n"
    assert stored(client) ^ before == {job.id}
    assert not client.jobs(include_final=False)


def test_attaching_carries_the_output_and_returns_the_end(client: Client, tmp_path: Path) -> None:
    job = submit(client, SAYS_HI)
    with (tmp_path / "out").open("wb") as stdout, (tmp_path / "err").open("wb") as stderr:
        assert client.attach(job.id, None, stdout, stderr).exit_code == 3
    assert (tmp_path / "out").read_bytes() == b"hi\n"


def test_resizing_changes_the_slice_or_nothing(client: Client) -> None:
    job = submit(client)
    until(lambda: state(client, job) is JobState.RUNNING)
    client.resize(job.id, 4 * GIB)
    with pytest.raises((CapacityError, RequestError)):
        client.resize(job.id, 100 * GIB)
    assert client.job(job.id).job.request.memory_bytes == 4 * GIB


def test_a_running_job_is_seen_on_its_gpu(client: Client) -> None:
    job = submit(client)
    until(lambda: state(client, job) is JobState.RUNNING)
    [gpu] = client.gpus()
    assert gpu.granted_bytes == 2 * GIB
    assert gpu.jobs == (job.id,)
    assert len(client.job(job.id).use) == 1


def test_stopping_ends_a_running_job(client: Client) -> None:
    job = submit(client)
    until(lambda: state(client, job) is JobState.RUNNING)
    assert client.stop(job.id, grace_seconds=5).exit_code == 143


def test_several_jobs_are_accepted_together_or_none(client: Client) -> None:
    def ask(name: str, gib: int) -> Submission:
        return Submission(JobSpec(LONG, "process", name=name, working_directory="/"), Request(gib * GIB))

    before = stored(client)
    with pytest.raises(RequestError):
        client.submit_all([ask("one", 2), ask("two", 100)])
    assert stored(client) == before
    jobs = client.submit_all([ask("one", 20), ask("two", 20)])
    assert [job.spec.name for job in jobs] == ["one", "two"]
    until(lambda: [report.job.id for report in client.queue()] == [jobs[1].id])
    assert [job.state for job in client.cancel(["two"], grace_seconds=0)] == [JobState.CANCELLED]


def test_an_array_is_found_as_one(client: Client) -> None:
    spec = JobSpec(SAYS_HI, "process", name="many", working_directory="/")
    jobs = client.submit_all([Submission(spec, Request(2 * GIB), array=Array((0, 1)))])
    assert [job.place.array_index for job in jobs] == [0, 1]
    array_id = jobs[0].place.array_id
    assert array_id is not None
    assert [report.job.id for report in client.members(array_id)] == [job.id for job in jobs]


def test_the_ends_of_several_jobs_come_in_the_order_of_their_ids(client: Client) -> None:
    jobs = [submit(client, ("sh", "-c", f"exit {code}")) for code in (5, 6)]
    ended = list(client.wait_all([job.id for job in reversed(jobs)]))
    assert [job.id for job in ended] == [job.id for job in reversed(jobs)]
    assert all(job.state is JobState.EXITED and job.exit_code for job in ended)
    with pytest.raises(JobNotFoundError):
        list(client.wait_all([jobs[0].id, "nobody"]))


def test_more_jobs_than_a_page_has_are_waited_for_while_one_of_them_runs(client: Client) -> None:
    spec = JobSpec(LONG, "process", working_directory="/")
    jobs = client.submit_all([Submission(spec, Request(20 * GIB), array=Array(tuple(range(120))))])
    ended: list[Job] = []
    waiting = threading.Thread(target=lambda: ended.extend(client.wait_all([job.id for job in jobs])))
    waiting.start()
    client.cancel([job.id for job in reversed(jobs)], grace_seconds=0)
    waiting.join()
    assert [job.id for job in ended] == [job.id for job in jobs]
    assert all(job.state.is_final for job in ended)


def test_the_last_lines_are_read_and_followed(client: Client) -> None:
    job = submit(client, SAYS_HI)
    client.wait(job.id)
    for follow in (False, True):
        pieces = list(client.logs(job.id, follow=follow, tail_lines=1))
        assert b"".join(data for stream, data in pieces if stream == "stdout") == b"hi\n"


def test_a_signal_is_for_jobs_that_run(client: Client) -> None:
    job = submit(client)
    until(lambda: state(client, job) is JobState.RUNNING)
    client.signal(job.id, 15)
    assert client.wait(job.id).exit_code in {143, 3}


def test_nothing_is_known_of_what_never_ran(new_client: Client) -> None:
    assert list(new_client.history(None)) == []
    assert list(new_client.waste()) == []
    assert list(new_client.gpu_history(0.0)) == []
    with pytest.raises(RequestError, match="nothing"):
        new_client.history("nothing")


def test_where_nobody_computes_outside_of_a_lease_nobody_is_told_of(client: Client) -> None:
    job = submit(client)
    until(lambda: state(client, job) is JobState.RUNNING)
    assert list(client.outsiders()) == []
    assert [gpu.outsiders for gpu in client.gpus()] == [()]


def test_what_is_calibrated_is_kept_for_a_gpu_that_is_there_by_whoever_may(client: Client) -> None:
    constants, bandwidths = Constants(), Bandwidths(12e9, 6e9, 300e9)
    try:
        client.check_calibration()
    except RequestError:
        with pytest.raises(RequestError):
            client.keep_constants(client.gpus()[0].gpu.uuid, constants, bandwidths)
        return
    client.keep_constants(client.gpus()[0].gpu.uuid, constants, bandwidths)
    with pytest.raises(RequestError, match="no GPU GPU-of-another-machine here"):
        client.keep_constants("GPU-of-another-machine", constants, bandwidths)


def test_a_job_without_a_gpu_runs_while_all_memory_is_taken(client: Client) -> None:
    full = submit(client, gib=22)
    until(lambda: state(client, full) is JobState.RUNNING)
    spec = JobSpec(SAYS_HI, "process", working_directory="/")
    job = client.submit(spec, Request(0, 0, priority=3), wait_timeout_seconds=0)
    ended = client.wait(job.id)
    assert (ended.state, ended.exit_code, ended.request) == (JobState.EXITED, 3, Request(0, 0, priority=3))
    assert ended.lease is not None
    assert (ended.lease.slices, ended.lease.enforcer, ended.is_simulated) == ((), "none", False)


def replica(client: Client, gib: int = 8, **words: Any) -> Job:
    job = submit(client, gib=gib, serves="detector", **words)
    until(lambda: state(client, job) is JobState.RUNNING)
    return job


def test_an_offered_lease_is_taken_for_a_job_that_would_wait_and_a_claimed_one_is_kept(client: Client) -> None:
    kept, given = replica(client), replica(client)
    assert client.offer(kept.id, 1.0).is_offered
    assert not client.claim(kept.id).is_offered
    assert client.offer(given.id, 2.0).offered_value == 2.0
    new = submit(client, gib=10)
    until(lambda: state(client, new) is JobState.RUNNING)
    ended = client.wait(given.id)
    assert (ended.state, ended.exit_code) == (JobState.EXITED, 143)
    assert ended.reclaimed_at_seconds is not None
    assert "lease was taken" in (ended.warning or "")
    assert state(client, kept) is JobState.RUNNING
    with pytest.raises(CapacityError):
        client.claim(given.id)
    with pytest.raises(CapacityError):
        client.offer(given.id, 1.0)


def test_who_serves_no_function_offers_no_lease(client: Client) -> None:
    job = submit(client)
    until(lambda: state(client, job) is JobState.RUNNING)
    with pytest.raises(RequestError):
        client.offer(job.id, 1.0)
    with pytest.raises(RequestError):
        client.offer(replica(client).id, -1.0)
    with pytest.raises(JobNotFoundError):
        client.claim("nobody")
