"""Entries of jobs, and their conversion to columns and back.

Values without a column of their own are JSON in ASCII, so that undecodable bytes survive as escaped surrogates.
"""

import json
import sqlite3
from typing import Any

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
    Place,
    ProcessHolder,
    Request,
    SharingMode,
    SharingWish,
    Slice,
)
from pgpu.structs import Struct, asdict
from pgpu.units import escape_undecodable


class Entry(Struct, frozen=True):
    """One job with its place in the queue and its supervisor."""

    job: Job

    sequence: int = 0
    """Order of arrival; assigned by the ledger when the entry is added."""

    wait_deadline_seconds: float | None = None
    """End of its wait for a grant, in seconds since the epoch; None for no limit."""

    supervisor: ProcessHolder | None = None
    """Its supervisor; None before the supervisor reported, and after it exited normally."""

    spawned_at_seconds: float | None = None
    """When a supervisor was last started for it."""

    stop_grace_seconds: float | None = None
    """Set once a stop was requested: seconds between SIGTERM and SIGKILL."""

    lease_released_at_seconds: float | None = None
    """When the memory of its lease was free again; None before, and without a lease."""

    @property
    def is_lease_held(self) -> bool:
        """Whether it has a lease that is not released."""
        return self.job.lease is not None and self.lease_released_at_seconds is None

    @property
    def is_counted(self) -> bool:
        """Whether its slices count against their GPUs; those of a parked job do not."""
        return self.is_lease_held and self.job.parked_at_seconds is None

    @property
    def is_live(self) -> bool:
        """Whether it is not final, or its memory is not free yet."""
        return not self.job.state.is_final or self.is_lease_held


Columns = dict[str, str | int | float | None]

# Selects all columns of a job and its lease; append WHERE and ORDER BY.
SELECT = """
SELECT jobs.*, leases.granted_at, leases.released_at, leases.enforcer, leases.is_advisory, leases.sharing AS sharing_mode,
    (SELECT json_group_array(json_array(gpu_uuid, memory_bytes, compute_share, resident_bytes)) FROM
        (SELECT * FROM slices WHERE slices.job_id = jobs.id ORDER BY position)) AS slices
FROM jobs LEFT JOIN leases ON leases.job_id = jobs.id
"""


def immutable_columns(entry: Entry, environment_id: int | None, inherited: str | None) -> Columns:
    """Return what is known when a job arrives and never changes."""
    job = entry.job
    return {
        "id": job.id,
        "name": job.spec.name,
        "gpu_model": job.gpu_model,
        "spec": _json(job.spec),
        "gpu_count": job.request.gpu_count,
        "oversubscribes": int(job.request.oversubscribes),
        "preempts": int(job.request.preempts),
        "measures": int(job.request.measures),
        "is_estimated": int(job.request.is_estimated),
        "retries_out_of_memory": int(job.request.retries_out_of_memory),
        "owner_uid": job.owner_uid,
        "place": _json(job.place),
        "signature": job.signature,
        "created_at": job.created_at_seconds,
        "wait_deadline": entry.wait_deadline_seconds,
        "environment_id": environment_id,
        "inherited": inherited,
    }


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
        "suspended_by": job.suspended_by,
        "resumed_at": job.resumed_at_seconds,
        "offered_value": job.offered_value,
        "reclaimed_at": job.reclaimed_at_seconds,
        "parked_at": job.parked_at_seconds,
        "wanted_at": job.wanted_at_seconds,
    }


def _message(text: str | None) -> str | None:
    # A message may quote the command, which may hold undecodable bytes, and SQLite accepts UTF-8 only.
    return None if text is None else escape_undecodable(text)


def _json(value: object) -> str:
    return json.dumps(value, default=asdict)


def entry_of(row: sqlite3.Row) -> Entry:
    """Return the entry of a row of `SELECT`."""
    supervisor = _holder(row["supervisor"])
    return Entry(
        job=_job(row),
        sequence=row["sequence"],
        wait_deadline_seconds=row["wait_deadline"],
        supervisor=supervisor if isinstance(supervisor, ProcessHolder) else None,
        spawned_at_seconds=row["spawned_at"],
        stop_grace_seconds=row["stop_grace"],
        lease_released_at_seconds=row["released_at"],
    )


def _job(row: sqlite3.Row) -> Job:
    return Job(
        id=row["id"],
        spec=_spec(row["spec"]),
        request=request_of(row),
        state=JobState(row["state"]),
        created_at_seconds=row["created_at"],
        started_at_seconds=row["started_at"],
        finished_at_seconds=row["finished_at"],
        exit_code=row["exit_code"],
        reason=row["reason"],
        error=row["error"],
        wait_timed_out=bool(row["wait_timed_out"]),
        peak_bytes=row["peak_bytes"],
        warning=row["warning"],
        lease=_lease(row),
        holder=_holder(row["holder"]),
        suspended_by=row["suspended_by"],
        resumed_at_seconds=row["resumed_at"],
        offered_value=row["offered_value"],
        reclaimed_at_seconds=row["reclaimed_at"],
        parked_at_seconds=row["parked_at"],
        wanted_at_seconds=row["wanted_at"],
        gpu_model=row["gpu_model"],
        owner_uid=row["owner_uid"],
        place=place_of(row["place"]),
        signature=row["signature"],
        attempt=row["attempt"],
        expected_start_seconds=row["expected_start"],
    )


def request_of(row: sqlite3.Row) -> Request:
    """Return the request of a row of `SELECT`."""
    return Request(
        memory_bytes=row["memory_bytes"],
        gpu_count=row["gpu_count"],
        compute_share=row["compute_share"],
        priority=row["priority"],
        is_estimated=bool(row["is_estimated"]),
        retries_out_of_memory=bool(row["retries_out_of_memory"]),
        basis=row["basis"],
        is_strict=bool(row["is_strict"]),
        sharing=SharingWish(row["sharing"]),
        oversubscribes=bool(row["oversubscribes"]),
        preempts=bool(row["preempts"]),
        measures=bool(row["measures"]),
    )


def place_of(text: str) -> Place:
    """Return the dependencies, array and batch of a job from their JSON."""
    fields: dict[str, Any] = json.loads(text)
    fields["after"] = tuple(fields.get("after", ()))
    if (batch := fields.get("batch")) is not None:
        fields["batch"] = Batch(**batch)
    return Place(**fields)


def _spec(text: str) -> JobSpec:
    fields: dict[str, Any] = json.loads(text)
    fields["command"] = tuple(fields["command"])
    fields["environment"] = tuple((name, value) for name, value in fields["environment"])
    for name in ("volumes", "provisions"):  # specs of older versions have no provisions
        fields[name] = tuple(Mount(**volume) for volume in fields.get(name, ()))
    return JobSpec(**fields)


def _lease(row: sqlite3.Row) -> Lease | None:
    if row["granted_at"] is None:
        return None
    return Lease(
        job_id=row["id"],
        slices=tuple(Slice(*part) for part in json.loads(row["slices"])),
        granted_at_seconds=row["granted_at"],
        enforcer=row["enforcer"],
        is_advisory=bool(row["is_advisory"]),
        sharing=SharingMode(row["sharing_mode"]),
    )


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
