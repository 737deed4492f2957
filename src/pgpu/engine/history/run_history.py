"""What runs teach: each one's peak and length is remembered, and tells the next of its program how much to reserve.

It reads and writes the history in the ledger; what follows from it `scheduling.demand` says. One user's runs tell
another's jobs nothing, and simulated runs real ones nothing.
"""

import statistics
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pgpu.enforcement import SliceUse
from pgpu.engine.history.retry_policy import LargestSlice
from pgpu.ledger import Call, Decision, View, Waiting
from pgpu.model import Gpu, Job, Request, Run, SharingMode, Slice
from pgpu.scheduling import GpuRoom, Headroom, usable
from pgpu.scheduling.admission_round import NO_QUOTA, Quota
from pgpu.scheduling.demand import UNKNOWN, Basis, Estimate, estimate, program_of
from pgpu.units import SMALLEST_SLICE_BYTES

GROWTH_WISHES = (("TF_FORCE_GPU_ALLOW_GROWTH", "true"), ("XLA_PYTHON_CLIENT_PREALLOCATE", "false"))
"""Ask TensorFlow and JAX for what they need instead of all they see; only of jobs whose size pgpu chooses (P2)."""

KEPT_RUNS = 20_000
"""How many runs are remembered: 100 of each of 200 programs."""

DURATION_RUNS = 15
"""How many of a call's newest runs tell how long it lasts."""

MOST_REVIEWED = 200
"""How many waiting calls of a program are estimated anew when a run of it ends: those who come next."""

CAREFUL_SHARE = 0.5
"""Of the largest GPU: a job of unknown size starts in no less, and in more where more is free."""


@dataclass(frozen=True, slots=True)
class MemoryObservation:
    """What the watch saw of a job until its end."""

    slice_bytes: int
    """Largest that one of its slices was."""

    peak_bytes: int
    context_bytes: int
    """Of one CUDA context on its GPU."""

    refusals: int
    attempted_bytes: int
    """Most that one of its slices would have held, had it not refused; 0 if none did."""

    refused_at_bytes: int = 0
    """Slice in which it was refused last: it may have shrunk since it was largest; 0 if it never was."""

    def with_more(self, use: SliceUse, part: Slice) -> "MemoryObservation":
        """Return what was seen after another look at one slice, whose counts only grow."""
        return MemoryObservation(
            slice_bytes=max(self.slice_bytes, part.memory_bytes),
            peak_bytes=max(self.peak_bytes, use.peak_bytes),
            context_bytes=max(self.context_bytes, use.context_bytes),
            refusals=max(self.refusals, use.refusals),
            attempted_bytes=max(self.attempted_bytes, use.attempted_bytes),
            refused_at_bytes=part.memory_bytes if use.refusals > self.refusals else self.refused_at_bytes,
        )


NOTHING = MemoryObservation(0, 0, 0, 0, 0)
"""Seen of a job before the first look."""


class RunHistory:
    """The history of one engine's kind of GPUs."""

    def __init__(self, gpu_model: str | None, headroom: Headroom) -> None:
        self._gpu_model = gpu_model
        self._headroom = headroom
        self._gpu_names: tuple[str, ...] = ()
        self._unread: set[Call] = set()
        """Those with runs that `_durations` does not count."""
        self._durations: Mapping[Call, float] = {}
        self._durations_as_of = 0
        self._read: tuple[int, tuple[str, str, int], Sequence[Run]] | None = None

    def chosen(self, view: View, request: Request, signature: str, owner_uid: int, gpus: Sequence[Gpu]) -> Request:
        """Return a request with the amount that its history tells, where pgpu shall choose; another as it is."""
        if not request.is_estimated:
            return replace(request, basis=None)  # whatever an asker says that their amount rests on
        most = self.most(view, owner_uid, gpus, request.gpu_count).memory_bytes
        found = self._estimated(view, signature, owner_uid, gpus)
        memory_bytes = int(most * CAREFUL_SHARE) if found.memory_bytes is None else min(found.memory_bytes, most)
        return replace(request, memory_bytes=max(SMALLEST_SLICE_BYTES, memory_bytes), basis=found.basis.value)

    def sized(self, rooms: Sequence[GpuRoom], waiting: Sequence[Waiting], quotas: Mapping[int, Quota]) -> list[Waiting]:
        """Let nobody ask for what can't be granted any more, where that says nothing of a need.

        A job of unknown size asks for no more than its user's quota, which may have been made smaller; one on its last try
        for all that its GPUs have beside what others than jobs hold, and waits for what was too small before. One that is
        parked has its size.
        """
        return [
            _sized(each, rooms, quotas) if each.request.basis in _SIZED_LATE and each.gpu_uuid is None else each
            for each in waiting
        ]

    def durations(self, view: View, calls: Collection[Call], gpus: Sequence[Gpu]) -> Mapping[Call, float]:
        """Tell how long calls last: the median of their newest runs on these GPUs, in seconds.

        Args:
            view: Of the ledger.
            calls: Which.
            gpus: Every GPU of this engine; none while they cannot be read: as of those that were named last.

        Returns:
            Without those that have no run, and with others that were asked for before; the same while nothing changes.
        """
        names = history_names(gpus) or self._gpu_names
        if names != self._gpu_names:
            self._gpu_names, self._durations_as_of, self._durations = names, 0, {}
        self._durations_as_of, changed = view.history.since(self._durations_as_of)
        self._unread |= changed
        if missing := self._unread.intersection(calls):
            found = view.history.durations(missing, names, DURATION_RUNS)
            self._unread -= missing
            self._durations = {**self._durations, **{call: statistics.median(found[call]) for call in found}}
        return self._durations

    def remember(self, decision: Decision, job: Job, observed: MemoryObservation, gpus: Sequence[Gpu]) -> None:
        """Add a job that ended to its history, and let waiting jobs of its program learn from it.

        Args:
            decision: In which it ended.
            job: In its final state.
            observed: What it held.
            gpus: Every GPU of this engine.
        """
        run = _run_of(job, observed, gpus)
        if run is None:
            return
        decision.history.add(run)
        decision.history.forget_all_but(KEPT_RUNS)
        self._review(decision, program_of(run.signature), run.owner_uid, gpus)

    def estimate(self, view: View, signature: str, owner_uid: int, gpu_name: str) -> Estimate:
        """Say what a call needs on one model of GPU."""
        return estimate(signature, self._runs(view, (program_of(signature), gpu_name, owner_uid)))

    def most(self, view: View, owner_uid: int, gpus: Sequence[Gpu], gpu_count: int) -> LargestSlice:
        """Return the largest slice that so many GPUs, and their user's quota, could ever grant."""
        sizes = [gpu.memory_bytes - self._headroom.of(gpu) for gpu in gpus if usable(gpu, gpu_count)]
        most_bytes = sorted(sizes, reverse=True)[gpu_count - 1] if gpu_count <= len(sizes) else 0
        quota_bytes = view.quotas().get(owner_uid, NO_QUOTA).memory_bytes
        if quota_bytes is None or quota_bytes // gpu_count >= most_bytes:
            return LargestSlice(most_bytes)
        return LargestSlice(quota_bytes // gpu_count, is_quota=True)

    def _runs(self, view: View, whose: tuple[str, str, int]) -> Sequence[Run]:
        """Read a program's runs once for the thousand calls of it that are submitted together."""
        newest = view.history.newest()
        if self._read is None or self._read[:2] != (newest, whose):
            self._read = (newest, whose, view.history.of_program(*whose))
        return self._read[2]

    def _estimated(self, view: View, signature: str, owner_uid: int, gpus: Sequence[Gpu]) -> Estimate:
        """On several models of GPUs the largest that any of them tells."""
        if not signature:
            return UNKNOWN
        found = [self.estimate(view, signature, owner_uid, name) for name in history_names(gpus)]
        return max(found, key=lambda each: each.memory_bytes or 0, default=UNKNOWN)

    def _review(self, decision: Decision, program: str, owner_uid: int, gpus: Sequence[Gpu]) -> None:
        estimates: dict[tuple[str, int, int], tuple[int, str]] = {}
        for signature, gpu_count in decision.estimated_calls(self._gpu_model, program, owner_uid, MOST_REVIEWED):
            request = self.chosen(decision, Request(0, gpu_count, is_estimated=True), signature, owner_uid, gpus)
            estimates[signature, owner_uid, gpu_count] = (request.memory_bytes, request.basis or Basis.UNKNOWN.value)
        decision.put_estimates(self._gpu_model, estimates)


def history_name(gpu: Gpu) -> str:
    """Return under which name runs on this GPU are remembered."""
    return f"simulated {gpu.name}" if gpu.is_simulated else gpu.name


def name_of_gpu(job: Job, gpus: Sequence[Gpu]) -> str | None:
    """Return under which name a job's run on its first GPU is remembered; None where that GPU is not known."""
    names = {gpu.uuid: history_name(gpu) for gpu in gpus}
    return None if job.lease is None or not job.lease.slices else names.get(job.lease.slices[0].gpu_uuid)


def history_names(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """Return under which names runs on any of these GPUs are remembered."""
    return tuple(sorted({history_name(gpu) for gpu in gpus}))


_SIZED_LATE = {Basis.UNKNOWN.value, Basis.ALONE.value}


def _sized(waiting: Waiting, rooms: Sequence[GpuRoom], quotas: Mapping[int, Quota]) -> Waiting:
    request = waiting.request
    quota_bytes = quotas.get(waiting.owner_uid, NO_QUOTA).memory_bytes
    entitled_bytes = sys.maxsize if quota_bytes is None else quota_bytes // request.gpu_count
    if request.basis == Basis.UNKNOWN:
        return _asking(waiting, max(SMALLEST_SLICE_BYTES, min(request.memory_bytes, entitled_bytes)))
    capacities = sorted((room.capacity_bytes for room in rooms if usable(room.gpu, request.gpu_count)), reverse=True)
    all_bytes = capacities[request.gpu_count - 1] if request.gpu_count <= len(capacities) else 0
    return _asking(waiting, max(request.memory_bytes, min(all_bytes, entitled_bytes)))


def _asking(waiting: Waiting, memory_bytes: int) -> Waiting:
    if memory_bytes == waiting.request.memory_bytes:
        return waiting
    return replace(waiting, request=replace(waiting.request, memory_bytes=memory_bytes))


def _run_of(job: Job, observed: MemoryObservation, gpus: Sequence[Gpu]) -> Run | None:
    """None of a job that never ran, or of which nobody can tell which program it was."""
    name = name_of_gpu(job, gpus)
    if not job.signature or name is None or job.started_at_seconds is None or job.finished_at_seconds is None:
        return None
    return Run(
        signature=job.signature,
        gpu_name=name,
        job_id=job.id,
        owner_uid=job.owner_uid,
        slice_bytes=observed.slice_bytes,
        peak_bytes=observed.peak_bytes,
        context_bytes=observed.context_bytes,
        refusals=observed.refusals,
        duration_seconds=job.finished_at_seconds - job.started_at_seconds,
        ended_at_seconds=job.finished_at_seconds,
        exit_code=job.exit_code,
        refused_at_bytes=observed.refused_at_bytes,
        compute_share=job.request.compute_share,
        sharing=SharingMode.TIME_SLICE if job.lease is None else job.lease.sharing,
    )
