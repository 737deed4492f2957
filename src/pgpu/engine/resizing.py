"""A job's slices change while it waits or runs: what the ledger says then, and whom it must not pass.

It refuses to grow into memory that a waiting job could use: growth queues, too (decision 0010).
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from pgpu.enforcement import Enforcer
from pgpu.engine.dependencies import judge
from pgpu.engine.quotas import refuse_growth_past_quota, refuse_more_than_quota
from pgpu.engine.snapshot import Snapshot
from pgpu.errors import CapacityError, PgpuError, RequestError
from pgpu.ledger import Decision, Entry
from pgpu.model import Gpu, JobState
from pgpu.scheduling import GpuRoom, Headroom, usable
from pgpu.units import format_memory


def resized(entry: Entry, memory_bytes: int, snapshot: Snapshot, decision: Decision, headroom: Headroom) -> Entry:
    """Return an entry with other slices, in bytes per GPU.

    Raises:
        RequestError: The job has ended, or its owner's quota could never grant so much.
        CapacityError: They do not fit, or somebody waits for that memory.
    """
    request = replace(entry.job.request, memory_bytes=memory_bytes, basis=None)  # said, and no longer estimated
    job = replace(entry.job, request=request)
    if job.state.is_final:
        raise RequestError(f"job {job.id} has ended: there is nothing to resize")
    if job.lease is None:
        refuse_more_than_quota(decision, job.owner_uid, request)
        return replace(entry, job=job)
    refuse_growth_past_quota(decision, entry, memory_bytes)
    entries = _queue(entry, decision)
    rooms = {room.gpu.uuid: room for room in snapshot.rooms(entries, headroom)}
    for part in job.lease.slices:
        room = rooms.get(part.gpu_uuid)
        _refuse_what_does_not_fit(room, part.memory_bytes, memory_bytes)
        if room is not None and memory_bytes > part.memory_bytes:
            _refuse_overtaking(room.gpu, entries, job.owner_uid, headroom)
    slices = tuple(replace(part, memory_bytes=memory_bytes) for part in job.lease.slices)
    return replace(entry, job=replace(job, lease=replace(job.lease, slices=slices)))


def bind(enforcer: Enforcer, after: Entry, before: Entry) -> None:
    """Where one GPU refuses, those that took the new size get back the old one; a starting job binds by itself.

    Raises:
        PgpuError: The new size does not bind.
    """
    lease = after.job.lease
    if lease is None or after.job.state is not JobState.RUNNING:
        return
    try:
        enforcer.resize(lease, after.job.request.memory_bytes)
    except PgpuError:
        # In the same order, so that all GPUs that took it come before the one that refuses again.
        with suppress(PgpuError):
            enforcer.resize(lease, before.job.request.memory_bytes)
        raise


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


def _refuse_overtaking(gpu: Gpu, entries: Sequence[Entry], owner_uid: int, headroom: Headroom) -> None:
    """Memory that is free while a job waits for it is that job's; of a MIG instance all is its one job's already."""
    most_bytes = gpu.memory_bytes - headroom.of(gpu)
    for entry in entries:
        request = entry.job.request
        is_for_it = usable(gpu, request.gpu_count) and request.memory_bytes <= most_bytes
        if entry.job.state is JobState.WAITING and is_for_it and not gpu.is_instance:
            whose = f"job {entry.job.id}" if entry.job.owner_uid == owner_uid else "another user's job"
            raise CapacityError(
                f"{whose} waits for the memory that is free; nothing was changed",
                hint="try again once it has started, or stop it",
            )
