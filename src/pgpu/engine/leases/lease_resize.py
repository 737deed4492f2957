"""A job's slices change while it waits or runs: what the ledger says then, and whom it must not pass.

It refuses to grow into memory or GPU time that a waiting job could use: growth queues, too (decision 0010).
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from pgpu.engine.admission.dependencies import judge
from pgpu.engine.admission.snapshot import Snapshot
from pgpu.engine.leases.compute_words import neighbours
from pgpu.engine.leases.limit_binding import LimitChange
from pgpu.engine.submission.quotas import refuse_growth_past_quota, refuse_more_than_quota
from pgpu.errors import CapacityError, NodeError, PgpuError, RequestError
from pgpu.ledger import Decision, Entry
from pgpu.model import Gpu, Job, JobState, Request, Resize, SharingMode
from pgpu.model.validation import check_request
from pgpu.scheduling import GpuRoom, Headroom, has_compute, usable
from pgpu.units import format_memory, format_share

if TYPE_CHECKING:
    from pgpu.engine.engine import Engine


def resize(engine: "Engine", job_id: str, change: Resize) -> Job:
    """Change a job's slices and its share of compute; see `Client.resize`."""
    request = engine.ledger.job(job_id).request
    if request.is_without_gpu:
        raise RequestError(f"job {job_id} has no GPU: there is nothing to resize")
    engine.check_amount(engine.gpus.gpus(), change.of(request))
    snapshot = engine.snapshot()
    binding: LimitChange | None = None
    try:
        with engine.ledger.decision() as decision:
            before = decision.entry(job_id)
            after = resize_entry(before, change, snapshot, decision, engine.headroom)
            decision.put(after)
            holding, queues = decision.holding(), decision.queues()
            binding = LimitChange(engine.enforcer, before, after, holding)
            binding.take()
    except BaseException:  # Ctrl-C too: the ledger keeps the old size, so the job must have it back.
        if binding is not None:
            binding.give_back()
        raise
    _give_or_undo(engine, binding)
    engine.wake([job_id, *neighbours(after.job, holding)])
    with suppress(NodeError):
        engine.call_keepers(queues)
    return engine.ledger.job(job_id)


def _give_or_undo(engine: "Engine", binding: LimitChange) -> None:
    try:
        binding.give()
    except PgpuError:
        with engine.ledger.decision() as decision:
            entry = decision.entry(binding.after.job.id)
            binding.revert(entry)
            if is_unchanged := binding.is_as_it_was_put(entry):
                request, lease = binding.before.job.request, binding.before.job.lease
                decision.put(replace(entry, job=replace(entry.job, request=request, lease=lease)))
        if is_unchanged:
            binding.give_back()
        raise


def resize_entry(entry: Entry, change: Resize, snapshot: Snapshot, decision: Decision, headroom: Headroom) -> Entry:
    """Return an entry with other slices, and another share of compute.

    Raises:
        RequestError: The job has ended, the words do not go together, or its owner's quota could never grant so much.
        CapacityError: They do not fit, or somebody waits for what they would take.
    """
    request = change.of(entry.job.request)
    check_request(request)
    job = replace(entry.job, request=request)
    if job.state.is_final:
        raise RequestError(f"job {job.id} has ended: there is nothing to resize")
    if job.is_aside:
        raise CapacityError(f"job {job.id} is parked: it has no slice now", hint="try again when it has one")
    if job.lease is None:
        refuse_more_than_quota(decision, job.owner_uid, request)
        return replace(entry, job=job)
    _refuse_another_share_under_mps(entry.job, request)
    _refuse_another_size_where_it_pages(entry.job, request)
    refuse_growth_past_quota(decision, entry, request.memory_bytes)
    entries = _queue(entry, decision)
    rooms = {room.gpu.uuid: room for room in snapshot.rooms(entries, headroom)}
    for part in job.lease.slices:
        room = rooms.get(part.gpu_uuid)
        _refuse_what_does_not_fit(room, part.memory_bytes, request.memory_bytes)
        if room is None:
            continue
        more_compute = (request.compute_share or 0.0) - (part.compute_share or 0.0)
        _refuse_compute_that_is_taken(room, more_compute)
        if request.memory_bytes > part.memory_bytes or more_compute > 0:
            _refuse_overtaking(room.gpu, entries, job.owner_uid, headroom, wants_compute=more_compute > 0)
    slices = tuple(
        replace(part, memory_bytes=request.memory_bytes, compute_share=request.compute_share)
        for part in job.lease.slices
    )
    return replace(entry, job=replace(job, lease=replace(job.lease, slices=slices)))


def _refuse_another_size_where_it_pages(job: Job, request: Request) -> None:
    if request.oversubscribes and request.memory_bytes != job.request.memory_bytes:
        raise RequestError(
            "a job that oversubscribes keeps the size with which it started: the host was asked for its rest",
            hint="stop it and start it with the other size",
        )


def _queue(entry: Entry, decision: Decision) -> list[Entry]:
    """Who holds or could use these GPUs' memory now."""
    held = judge(decision).held
    live = (each for each in decision.live() if each.job.gpu_model == entry.job.gpu_model)
    return [each for each in live if each.job.id not in held]


def _refuse_what_does_not_fit(room: GpuRoom | None, now_bytes: int, memory_bytes: int) -> None:
    most_bytes = now_bytes if room is None else room.most_bytes(now_bytes)
    if memory_bytes > max(most_bytes, now_bytes):
        raise CapacityError(
            f"{format_memory(memory_bytes - now_bytes)} more do not fit: "
            f"{format_memory(most_bytes - now_bytes)} are free; nothing was changed",
            hint="stop a job on that GPU, or ask for less",
        )


def _refuse_another_share_under_mps(job: Job, request: Request) -> None:
    """The server takes a client's percentage when it connects, and keeps it."""
    is_under_mps = job.lease is not None and job.lease.sharing is SharingMode.MPS
    if is_under_mps and request.compute_share != job.request.compute_share:
        raise RequestError(
            f"job {job.id} runs under MPS, where a share holds from its start to its end",
            hint="stop it, and run it again with --compute",
        )


def _refuse_compute_that_is_taken(room: GpuRoom, more_compute: float) -> None:
    if more_compute > 0 and not has_compute(room.free_compute, more_compute):
        raise CapacityError(
            f"{format_share(more_compute)} more of a GPU's time do not fit: "
            f"{format_share(room.free_compute)} are free; nothing was changed",
            hint="take some from a job on that GPU (`pgpu resize JOB --compute`), or ask for less",
        )


def _refuse_overtaking(
    gpu: Gpu, entries: Sequence[Entry], owner_uid: int, headroom: Headroom, *, wants_compute: bool
) -> None:
    """What is free while a job waits for it is that job's; of a MIG instance all is its one job's already."""
    most_bytes = gpu.memory_bytes - headroom.of(gpu)
    for entry in entries:
        request = entry.job.request
        is_for_it = 0 < request.memory_bytes <= most_bytes and usable(gpu, request.gpu_count)
        if _waits_for(entry.job, gpu) and is_for_it and not gpu.is_instance:
            whose = f"job {entry.job.id}" if entry.job.owner_uid == owner_uid else "another user's job"
            what = "GPU time" if wants_compute else "memory"
            raise CapacityError(
                f"{whose} waits for the {what} that is free; nothing was changed",
                hint="try again once it has started, or stop it",
            )


def _waits_for(job: Job, gpu: Gpu) -> bool:
    """Whether a job waits that this GPU may do for: a parked one's own alone does."""
    if job.wanted_at_seconds is not None and job.lease is not None:
        return any(part.gpu_uuid == gpu.uuid for part in job.lease.slices)
    return job.state is JobState.WAITING
