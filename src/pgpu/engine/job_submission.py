"""Submitting jobs: every check first, outside of any transaction, then one transaction that stores all of them or none.

`accept` reads from top to bottom: check the words, choose each job's size, check it against the GPUs and the quota, expand
arrays, write. Starting granted jobs is left to the caller.
"""

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from pgpu.advising.memory_demand import is_script, signature_of
from pgpu.engine.admission.dependencies import failure_text
from pgpu.engine.context import EngineContext
from pgpu.engine.history.run_history import GROWTH_WISHES
from pgpu.engine.leases.mps_obstacles import refuse_what_cannot_join
from pgpu.engine.settings import EngineSettings
from pgpu.engine.submission_expansion import MANY_JOBS, Element, check_count, count_jobs, expand, with_batches
from pgpu.engine.submitter import Submitter, this_process
from pgpu.errors import CapacityError, NodeError, RequestError
from pgpu.ledger import MOST_FORGOTTEN, Decision, Entry, LedgerView, stored_bytes
from pgpu.model import Account, Gpu, Job, JobSpec, JobState, Request, SharingWish, Submission
from pgpu.model.validation import check_environment, check_submission
from pgpu.scheduling.capacity import format_down
from pgpu.structs import Struct, replace
from pgpu.units import format_memory

if TYPE_CHECKING:
    from pgpu.engine.admission.rounds import Admissions, Forecast

RESERVED_FACT = "shared-out-by"
"""Fact of a ledger with reserved GPUs: the name of the one program that may give its GPUs to jobs."""

_INTERPRETER = re.compile(r"(python|pypy|perl|ruby|node|julia|Rscript|lua)[\d.]*|(ba|da|z|k)?sh")


class _Prepared(Struct, frozen=True):
    """Checked jobs, before the transaction that stores them."""

    gpus: Sequence[Gpu]
    entries: Sequence[Entry]
    submitter: Submitter
    size_bytes: int
    """About what they take in the ledger."""


def new_job_id() -> str:
    """Return twelve random hexadecimal digits."""
    return os.urandom(6).hex()


def accept(
    context: EngineContext,
    admissions: "Callable[[], Admissions]",
    submissions: Sequence[Submission],
    submitter: Submitter | None = None,
    new_id: Callable[[], str] = new_job_id,
) -> list[Job]:
    """Store jobs durably, all or none; see `Client.submit_all`.

    Args:
        context: Of the GPUs that they use.
        admissions: Returns those of the same engine; they grant a single job in the transaction that stores it, where it fits,
            unless the agent admits it.
        submissions: At least one.
        submitter: The user of the jobs; None for this process's own.
        new_id: Returns another id each time: of arrays and of jobs.

    Raises:
        RequestError: One of them can never run, or they are too many at once; nothing was stored.
        CapacityError: Too many jobs of the user would wait; nothing was stored.
        NodeError: There is no GPU, or another ledger uses them.
    """
    return _store(context, admissions, _prepare(context, submissions, submitter, new_id))


def rehearse(
    context: EngineContext,
    admissions: "Callable[[], Admissions]",
    submissions: Sequence[Submission],
    submitter: Submitter | None,
) -> "list[Forecast]":
    """Return the jobs that `accept` would store, with their outlook; stores nothing.

    Arguments and errors are those of `accept`. The jobs have ids that no job has afterwards, and as forecast when they would
    start, on which GPUs, and why they would wait.
    """
    prepared = _prepare(context, submissions, submitter, new_job_id)
    own_uid = prepared.submitter.uid or None
    found = admissions().read_queue(own_uid, lambda decision: _add(context, decision, prepared))
    by_id = {each.job.id: each for each in found}
    return [by_id[entry.job.id] for entry in prepared.entries]


def _prepare(
    context: EngineContext,
    submissions: Sequence[Submission],
    submitter: Submitter | None,
    new_id: Callable[[], str],
) -> _Prepared:
    submitter = submitter or this_process()
    if not submissions:
        raise RequestError("there is nothing to submit")
    check_count(submissions)
    if (count := count_jobs(submissions)) > MANY_JOBS:
        # Checked again in the transaction; here before thousands of jobs are made in vain.
        with context.ledger.view() as view:
            refuse_more_waiting(view, submitter.uid, count, 0, context.settings)
    inherited_bytes = check_environment(submitter.environment)
    # The kernel limits arguments and environment together, so the inherited environment counts.
    for each in submissions:
        check_submission(each, inherited_bytes)
    submissions = _choose_sizes(context, submissions, submitter)
    # Jobs without a GPU get none here; all others get every GPU of the engine.
    gpus = max([check(context, each.spec, each.request, submitter.account) for each in submissions], key=len)
    submissions = [_with_directory(each) for each in submissions]
    elements = with_batches(expand(submissions, lambda word: _find_predecessors(context, word, submitter), new_id))
    now_seconds = time.time()
    entries = [_make_entry(element, submitter, context.settings.gpu_model, now_seconds) for element in elements]
    return _Prepared(gpus, entries, submitter, _check_size(entries, submitter, context.settings.most_waiting_bytes))


def _check_size(entries: Sequence[Entry], submitter: Submitter, most_bytes: int) -> int:
    """Return about how much of the ledger these jobs take, in bytes.

    Raises:
        RequestError: They take more than the waiting jobs of a user may.
    """
    # The elements of an array differ in a few digits.
    arrays = Counter(entry.job.place.array_id or entry.job.id for entry in entries)
    total_bytes = sum(len(name) + len(value) for name, value in submitter.environment)
    for entry in entries:
        count = arrays.pop(entry.job.place.array_id or entry.job.id, 0)
        if count:
            own_bytes, shared_bytes = stored_bytes(entry)
            total_bytes += count * own_bytes + shared_bytes
    if total_bytes > most_bytes:
        raise RequestError(
            f"this request would take {format_memory(total_bytes)} of the ledger, and one may take {format_memory(most_bytes)}",
            hint="submit fewer jobs at once, name fewer of them in --after, put long values into files, or ask the administrator"
            " (setting waiting_size)",
        )
    return total_bytes


def check(context: EngineContext, spec: JobSpec, request: Request, account: Account | None = None) -> Sequence[Gpu]:
    """Refuse what can never run here, or not under this account, and return the GPUs if the request needs any.

    Raises:
        RequestError: The request or the command is wrong.
        NodeError: There is no GPU, or another ledger uses them.
    """
    gpus = () if request.is_without_gpu else context.listed_gpus()
    if not gpus and request.gpu_count:
        raise NodeError("no GPU was found", hint='--simulate "RTX 3090" runs on a simulated one')
    refuse_unsupported(request, context.settings)
    refuse_what_cannot_join(spec, request)
    if gpus:
        context.check_amount(gpus, request)
    context.runtime(spec.runtime).check(spec, account)
    # Last: a refused request must not keep other ledgers off the GPUs.
    context.gpu_locks.hold(gpus)
    return gpus


def refuse_unsupported(request: Request, settings: EngineSettings) -> None:
    """Raise RequestError where a request needs what these GPUs, or this machine, do not have."""
    if request.sharing is SharingWish.MPS and not settings.has_mps:
        raise RequestError("--sharing mps is not available on these GPUs", hint="leave --sharing mps out")


def refuse_more_than_quota(view: LedgerView, owner_uid: int, request: Request) -> None:
    """Raise RequestError where a quota could never grant a request, even if its user held nothing else.

    Args:
        view: Of the ledger.
        owner_uid: User of the request.
        request: With its memory already chosen.
    """
    quota = view.quotas().get(owner_uid)
    if quota is None or quota.memory_bytes is None or request.is_without_gpu:
        return
    nearest_bytes = quota.memory_bytes // request.gpu_count
    if request.memory_bytes > nearest_bytes:
        where = "" if request.gpu_count == 1 else f" on each of {request.gpu_count} GPUs"
        raise RequestError(
            f"{format_memory(request.memory_bytes)}{where} can never be granted: "
            f"the quota of user {owner_uid} is {format_memory(quota.memory_bytes)}",
            hint=f"ask for at most {format_down(nearest_bytes)}, or ask the administrator",
            nearest_bytes=nearest_bytes,
        )


def refuse_more_waiting(
    view: LedgerView, owner_uid: int, count: int, size_bytes: int, settings: EngineSettings
) -> None:
    """Raise CapacityError where a user would have more waiting jobs, or larger ones, than allowed; root has no limit.

    Args:
        view: Of the ledger.
        owner_uid: User of the jobs.
        count: How many would be added.
        size_bytes: How much of the ledger they take.
        settings: With the limits.
    """
    if owner_uid == 0:
        return
    # The numbers of all users together, and the size of the whole ledger, are read much faster than those of one user.
    most, most_bytes = settings.most_waiting, settings.most_waiting_bytes
    if view.count_waiting() + count > most and (waiting := view.count_waiting(owner_uid)) + count > most:
        raise CapacityError(
            f"{waiting} jobs of user {owner_uid} wait, and {count} more would pass {most}; nothing was submitted",
            hint="submit more once some have started, cancel some, or ask the administrator (setting waiting_jobs)",
        )
    if view.size_bytes() + size_bytes > most_bytes and view.waiting_bytes(owner_uid) + size_bytes > most_bytes:
        raise CapacityError(
            f"the waiting jobs of user {owner_uid} would take more than {format_memory(most_bytes)} of the ledger; nothing was submitted",
            hint="submit more once some have started, cancel some, or ask the administrator (setting waiting_size)",
        )


def _choose_sizes(context: EngineContext, submissions: Sequence[Submission], submitter: Submitter) -> list[Submission]:
    """Return submissions with their programs' signatures and, for `--memory auto`, the sizes that their history suggests.

    Raises:
        NodeError: A program gives the ledger's GPUs to jobs.
    """
    signatures = [_signature(context, each.spec) for each in submissions]
    gpus = context.listed_gpus() if any(each.request.is_estimated for each in submissions) else ()
    with context.ledger.view() as view:
        if (reserved_by := view.fact(RESERVED_FACT)) is not None:
            raise NodeError(
                f"the GPUs of {context.ledger.path} are shared out by {reserved_by}",
                hint=f"ask {reserved_by} for a slice",
            )
        requests = [
            each.request
            if signature is None
            else context.learning.choose_size(view, each.request, signature, submitter.uid, gpus)
            for each, signature in zip(submissions, signatures, strict=True)
        ]
    return [
        each
        if signature is None
        else replace(each, spec=_with_growth(each.spec, request, submitter), request=request, signature=signature)
        for each, request, signature in zip(submissions, requests, signatures, strict=True)
    ]


def _signature(context: EngineContext, spec: JobSpec) -> str | None:
    """Return a job's signature; None for a claim, which has no program."""
    if not spec.command and spec.image is None:
        return None
    return signature_of_job(spec, context.runtime(spec.runtime).image_id(spec) if spec.image is not None else "")


def _with_growth(spec: JobSpec, request: Request, submitter: Submitter) -> JobSpec:
    """Return a spec with the variables that let a program of unknown size grow as it needs."""
    if not request.is_estimated:
        return spec
    # What the user set stays: in the call, or for a process in the environment that it inherits.
    inherited = submitter.environment if spec.image is None else ()
    named = {name for name, _ in (*spec.environment, *inherited)}
    wishes = tuple(wish for wish in GROWTH_WISHES if wish[0] not in named)
    return replace(spec, environment=(*spec.environment, *wishes))


def signature_of_job(spec: JobSpec, image_id: str) -> str:
    """Return the signature of a job's program and arguments, equal for two runs of the same program.

    By names alone: an edited program keeps its history, and a server that runs as root opens no file for it, which would
    disclose to its caller what exists where.

    Args:
        spec: What runs; with a command, unless it has an image.
        image_id: Digest of its image; empty for a process.
    """
    if spec.image is not None:
        return signature_of(spec.image.rpartition("/")[2], image_id or spec.image, spec.command)
    place = _find_script(spec.command) or 0
    program, words = spec.command[place], list(spec.command)
    words.pop(place)
    if place:
        words[0] = PurePath(words[0]).name
    is_found_by_name = place == 0 and "/" not in program
    path = program if is_found_by_name else os.path.normpath(PurePath(spec.working_directory or "/") / program)
    return signature_of(PurePath(path).name, path, words)


def _find_script(command: tuple[str, ...]) -> int | None:
    """Return the index of the script that a command runs: the first word named like one, else an interpreter's first argument."""
    for place, word in enumerate(command):
        if place and is_script(word):
            return place
    if not _INTERPRETER.fullmatch(PurePath(command[0]).name):
        return None
    for place, word in enumerate(command[1:], start=1):
        if word in {"-m", "-c"}:
            return None
        if not word.startswith("-"):
            return place
    return None


def _find_predecessors(context: EngineContext, word: str, submitter: Submitter) -> list[str]:
    """Return the ids of the user's own jobs that a word of `--after` names.

    Raises:
        RequestError: There is none, or one of them has failed already.
    """
    members = context.ledger.members(word, submitter.uid or None)
    with context.ledger.view() as view:
        found = view.peers(members)
    for peer in found.values():
        if (why := failure_text(peer)) is not None:
            raise RequestError(
                f"a job after {word} would never start: {why}", hint="leave --after out, or run it again"
            )
    return list(found)


def _with_directory(submission: Submission) -> Submission:
    spec = submission.spec
    if spec.runtime != "process":
        return submission
    # Relative to this process's directory; the agent's is /.
    directory = str(Path(spec.working_directory or ".").absolute())
    return replace(submission, spec=replace(spec, working_directory=directory))


def _make_entry(element: Element, submitter: Submitter, gpu_model: str | None, now_seconds: float) -> Entry:
    wait_timeout_seconds, begin_seconds = element.submission.wait_timeout_seconds, element.submission.begin_at_seconds
    job = Job(
        id=element.job_id,
        spec=element.spec,
        request=element.submission.request,
        state=JobState.WAITING,
        created_at_seconds=now_seconds,
        owner_uid=submitter.uid,
        place=element.place,
        signature=element.submission.signature,
        gpu_model=gpu_model,
        begin_at_seconds=begin_seconds,
        held_by_uid=submitter.uid if element.submission.is_held else None,
    )
    waits_from_seconds = max(now_seconds, begin_seconds or 0.0)
    deadline_seconds = None if wait_timeout_seconds is None else waits_from_seconds + wait_timeout_seconds
    return Entry(job, wait_deadline_seconds=deadline_seconds)


def _store(context: EngineContext, admissions: "Callable[[], Admissions]", prepared: _Prepared) -> list[Job]:
    entries = prepared.entries
    # A job without any wait time is cancelled in the transaction that stores it, unless it is granted there.
    impatient = [
        entry.job.id
        for entry in entries
        if entry.wait_deadline_seconds is not None and entry.wait_deadline_seconds <= entry.job.created_at_seconds
    ]
    forgotten: list[str] = []

    def add(decision: Decision) -> list[Entry]:
        added = _add(context, decision, prepared)
        forgotten.extend(decision.forget_oldest(context.settings.kept_jobs))
        return added

    stored: Sequence[Entry]
    if context.agent_gpus() and not impatient:
        with context.deciding() as decision:
            stored = add(decision)
    else:
        stored = admissions().submit(entries, add, impatient)
    # A submission forgets up to twice as many jobs as it adds, in steps between which others write.
    last = forgotten
    while len(last) == MOST_FORGOTTEN and len(forgotten) < 2 * len(entries):
        with context.ledger.decision() as decision:
            last = decision.forget_oldest(context.settings.kept_jobs)
        forgotten = [*forgotten, *last]
    # Files go after the commit: a crash in between leaves files without a job, and never a job without its files.
    for job_id in forgotten:
        context.places(job_id).remove()
    return [entry.job for entry in stored]


def _add(context: EngineContext, decision: Decision, prepared: _Prepared) -> list[Entry]:
    entries, submitter = prepared.entries, prepared.submitter
    for request in {entry.job.request for entry in entries}:
        refuse_more_than_quota(decision, submitter.uid, request)
    refuse_more_waiting(decision, submitter.uid, len(entries), prepared.size_bytes, context.settings)
    decision.put_gpus(prepared.gpus, time.time())
    return decision.add_all(entries, submitter.environment, submitter.inherited)
