"""Entries of jobs, and their conversion to columns and back.

Values without a column of their own are JSON, in which undecodable bytes survive as escaped surrogates.
"""

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeVar

from pgpu.model import (
    Batch,
    ClaimHolder,
    ContainerHolder,
    Holder,
    Job,
    JobSpec,
    JobState,
    Lease,
    Mount,
    Objective,
    OnTimeLimit,
    Place,
    ProcessHolder,
    Request,
    SharingMode,
    SharingWish,
    Slice,
)
from pgpu.structs import DecodeError, JsonDecoder, Struct, asdict, convert, encode_json, replace
from pgpu.units import escape_undecodable

Moment = tuple[float, str]
"""Seconds of the monotonic clock, and the id of the boot."""


class GrowthWait(Struct, frozen=True):
    """Waits of a running job for larger slices (`scheduling.slice_growth`). Times are in seconds since the epoch."""

    first_seconds: float
    """Of its first wait in this attempt."""

    since_seconds: float
    need_bytes: int | None
    """Of each slice; None once the wait is over."""


class Entry(Struct, frozen=True):
    """One job with its place in the queue and the process that supervises it."""

    job: Job

    sequence: int = 0
    """Order of arrival; assigned by the ledger when the entry is added."""

    wait_deadline_seconds: float | None = None
    """End of its wait for a grant, in seconds since the epoch; None for no limit."""

    supervisor: ProcessHolder | None = None
    """The process that supervises it: the agent; None before its thread began and after the release."""

    spawned_at_seconds: float | None = None
    """Of the release before this one: when a process was last started for it."""

    stop_grace_seconds: float | None = None
    """Set once a stop was requested: seconds between SIGTERM and SIGKILL."""

    lease_released_at_seconds: float | None = None
    """When the memory of its lease was free again; None before, and without a lease."""

    ran_seconds: float = 0.0
    """How long it had run by its last write in this attempt, without time in which it was suspended or parked."""

    runs_since: Moment | None = None
    """When that was; None while it does not run on."""

    growth: GrowthWait | None = None
    """None while it never waited for larger slices in this attempt."""

    def run_seconds(self, now: Moment) -> float:
        """Return how long it has run by now; of an earlier boot only what was written then counts."""
        since_seconds, boot = self.runs_since or now
        return self.ran_seconds + (max(0.0, now[0] - since_seconds) if boot == now[1] else 0.0)

    @property
    def is_lease_held(self) -> bool:
        """Whether it has a lease that is not released."""
        return self.job.lease is not None and self.lease_released_at_seconds is None

    @property
    def is_counted(self) -> bool:
        """Whether its slices count against their GPUs; those of a parked job do not."""
        return self.is_lease_held and self.job.parked_at_seconds is None

    @property
    def waits_to_grow(self) -> bool:
        """Whether it runs and waits for larger slices."""
        return self.growth is not None and self.growth.need_bytes is not None

    @property
    def is_live(self) -> bool:
        """Whether it is not final, or its memory is not free yet."""
        return not self.job.state.is_final or self.is_lease_held


class LongParts(Struct, frozen=True):
    """The parts of a spec that may be long, as of `JobSpec`."""

    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    volumes: tuple[Mount, ...]

    @classmethod
    def of(cls, spec: JobSpec) -> "LongParts":
        """Return those of a spec that is not abridged."""
        return cls(spec.command, spec.environment, spec.volumes)

    def text(self) -> str | None:
        """Return them as they are stored; None where they are short."""
        text = _json(self)
        return text if len(text) > MOST_INLINE_CHARACTERS else None


T = TypeVar("T")
Columns = dict[str, str | int | float | None]

Row = Sequence[Any]

# All columns of a job, its request, its entry and its lease, as `entry_of` unpacks them; append WHERE and ORDER BY. Jobs
# without a lease are spared the subquery of slices.
SELECT = """
SELECT jobs.id, spec, state, created_at, started_at, finished_at, exit_code, reason, error, wait_timed_out, peak_bytes,
    warning, holder, owner_uid, place, signature, attempt, expected_start, suspended_by, resumed_at, offered_value,
    reclaimed_at, parked_at, wanted_at, gpu_model, batch, begin_at, held_by, hit_time_limit,
    memory_bytes, gpu_count, compute_share, priority, is_estimated, retries_out_of_memory, basis, is_strict, jobs.sharing,
    oversubscribes, preempts, measures, objective, time_limit, on_time_limit, gpu_models,
    sequence, wait_deadline, supervisor, spawned_at, stop_grace, growth,
    leases.ran, iif(state = 'running', charged_since, NULL), charged_boot,
    granted_at, released_at, enforcer, is_advisory, leases.sharing,
    iif(granted_at IS NULL, NULL,
        (SELECT json_group_array(json_array(gpu_uuid, memory_bytes, compute_share, resident_bytes)) FROM
            (SELECT gpu_uuid, memory_bytes, compute_share, resident_bytes FROM slices WHERE slices.job_id = jobs.id
            ORDER BY position)))
FROM jobs LEFT JOIN leases ON leases.job_id = jobs.id
"""

# The spec of one job as it was submitted; `long_specs` has the parts that are left out of an abridged one.
SELECT_SPEC = """
SELECT jobs.spec, parts FROM jobs LEFT JOIN long_specs ON long_specs.id = long_spec WHERE jobs.id = ?
"""

MOST_INLINE_CHARACTERS = 1024
"""Longer parts of a spec are stored once for all jobs of a submission, and their jobs have abridged specs."""

_JOB, _REQUEST, _ENTRY, _LEASE = slice(0, 29), slice(29, 45), slice(45, 54), slice(54, 60)
_SPECS, _PLACES, _BATCHES = JsonDecoder(JobSpec), JsonDecoder(Place), JsonDecoder(Batch)
_GROWTHS = JsonDecoder(GrowthWait)
_PARTS = JsonDecoder(LongParts)
_STATES = {state.value: state for state in JobState}


def immutable_columns(
    entry: Entry, environment_id: int | None, inherited: str | None, long_spec: int | None
) -> Columns:
    """Return what is known when a job arrives and never changes.

    Args:
        entry: With an abridged spec if `long_spec` has its long parts.
        environment_id: Of the environment; None without one.
        inherited: As of `Decision.add`.
        long_spec: Of the long parts; None where they are in the spec.
    """
    job, (spec, place) = entry.job, element_columns(entry)
    return {
        "id": job.id,
        "name": job.spec.name,
        "gpu_model": job.gpu_model,
        "spec": spec,
        "gpu_count": job.request.gpu_count,
        "oversubscribes": int(job.request.oversubscribes),
        "preempts": int(job.request.preempts),
        "measures": int(job.request.measures),
        "objective": job.request.objective.value,
        "time_limit": job.request.time_limit_seconds,
        "on_time_limit": job.request.on_time_limit.value,
        "begin_at": job.begin_at_seconds,
        "gpu_models": json.dumps(job.request.gpu_models) if job.request.gpu_models else None,
        "is_estimated": int(job.request.is_estimated),
        "retries_out_of_memory": int(job.request.retries_out_of_memory),
        "owner_uid": job.owner_uid,
        "place": place,
        "batch": None if job.place.batch is None else _json(job.place.batch),
        "signature": job.signature,
        "created_at": job.created_at_seconds,
        "wait_deadline": entry.wait_deadline_seconds,
        "environment_id": environment_id,
        "inherited": inherited,
        "long_spec": long_spec,
    }


def element_columns(entry: Entry) -> tuple[str, str]:
    """Return spec and place: of these, and of ids and names, each element of an array has its own."""
    job = entry.job
    # The batch has a column of its own, which admission reads.
    return _json(job.spec), _json(job.place if job.place.batch is None else replace(job.place, batch=None))


def stored_bytes(entry: Entry) -> tuple[int, int]:
    """Return about how many bytes a new entry adds to the ledger: in its own row, and for all jobs that share its long parts."""
    job = entry.job
    parts = LongParts.of(job.spec).text() or ""
    spec = job.spec.abridged() if parts else job.spec
    return sum(len(_json(part)) for part in (spec, job.place, job.request)) + len(job.signature), len(parts)


def mutable_columns(entry: Entry) -> Columns:
    """Return what changes during the life of a job."""
    job = entry.job
    return {
        "state": job.state.value,
        "memory_bytes": job.request.memory_bytes,
        "basis": job.request.basis,
        "compute_share": job.request.compute_share,
        "is_strict": int(job.request.is_strict),
        "sharing": job.request.sharing.value,
        "priority": job.request.priority,
        "attempt": job.attempt,
        "expected_start": job.expected_start_seconds,
        "started_at": job.started_at_seconds,
        "finished_at": job.finished_at_seconds,
        "exit_code": job.exit_code,
        "reason": _message(job.reason),
        "error": _message(job.error),
        "wait_timed_out": int(job.wait_timed_out),
        "peak_bytes": job.peak_bytes,
        "warning": _message(job.warning),
        "holder": _holder_text(job.holder),
        "supervisor": _holder_text(entry.supervisor),
        "spawned_at": entry.spawned_at_seconds,
        "stop_grace": entry.stop_grace_seconds,
        "growth": None if entry.growth is None else _json(entry.growth),
        "suspended_by": job.suspended_by,
        "resumed_at": job.resumed_at_seconds,
        "offered_value": job.offered_value,
        "reclaimed_at": job.reclaimed_at_seconds,
        "parked_at": job.parked_at_seconds,
        "wanted_at": job.wanted_at_seconds,
        "held_by": job.held_by_uid,
        "hit_time_limit": int(job.hit_time_limit),
    }


def _message(text: str | None) -> str | None:
    # A message may quote the command, which may hold undecodable bytes, and SQLite accepts UTF-8 only.
    return None if text is None else escape_undecodable(text)


def _json(value: object) -> str:
    with suppress(UnicodeEncodeError):  # a lone surrogate, which only the standard library writes
        return encode_json(value).decode()
    return json.dumps(value, default=asdict)


def spec_of(row: Row) -> JobSpec:
    """Return the spec of a row of `SELECT_SPEC`; abridged where its long parts were let go after the job's end."""
    spec = _decode(_SPECS, row[0])
    if row[1] is None:
        return spec
    parts = _decode(_PARTS, row[1])
    return replace(spec, command=parts.command, environment=parts.environment, volumes=parts.volumes, is_abridged=False)


def entry_of(row: Iterable[Any]) -> Entry:
    """Return the entry of a row of `SELECT`; a long spec is abridged."""
    # By position: `sqlite3.Row` finds a name by comparing it with every column before it, and queues are thousands of rows long.
    columns = tuple(row)
    sequence, wait_deadline, supervisor_text, spawned_at, stop_grace, growth, *running = columns[_ENTRY]
    ran_seconds, since_seconds, boot = running
    supervisor = _holder(supervisor_text)
    return Entry(
        _job(columns),
        sequence,
        wait_deadline,
        supervisor if isinstance(supervisor, ProcessHolder) else None,
        spawned_at,
        stop_grace,
        columns[_LEASE][1],
        ran_seconds or 0.0,
        None if since_seconds is None else (since_seconds, boot),
        None if growth is None else _GROWTHS.decode(growth),
    )


def _job(columns: Row) -> Job:
    job_id, spec, state, created_at, started_at, finished_at, exit_code, reason, error, timed_out, *rest = columns[_JOB]
    peak_bytes, warning, holder, owner_uid, place, signature, attempt, expected_start, *leaving = rest
    suspended_by, resumed_at, offered_value, reclaimed_at, parked_at, wanted_at, gpu_model, batch, *starting = leaving
    begin_at, held_by, hit_time_limit = starting
    return Job(
        job_id,
        _decode(_SPECS, spec),
        _request(columns[_REQUEST]),
        _STATES[state],
        created_at,
        started_at,
        finished_at,
        exit_code,
        reason,
        error,
        bool(timed_out),
        peak_bytes,
        warning,
        _lease(job_id, columns[_LEASE]),
        _holder(holder),
        owner_uid,
        _place(place, batch),
        signature,
        attempt,
        expected_start,
        suspended_by,
        resumed_at,
        offered_value,
        reclaimed_at,
        parked_at,
        wanted_at,
        gpu_model,
        begin_at_seconds=begin_at,
        held_by_uid=held_by,
        hit_time_limit=bool(hit_time_limit),
    )


@lru_cache(maxsize=1024)
def _request(columns: Row) -> Request:
    # Cached, since the jobs of an array have equal ones. The columns of `_REQUEST`, which are the fields of a request.
    memory_bytes, gpu_count, compute_share, priority, is_estimated, retries, basis, is_strict, sharing, *rest = columns
    oversubscribes, preempts, measures, objective, time_limit_seconds, on_time_limit, gpu_models = rest
    return Request(
        memory_bytes,
        gpu_count,
        compute_share,
        priority,
        bool(is_estimated),
        bool(retries),
        basis,
        bool(is_strict),
        SharingWish(sharing),
        bool(oversubscribes),
        bool(preempts),
        bool(measures),
        Objective(objective or Objective.RESPONSE),
        time_limit_seconds,
        OnTimeLimit(on_time_limit or OnTimeLimit.STOP),
        tuple(json.loads(gpu_models)) if gpu_models else (),
    )


def _place(text: str, batch: str | None) -> Place:
    place = _decode(_PLACES, text)
    return place if batch is None else replace(place, batch=_batch(batch))


@lru_cache(maxsize=1024)
def _batch(text: str) -> Batch:
    # Cached, since the jobs of a batch have equal ones.
    return _decode(_BATCHES, text)


def _decode(decoder: JsonDecoder[T], text: str) -> T:
    try:
        return decoder.decode(text)
    except DecodeError:  # An undecodable byte is a lone surrogate, which only the standard library reads.
        return convert(json.loads(text), decoder.type)


def _lease(job_id: str, columns: Row) -> Lease | None:
    granted_at, _, enforcer, is_advisory, sharing, slices = columns
    if granted_at is None:
        return None
    return Lease(
        job_id, _slices(slices), granted_at, enforcer, is_advisory=bool(is_advisory), sharing=SharingMode(sharing)
    )


@lru_cache(maxsize=1024)
def _slices(text: str) -> tuple[Slice, ...]:
    # Cached, since each round reads the leases of all jobs that run.
    return tuple(Slice(*part) for part in json.loads(text))


def _holder_text(holder: Holder | None) -> str | None:
    return None if holder is None else _json(holder)


def _holder(text: str | None) -> Holder | None:
    if text is None:
        return None
    fields: dict[str, Any] = json.loads(text)
    # No kind is stored: each has a field that the others do not have.
    if "claim_uid" in fields:
        return ClaimHolder(**fields)
    return ContainerHolder(**fields) if "container_id" in fields else ProcessHolder(**fields)
