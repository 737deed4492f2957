"""The command of `--notify` is a job of its own, stored with the end of the job that it is about: once, and as its owner's."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.ledger_entries import waiting

from pgpu.ledger import Entry, Ledger
from pgpu.model import Job, JobState
from pgpu.structs import replace

ENVIRONMENT = (("TOKEN", "secret"), ("PATH", "/bin"))
INHERITED = json.dumps(
    {"umask": 18, "limits": {}, "account": {"uid": 1234, "gid": 5, "groups": [5]}, "starter": {"pid": 1}}
)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.db")


def added(ledger: Ledger, notify: str | None = "tell me", job_id: str = "a" * 12) -> Entry:
    entry = waiting(job_id, notify=notify, working_directory="/tmp")
    entry = replace(entry, job=replace(entry.job, owner_uid=1234, gpu_model="rtx-3090"))
    with ledger.decision() as decision:
        return decision.add(entry, ENVIRONMENT, INHERITED)


def ended(entry: Entry, **words: object) -> Entry:
    job = replace(entry.job, state=JobState.EXITED, finished_at_seconds=9.0, exit_code=3, **words)  # type: ignore[arg-type]
    return replace(entry, job=job)


def others(ledger: Ledger, job_id: str = "a" * 12) -> Sequence[Job]:
    return [entry.job for entry in ledger.page(0, None, seen_by=None, include_final=True)[0] if entry.job.id != job_id]


def test_the_first_end_of_a_job_adds_one_job_without_a_gpu_with_what_it_inherited(ledger: Ledger) -> None:
    entry = added(ledger)
    with ledger.decision() as decision:
        decision.put(replace(entry, job=replace(entry.job, state=JobState.RUNNING)))
    assert others(ledger) == []
    for _ in range(3):  # such as when the lease is released later
        with ledger.decision() as decision:
            decision.put(ended(entry))
    [job] = others(ledger)
    assert job.request.is_without_gpu
    assert (job.owner_uid, job.gpu_model, job.state, job.spec.runtime) == (
        1234,
        "rtx-3090",
        JobState.WAITING,
        "process",
    )
    assert job.spec.command[-3:] == ("notify of " + "a" * 12, "/tmp", "tell me")
    assert job.spec.notifies == "a" * 12
    assert entry.job.spec.notifies is None
    assert job.spec.notify is None
    assert job.spec.working_directory == "/"
    assert dict(job.spec.environment) == {
        "PGPU_JOB": "a" * 12,
        "PGPU_JOB_NAME": "",
        "PGPU_STATE": "exited",
        "PGPU_EXIT_CODE": "3",
        "PGPU_REASON": "",
    }
    environment, inherited = ledger.inheritance(job.id)
    assert environment == ENVIRONMENT
    assert json.loads(inherited or "") == {
        key: value for key, value in json.loads(INHERITED).items() if key != "starter"
    }
    assert ledger.inheritance("a" * 12)[0] == ()
    with ledger.decision() as decision:  # its own end adds none, and takes the environment along
        decision.put(ended(decision.entry(job.id)))
    assert len(others(ledger)) == 1
    assert ledger.inheritance(job.id)[0] == ()


def test_a_decision_that_is_rolled_back_adds_none(ledger: Ledger) -> None:
    entry = added(ledger)

    def fail_after_the_end() -> None:
        with ledger.decision() as decision:
            decision.put(ended(entry))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_after_the_end()
    assert others(ledger) == []


def test_a_job_that_is_cancelled_while_it_waits_notifies_too(ledger: Ledger) -> None:
    added(ledger, job_id="a" * 12)
    added(ledger, notify=None, job_id="b" * 12)
    for _ in range(2):
        with ledger.decision() as decision:
            decision.cancel_waiting(["a" * 12, "b" * 12], 7.0)
    [job] = [each for each in others(ledger) if each.id != "b" * 12]
    assert dict(job.spec.environment)["PGPU_STATE"] == "cancelled"
    assert dict(job.spec.environment)["PGPU_EXIT_CODE"] == ""
    assert ledger.inheritance(job.id)[0] == ENVIRONMENT


def test_a_reason_is_one_variable_whatever_it_holds(ledger: Ledger) -> None:
    entry = added(ledger)
    with ledger.decision() as decision:
        decision.put(ended(entry, error="$(touch /tmp/x); `id`\0\udcff" + "x" * 5000))
    [job] = others(ledger)
    spec = ledger.spec(job.id)
    reason = dict(spec.environment)["PGPU_REASON"]
    assert reason.startswith("$(touch /tmp/x); `id`")
    assert "\0" not in reason
    assert len(reason) == 1000
    assert spec.command[-1] == "tell me"


def test_a_job_without_a_command_adds_none(ledger: Ledger) -> None:
    entry = added(ledger, notify=None)
    with ledger.decision() as decision:
        decision.put(ended(entry))
    assert others(ledger) == []
