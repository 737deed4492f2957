"""The objects that `--json` prints, according to the JSON Schemas in `schemas/`.

Fields are only ever added. A job's environment is never included: it may hold secrets.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pgpu.cli import exits
from pgpu.errors import PgpuError, RequestError
from pgpu.model import SIMULATED_PREFIX
from pgpu.structs import asdict, to_builtins

if TYPE_CHECKING:
    from pgpu.client import CallHistory, GpuReport, JobReport, QueueReport, UsageReport, UserShare, Waste
    from pgpu.kubernetes.pod_shares import SeenShare
    from pgpu.model import GpuSeries, Job

SCHEMA_VERSION = 1

Document = dict[str, Any]


def document(**content: Any) -> Document:
    """Return an object with the schema's version first."""
    return {"schema_version": SCHEMA_VERSION, **content}


def of_error(error: PgpuError) -> Document:
    """Describe an error, with its exit code."""
    from pgpu.cli.output.error_codes import code_of

    nearest_bytes = error.nearest_bytes if isinstance(error, RequestError) else None
    return document(
        error={
            "kind": type(error).__name__,
            "message": str(error),
            "code": code_of(" ".join(str(error).split())),
            "hint": error.hint,
            "nearest_bytes": nearest_bytes,
            "exit_code": exits.of_error(error),
        }
    )


def of_job(report: "JobReport") -> Document:
    return document(job=_job(report))


def of_jobs(reports: "Iterable[JobReport]") -> Document:
    """Describe several jobs, in the order given."""
    return document(jobs=[_job(report) for report in reports])


def of_queue(reports: "Iterable[QueueReport]") -> Document:
    """Describe the waiting jobs, in the order given."""
    from pgpu.client import JobReport

    return document(
        queue=[
            {
                "position": each.position,
                "job": _job(JobReport(each.job, ())),
                "rule": each.rule,
                "place_rule": each.place_rule,
                "place_seconds": each.place_seconds,
                "is_start_known": each.is_start_known,
                "doubt": each.doubt,
                "doubted": each.doubted,
                "not_before_seconds": each.not_before_seconds,
                "by_seconds": each.by_seconds,
            }
            for each in reports
        ]
    )


def of_gpus(reports: "Iterable[GpuReport]") -> Document:
    """Describe GPUs, in the order given."""
    gpus = []
    for report in reports:
        rest = {name: value for name, value in asdict(report).items() if name != "gpu"}
        outsiders = [
            {"pid": each.process.pid, "program": each.program, "uid": each.uid, "used_bytes": each.used_bytes}
            for each in report.outsiders
        ]
        gpu = {**to_builtins(report.gpu), **rest}
        sensors = to_builtins(report.sensors)
        gpus.append({**gpu, "jobs": list(report.jobs), "outsiders": outsiders, "sensors": sensors})
    return document(gpus=gpus)


def of_history(calls: "Iterable[CallHistory]") -> Document:
    """Describe calls and their runs, in the order given."""
    return document(
        calls=[{**to_builtins(call), "is_simulated": call.gpu_name.startswith(SIMULATED_PREFIX)} for call in calls]
    )


def of_gpu_history(found: "Iterable[GpuSeries]") -> Document:
    """Describe the minutes of GPUs, in columns."""
    return document(gpus=[to_builtins(each) for each in found])


def of_waste(found: "Iterable[Waste]") -> Document:
    """Describe reserved and used memory of jobs, in the order given."""
    return document(
        jobs=[
            {
                **to_builtins(each),
                "factor": each.factor,
                "is_simulated": each.gpu_name.startswith(SIMULATED_PREFIX),
            }
            for each in found
        ]
    )


def of_usage(found: "Iterable[UsageReport]") -> Document:
    """Describe the usage of users, in the order given."""
    return document(
        users=[
            {**to_builtins(each.usage), "gpu_hours_quota": None if each.quota is None else to_builtins(each.quota)}
            for each in found
        ]
    )


def of_shares(found: "Iterable[UserShare]") -> Document:
    """Describe the users of a queue, in the order given."""
    return document(shares=[to_builtins(each) for each in found])


def of_pods(seen: "Iterable[SeenShare]") -> Document:
    """Describe slices with their containers, in the order given."""
    return document(
        slices=[{**to_builtins(each.share), "gpu": each.gpu, "is_simulated": each.is_simulated} for each in seen]
    )


def of_top(gpus: "Iterable[GpuReport]", jobs: "Iterable[JobReport]") -> Document:
    """Describe the machine at one moment."""
    return {**of_gpus(gpus), **of_jobs(jobs)}


def _job(report: "JobReport") -> Document:
    job = report.job
    return {
        "id": job.id,
        "name": job.spec.name,
        "state": job.state.value,
        "is_simulated": job.is_simulated,
        "gpu_model": job.gpu_model,
        "runtime": job.spec.runtime,
        "image": job.spec.image,
        "command": list(job.spec.command),
        "request": to_builtins(job.request),
        "created_at_seconds": job.created_at_seconds,
        "started_at_seconds": job.started_at_seconds,
        "finished_at_seconds": job.finished_at_seconds,
        "exit_code": job.exit_code,
        "reason": job.reason,
        "error": job.error,
        "wait_timed_out": job.wait_timed_out,
        "warning": job.warning,
        "suspended_by": job.suspended_by,
        "resumed_at_seconds": job.resumed_at_seconds,
        "serves": job.spec.serves,
        "notify": job.spec.notify,
        "notifies": job.spec.notifies,
        "offered_value": job.offered_value,
        "reclaimed_at_seconds": job.reclaimed_at_seconds,
        "parked_at_seconds": job.parked_at_seconds,
        "wanted_at_seconds": job.wanted_at_seconds,
        "peak_bytes": job.peak_bytes,
        "lease": _lease(report),
        "time": [to_builtins(each) for each in report.time],
        "holder": to_builtins(job.holder) if job.holder else None,
        "owner_uid": job.owner_uid,
        "place": {**to_builtins(job.place), "after": list(job.place.after)},
        "signature": job.signature,
        "attempt": job.attempt,
        "expected_start_seconds": job.expected_start_seconds,
        "expected_gpu_uuids": list(job.expected_gpu_uuids),
        "begin_at_seconds": job.begin_at_seconds,
        "held_by_uid": job.held_by_uid,
        "hit_time_limit": job.hit_time_limit,
        "run_seconds": report.run_seconds,
        "count": report.count,
    }


def _lease(report: "JobReport") -> Document | None:
    lease = report.job.lease
    if lease is None:
        return None
    use_by_gpu = {use.gpu_uuid: use for use in report.use}
    indices = report.gpus or [None] * len(lease.slices)
    slices = [
        (granted, use_by_gpu.get(granted.gpu_uuid), index) for granted, index in zip(lease.slices, indices, strict=True)
    ]
    return {
        "granted_at_seconds": lease.granted_at_seconds,
        "enforcer": lease.enforcer,
        "is_advisory": lease.is_advisory,
        "sharing": lease.sharing,
        "slices": [
            {
                **to_builtins(granted),
                "gpu_index": index,
                "used_bytes": use.used_bytes if use else None,
                "peak_bytes": use.peak_bytes if use else None,
                "refusals": use.refusals if use else None,
            }
            for granted, use, index in slices
        ],
    }


def of_ended_job(job: "Job") -> Document:
    """Describe a job that ended and has no lease any more."""
    from pgpu.client import JobReport

    return of_job(JobReport(job, ()))
