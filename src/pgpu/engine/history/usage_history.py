"""What jobs reserved and what they used: the history of each call, and where memory was reserved for nothing.

It reads; it refuses to change anything, and leaves it to its caller who may see whose runs.
"""

from collections.abc import Iterator, Sequence

from pgpu.engine.engine import Engine
from pgpu.engine.history.run_history import history_name
from pgpu.engine.history.usage_records import CallHistory, Waste
from pgpu.errors import JobNotFoundError, RequestError
from pgpu.ledger import Entry, View
from pgpu.model import Run
from pgpu.scheduling.demand import is_greedy, right_size_bytes, was_too_small

_Call = tuple[str, str, int]
"""Signature, product name of the GPU, UID."""

MOST_RUNS = 5000
"""So many of the newest runs are looked at."""


def read_history(engine: Engine, word: str | None, owner_uid: int | None = None) -> list[CallHistory]:
    """Return the history of every call, the one that ran last first.

    Args:
        engine: Whose ledger it is.
        word: A signature, the beginning of one, or the id or name of a job; None for all.
        owner_uid: Whose runs; None for everybody's.

    Raises:
        RequestError: Nothing is known under this word.
    """
    called = "" if word is None else _signature_of_job(engine, word, owner_uid)
    with engine.ledger.view() as view:
        calls: dict[_Call, list[Run]] = {}
        for run in view.history.runs(owner_uid, MOST_RUNS):
            calls.setdefault((run.signature, run.gpu_name, run.owner_uid), []).append(run)
        wanted = list(calls) if word is None else _matching(word, called, calls)
        newest_first = sorted(wanted, key=lambda call: calls[call][-1].ended_at_seconds, reverse=True)
        return [_history_of(engine, view, call, calls[call]) for call in newest_first]


def _matching(word: str, called: str, calls: dict[_Call, list[Run]]) -> Sequence[_Call]:
    """Return the call that is named exactly, else those whose names begin so, else those of the job that is meant."""
    begun = [call for call in calls if call[0].startswith(word)]
    same = [call for call in begun if call[0] == word]
    of_job = [call for call, runs in calls.items() if call[0] == called or any(run.job_id == word for run in runs)]
    if not (same or begun or of_job):
        raise RequestError(f"no run of {word!r} is known", hint="`pgpu history` lists every program that ran")
    return same or begun or of_job


def _signature_of_job(engine: Engine, word: str, owner_uid: int | None) -> str:
    try:
        return engine.ledger.find(word, owner_uid).job.signature
    except JobNotFoundError:
        return ""


def _history_of(engine: Engine, view: View, call: _Call, runs: Sequence[Run]) -> CallHistory:
    signature, gpu_name, uid = call
    return CallHistory(*call, tuple(runs), engine.learning.estimate(view, signature, uid, gpu_name))


def read_waste(engine: Engine, owner_uid: int | None = None) -> list[Waste]:
    """Return what every remembered job reserved and used, running ones last.

    Args:
        engine: Whose ledger it is.
        owner_uid: Whose jobs; None for everybody's.

    Raises:
        NodeError: A meter or the GPUs cannot be read.
    """
    with engine.ledger.view() as view:
        ended = [waste_of(run) for run in view.history.runs(owner_uid, MOST_RUNS)]
        holding = [entry for entry in view.holding() if owner_uid in {None, entry.job.owner_uid}]
    return ended + list(_running(engine, [entry for entry in engine.queue_of(holding) if entry.is_counted]))


def waste_of(run: Run) -> Waste:
    """Return what one ended run reserved and used."""
    greedy = is_greedy(run)
    is_known = run.peak_bytes > 0 and not greedy
    return Waste(
        run.job_id,
        run.owner_uid,
        run.signature,
        run.gpu_name,
        run.slice_bytes,
        run.peak_bytes,
        right_size_bytes(run.peak_bytes) if is_known else None,
        greedy,
        was_too_small(run),
        run.duration_seconds,
    )


def _running(engine: Engine, entries: Sequence[Entry]) -> Iterator[Waste]:
    names = {gpu.uuid: history_name(gpu) for gpu in engine.gpus.gpus()}
    for entry in entries:
        job = entry.job
        if job.lease is None or not job.lease.slices or job.state.is_final:
            continue
        peak_bytes = max((use.peak_bytes for use in engine.enforcer.use(job.lease)), default=0)
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
