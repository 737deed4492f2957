"""Reports on past runs: the history of each call, memory that jobs reserved but did not use, and profiles of traced jobs.

The caller decides which user's runs may be shown.
"""

import base64
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from pgpu.advising.memory_demand import right_size_bytes, was_too_small
from pgpu.enforcement import trace
from pgpu.engine.context import EngineContext
from pgpu.engine.history.run_history import history_name, name_of_gpu
from pgpu.engine.history.usage_records import CallHistory, Findings, Profiled, Waste, unpack_log
from pgpu.errors import JobNotFoundError, RequestError
from pgpu.ledger import Entry
from pgpu.model import Profile, Run
from pgpu.profiling.measurement import profile_of, summarise_log

_Call = tuple[str, str, int]
"""Signature, model of the GPU, UID."""

MOST_RUNS = 5000
"""Only so many of the newest runs are read."""


def read_history(context: EngineContext, word: str | None, owner_uid: int | None = None) -> list[CallHistory]:
    """Return the history of every call, the latest first.

    Args:
        context: Of the ledger.
        word: A signature, the beginning of one, or the id or name of a job; None for all.
        owner_uid: Only runs of this user; None for all users.

    Raises:
        RequestError: No run matches the word.
    """
    called = ""
    if word is not None:
        with suppress(JobNotFoundError):
            called = context.ledger.find(word, owner_uid).job.signature
    with context.ledger.view() as view:
        calls: dict[_Call, list[Run]] = {}
        for run in view.history.runs(owner_uid, MOST_RUNS):
            calls.setdefault((run.signature, run.gpu_name, run.owner_uid), []).append(run)
        wanted = list(calls) if word is None else _match_calls(word, called, calls)
        newest_first = sorted(wanted, key=lambda call: calls[call][-1].ended_at_seconds, reverse=True)
        return [
            CallHistory(*call, tuple(calls[call]), context.learning.estimate(view, call[0], call[2], call[1]))
            for call in newest_first
        ]


def _match_calls(word: str, called: str, calls: dict[_Call, list[Run]]) -> Sequence[_Call]:
    """Return the call with this exact signature, else those with a signature that begins so, else those of a job with this id or name."""
    begun = [call for call in calls if call[0].startswith(word)]
    same = [call for call in begun if call[0] == word]
    of_job = [call for call, runs in calls.items() if call[0] == called or any(run.job_id == word for run in runs)]
    if not (same or begun or of_job):
        raise RequestError(f"no run of {word!r} is known", hint="`pgpu history` lists every program that ran")
    return same or begun or of_job


def read_waste(context: EngineContext, owner_uid: int | None = None) -> list[Waste]:
    """Return what every known job reserved and used, running ones last.

    Args:
        context: Of the ledger.
        owner_uid: Only jobs of this user; None for all users.

    Raises:
        NodeError: A meter or the GPUs cannot be read.
    """
    with context.ledger.view() as view:
        # One view for both lists: a job that ends meanwhile is in exactly one of them.
        ended = [waste_of(run) for run in view.history.runs(owner_uid, MOST_RUNS)]
        holding = [entry for entry in view.holding() if owner_uid in {None, entry.job.owner_uid}]
    return ended + list(_waste_of_running(context, [entry for entry in context.queue_of(holding) if entry.is_counted]))


def waste_of(run: Run) -> Waste:
    """Return what one ended run reserved and used."""
    is_known = run.peak_bytes > 0 and not run.sizes_itself
    return Waste(
        run.job_id,
        run.owner_uid,
        run.signature,
        run.gpu_name,
        run.slice_bytes,
        run.peak_bytes,
        right_size_bytes(run.peak_bytes) if is_known else None,
        run.sizes_itself,
        was_too_small(run),
        run.duration_seconds,
    )


def _waste_of_running(context: EngineContext, entries: Sequence[Entry]) -> Iterator[Waste]:
    names = {gpu.uuid: history_name(gpu) for gpu in context.gpus.gpus()}
    for entry in entries:
        job = entry.job
        if job.lease is None or not job.lease.slices or job.state.is_final:
            continue
        peak_bytes = max((use.peak_bytes for use in context.enforcer.use(job.lease)), default=0)
        part = job.lease.slices[0]
        name = names.get(part.gpu_uuid, part.gpu_uuid)
        yield Waste(
            job.id,
            job.owner_uid,
            job.signature,
            name,
            part.memory_bytes,
            peak_bytes,
            should_ask_bytes=None,
            is_greedy=False,
            was_too_small=False,
            duration_seconds=None,
        )


def read_profiled(context: EngineContext, job_id: str) -> Profiled:
    """Return the stored log and profile of a traced job that ended.

    Raises:
        RequestError: There is none.
    """
    try:
        packed = base64.b64encode(context.places(job_id).trace.read_bytes()).decode("ascii")
    except OSError as exc:
        raise RequestError(f"job {job_id} was not profiled", hint="run it again with `pgpu profile`") from exc
    with context.ledger.view() as view:
        job, profile = view.entry(job_id).job, view.profiles.of_job(job_id)
    if profile is None:  # a run that shows nothing about the next, such as one that failed, is not in the ledger
        name = name_of_gpu(job, context.gpus.gpus()) or "unknown"
        profile = profile_of(summarise_log(trace.read(unpack_log(packed))), job, name, time.time())
    return Profiled(job_id, profile, packed)


def add_findings(context: EngineContext, job_id: str, findings: Findings) -> Profile:
    """Complete the profile of one run by results of several; it becomes the newest of its program.

    Raises:
        RequestError: That job has no profile, or a result is no finite number.
    """
    sensitivity = findings.sensitivity
    numbers = [each for each in (sensitivity.cache, sensitivity.l2, sensitivity.dram) if each is not None]
    numbers += [demand.fraction for demand in findings.demands]
    for contest in findings.contests:
        numbers += [
            contest.sm_fraction,
            contest.slowdown,
            contest.antagonist_slowdown,
            contest.antagonist_fraction or 0.0,
        ]
    if not all(math.isfinite(value) for value in numbers):
        raise RequestError("what was found is no finite number")
    with context.ledger.decision() as decision:
        profile = decision.profiles.of_job(job_id)
        if profile is None:
            raise RequestError(f"job {job_id} was not profiled")
        profile = findings.merge_into(profile)
        decision.profiles.add(profile, job_id)
    return profile
