"""Decides whether a claim fits now, by the room of its GPUs, and writes the job that stands for it."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pgpu.engine.submission.job_submission import new_job_id
from pgpu.errors import CapacityError, NodeError, RequestError
from pgpu.ledger import Decision, Entry
from pgpu.model import KUBERNETES_UID, Claim, Job, JobSpec, JobState, Lease, Request, Slice
from pgpu.runtimes.claimed import CLAIM_VARIABLE
from pgpu.scheduling import GpuRoom, has_compute
from pgpu.scheduling.capacity import (
    host_bytes,
    mode_of,
    most_clients,
    resident_bytes,
    short_of_host_memory,
    supports_mode,
    with_host_part,
)
from pgpu.units import format_memory

_MOST_GPUS = 16
_UID_DIGITS = 8


def check_words(claim: Claim) -> None:
    """Raise RequestError for a claim that no node could hold."""
    uuids = [part.gpu_uuid for part in claim.slices]
    if not 1 <= len(uuids) <= _MOST_GPUS or len(set(uuids)) != len(uuids):
        raise RequestError(f"a claim is for slices of 1 to {_MOST_GPUS} GPUs, of each GPU one")
    if not all(part.memory_bytes > 0 for part in claim.slices):
        raise RequestError("a slice must have memory")
    if len({part.compute_share for part in claim.slices}) != 1:
        raise RequestError("the slices of one claim must have the same share of their GPUs' time")


def request_of(claim: Claim, parts: Sequence[Slice]) -> Request:
    """Return some slices of a claim as a job's request; of several sizes the largest."""
    return Request(
        max(part.memory_bytes for part in parts),
        len(parts),
        parts[0].compute_share,
        claim.priority,
        is_strict=claim.is_strict,
        sharing=claim.sharing,
        oversubscribes=claim.oversubscribes,
    )


def check_room(claim: Claim, rooms: Mapping[str, GpuRoom], factor: float, holders: Sequence[Entry]) -> None:
    """Refuse a claim for which there is no room now.

    Args:
        claim: To be held.
        rooms: Of the node's GPUs, by UUID.
        factor: How far GPUs may be oversubscribed.
        holders: Jobs with slices, for the error message.

    Raises:
        RequestError: A GPU does not support the sharing mode.
        CapacityError: There is no room.
        NodeError: A GPU is not there.
    """
    for part in claim.slices:
        room = rooms.get(part.gpu_uuid)
        if room is None:
            raise NodeError(f"GPU {part.gpu_uuid} is not on this node now")
        _check_mode(claim, room)
        needed_bytes = _device_bytes(claim, part, factor)
        if needed_bytes > room.free_bytes:
            raise CapacityError(
                f"{format_memory(needed_bytes)} do not fit on GPU {part.gpu_uuid} now: {format_memory(room.free_bytes)} of"
                f" {format_memory(room.capacity_bytes)} are free{_holders_text(part.gpu_uuid, holders)}"
            )
        if not has_compute(room.free_compute, part.compute_share or 0.0):
            raise CapacityError(f"{room.free_compute:.0%} of the time of GPU {part.gpu_uuid} are free now")


def check_host_room(claim: Claim, factor: float, holders: Sequence[Entry], available_bytes: int) -> None:
    """Raise CapacityError for an oversubscribing claim if its memory would not fit into the host's now."""
    if claim.oversubscribes:
        promised_bytes = sum(host_bytes(entry.job.lease.slices) for entry in holders if entry.job.lease is not None)
        asked = [(claim.uid, request_of(claim, claim.slices))]
        for why in short_of_host_memory(asked, promised_bytes, available_bytes, factor).values():
            raise CapacityError(f"claim {claim.namespace}/{claim.name} {why}")


def _check_mode(claim: Claim, room: GpuRoom) -> None:
    mode = mode_of(claim.sharing)
    if not supports_mode(room.gpu, request_of(claim, claim.slices)):
        raise RequestError(f"{room.gpu.name} cannot be shared by MPS: it takes one of the Volta generation or later")
    if not room.tenancy.admits(mode, KUBERNETES_UID, most_clients(room.gpu)):
        raise CapacityError(f"GPU {room.gpu.uuid} is in the mode {room.tenancy.mode} now, and cannot be in {mode}")


def _device_bytes(claim: Claim, part: Slice, factor: float) -> int:
    return resident_bytes(part.memory_bytes, factor) if claim.oversubscribes else part.memory_bytes


def _holders_text(gpu_uuid: str, holders: Sequence[Entry]) -> str:
    names = [
        f"{entry.job.spec.name or entry.job.id} holds {format_memory(part.device_bytes)}"
        for entry in holders
        if entry.job.lease is not None
        for part in entry.job.lease.slices
        if part.gpu_uuid == gpu_uuid
    ]
    return f" ({', '.join(names)})" if names else ""


def put_granted(decision: Decision, claim: Claim, factor: float, gpu_model: str | None) -> str:
    """Write the job that stands for a claim, granted and not started, and return its id."""
    now_seconds = time.time()
    job_id = new_job_id()
    slices = claim.slices
    if claim.oversubscribes:
        slices = tuple(
            with_host_part(replace(part, memory_bytes=_device_bytes(claim, part, factor)), part.memory_bytes)
            for part in claim.slices
        )
    lease = Lease(job_id, slices, now_seconds, sharing=mode_of(claim.sharing))
    spec = JobSpec(
        (),
        "claim",
        environment=((CLAIM_VARIABLE, claim.uid),),
        working_directory="/",
        # The part of the job's id distinguishes claims of one name: one that was removed by force may not have left yet.
        name=f"{f'{claim.namespace}/{claim.name}' if claim.name else claim.uid}-{job_id[:_UID_DIGITS]}",
        wait_for_memory_seconds=claim.wait_for_memory_seconds,
    )
    job = Job(
        job_id,
        spec,
        request_of(claim, claim.slices),
        JobState.WAITING,
        now_seconds,
        owner_uid=KUBERNETES_UID,
        gpu_model=gpu_model,
    )
    entry = decision.add(Entry(job), ())
    decision.put(replace(entry, job=replace(job, state=JobState.STARTING, lease=lease)))
    decision.held_claims.put(claim, job_id, now_seconds)
    return job_id
