"""How what somebody asks for becomes jobs in the ledger: all of it is checked first, then all is written in one transaction.

It refuses to start anything: who was granted and who waits is the engine's to look after.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pgpu.engine.admission.dependencies import failure_text
from pgpu.engine.submission.job_batch import Element, check_count, expand
from pgpu.engine.submission.quotas import refuse_more_than_quota, refuse_more_waiting
from pgpu.engine.submission.sizing import choose_size
from pgpu.engine.submission.submitter import Submitter, this_process
from pgpu.errors import NodeError, RequestError
from pgpu.ledger import Entry
from pgpu.model import Gpu, Job, JobSpec, JobState, SharingWish, Submission
from pgpu.model.validation import check_environment, check_submission

if TYPE_CHECKING:
    from pgpu.engine.engine import Engine


RESERVED_FACT = "shared-out-by"
"""In a ledger: who alone gives its GPUs to jobs."""


def new_job_id() -> str:
    """Return twelve hexadecimal digits that no job has."""
    return secrets.token_hex(6)


def accept(
    engine: "Engine",
    submissions: Sequence[Submission],
    asker: Submitter | None = None,
    new_id: Callable[[], str] = new_job_id,
) -> list[Job]:
    """Accept jobs durably, all or none; see `Client.submit_all`.

    Args:
        engine: Whose GPUs they use.
        submissions: What is asked for; at least one.
        asker: Whose jobs they are; None for this process's own user.
        new_id: Returns another id each time: of arrays and of jobs.

    Raises:
        RequestError: One of them cannot be, or they are too many at once; nothing was stored.
        CapacityError: Too many of the asker's would wait; nothing was stored.
        NodeError: There is no GPU, or another ledger shares them out.
    """
    asker = asker or this_process()
    if not submissions:
        raise RequestError("there is nothing to submit")
    _refuse_where_others_share_out(engine)
    check_count(submissions)
    inherited_bytes = check_environment(asker.environment)
    for each in submissions:
        check_submission(each, inherited_bytes)
    submissions = [choose_size(engine, each, asker) for each in submissions]
    gpus = max([engine.check(each.spec, each.request, asker.account) for each in submissions], key=len)
    with engine.ledger.view() as view:
        for each in submissions:
            refuse_more_than_quota(view, asker.uid, each.request)
    made = expand(submissions, lambda word: _awaited(engine, word, asker), new_id)
    entries = [_entry(element, asker, engine.settings.gpu_model) for element in made]
    _write(engine, gpus, entries, asker)
    with engine.ledger.view() as view:
        return [view.entry(entry.job.id).job for entry in entries]


def _refuse_where_others_share_out(engine: "Engine") -> None:
    """Refuse jobs on GPUs whose memory somebody else has promised without asking this ledger.

    Raises:
        NodeError: Somebody has.
    """
    who = engine.ledger.facts.get(RESERVED_FACT)
    if who is not None:
        raise NodeError(f"the GPUs of {engine.ledger.path} are shared out by {who}", hint=f"ask {who} for a slice")


def _awaited(engine: "Engine", word: str, asker: Submitter) -> list[str]:
    """Return the ids of the asker's own jobs that a word stands for; whoever has failed already is waited for in vain.

    Raises:
        RequestError: There is none, or one of them has failed.
    """
    members = engine.ledger.members(word, asker.uid or None)
    with engine.ledger.view() as view:
        found = view.peers(members)
    for peer in found.values():
        if (why := failure_text(peer)) is not None:
            raise RequestError(
                f"a job after {word} would never start: {why}", hint="leave --after out, or run it again"
            )
    return list(found)


def _entry(element: Element, asker: Submitter, gpu_model: str | None) -> Entry:
    now_seconds = time.time()
    wait_timeout_seconds = element.submission.wait_timeout_seconds
    job = Job(
        id=element.job_id,
        spec=_placed(element.spec),
        request=element.submission.request,
        state=JobState.WAITING,
        created_at_seconds=now_seconds,
        owner_uid=asker.uid,
        place=element.place,
        signature=element.submission.signature,
        gpu_model=gpu_model,
    )
    deadline_seconds = None if wait_timeout_seconds is None else now_seconds + wait_timeout_seconds
    return Entry(job, wait_deadline_seconds=deadline_seconds)


def _placed(spec: JobSpec) -> JobSpec:
    """A process starts where its asker stands, which only the asker knows."""
    if spec.runtime != "process":
        return spec
    return replace(spec, working_directory=str(Path(spec.working_directory or ".").absolute()))


def _write(engine: "Engine", gpus: Sequence[Gpu], entries: Sequence[Entry], asker: Submitter) -> None:
    """Write all in one transaction; whoever would not wait at all is given up if it was not granted in it."""
    impatient = [entry.job.id for entry in entries if _waits_not_at_all(entry)]
    jobs = [entry.job for entry in entries]
    undecided = {(job.signature, job.owner_uid) for job in jobs if job.request.sharing is SharingWish.AUTO}
    with engine.arriving(len(entries), impatient, undecided) as decision:
        refuse_more_waiting(decision, asker.uid, len(entries), engine.settings.most_waiting)
        decision.see(gpus, time.time())
        for entry in entries:
            decision.add(entry, asker.environment, asker.inherited)
        forgotten = decision.forget_oldest(engine.settings.kept_jobs)
    for job_id in forgotten:
        engine.places(job_id).remove()


def _waits_not_at_all(entry: Entry) -> bool:
    deadline_seconds = entry.wait_deadline_seconds
    return deadline_seconds is not None and deadline_seconds <= entry.job.created_at_seconds
