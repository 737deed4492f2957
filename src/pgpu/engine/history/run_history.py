"""The history of runs in the ledger: memory peaks and durations, from which the size of the next run is estimated.

`advising.memory_demand` makes the estimates. Histories of different users, and of simulated and real GPUs, are separate.
"""

import sys
from collections.abc import Collection, Mapping, Sequence

from pgpu.advising.memory_demand import (
    UNKNOWN,
    Basis,
    DemandRules,
    Estimate,
    count_ended,
    estimate,
    family_of,
    most_at_once,
    program_of,
)
from pgpu.enforcement import SliceUse
from pgpu.engine.watch.gpu_time import Sample, mean_demand
from pgpu.ledger import Call, Decision, LedgerView, Waiting
from pgpu.model import SIMULATED_PREFIX, Gpu, Job, Request, Run, SharingMode, SharingWish, Slice
from pgpu.scheduling import GpuRoom, Headroom, usable
from pgpu.scheduling.admission_round import NO_QUOTA, Family, Quota
from pgpu.scheduling.capacity import mode_of
from pgpu.scheduling.slice_growth import FIRST_BYTES, grows
from pgpu.structs import Struct, replace
from pgpu.units import SMALLEST_SLICE_BYTES

GROWTH_WISHES = (("TF_FORCE_GPU_ALLOW_GROWTH", "true"), ("XLA_PYTHON_CLIENT_PREALLOCATE", "false"))
"""Environment that makes TensorFlow and JAX allocate as needed instead of all at once; for jobs with `--memory auto` (P2)."""

KEPT_RUNS = 20_000
"""How many runs are kept: 100 of each of 200 programs."""

DURATION_RUNS = 15
"""The expected duration of a call is the median of so many newest runs."""

MOST_REVIEWED = 200
"""How many waiting calls of a program get a new estimate when a run of it ends: the next ones."""


FIXED_SLICES = DemandRules(quantile=1.0, margin=1.10)
"""Rules of estimates for slices that may not be able to grow."""


class MemoryObservation(Struct, frozen=True):
    """GPU memory of one job, measured while it ran."""

    slice_bytes: int
    """Largest size of one of its slices."""

    peak_bytes: int
    context_bytes: int
    """Of one CUDA context on its GPU."""

    refusals: int
    attempted_bytes: int
    """Largest use that a slice refused; 0 if none was refused."""

    refused_at_bytes: int = 0
    """Size of the slice at the last refusal, which may be smaller than `slice_bytes`; 0 if there was none."""

    device_refusals: int = 0
    """Allocations within a slice that failed because the GPU was full."""

    sizes_itself: bool = False
    """Whether it took half or more of the memory that it was shown before it held any."""

    def with_more(self, use: SliceUse, part: Slice) -> "MemoryObservation":
        """Return the observation after another reading of one slice's meter; its counters only grow."""
        return MemoryObservation(
            slice_bytes=max(self.slice_bytes, part.memory_bytes),
            peak_bytes=max(self.peak_bytes, use.peak_bytes),
            context_bytes=max(self.context_bytes, use.context_bytes),
            refusals=max(self.refusals, use.refusals),
            attempted_bytes=max(self.attempted_bytes, use.attempted_bytes),
            refused_at_bytes=part.memory_bytes if use.refusals > self.refusals else self.refused_at_bytes,
            device_refusals=max(self.device_refusals, use.device_refusals),
            sizes_itself=self.sizes_itself or use.sizes_itself,
        )


class LargestSlice(Struct, frozen=True):
    """The largest slice that a job could ever be granted."""

    memory_bytes: int
    """On each of its GPUs; 0 if there are too few GPUs."""

    is_quota: bool = False
    """Whether the quota of its user is the limit, and not the size of the GPUs."""


NOTHING = MemoryObservation(0, 0, 0, 0, 0)
"""Before the first reading."""


class RunHistory:
    """The history of runs on one engine's kind of GPUs, with caches of what was read."""

    def __init__(self, gpu_model: str | None, headroom: Headroom) -> None:
        self._gpu_model = gpu_model
        self._headroom = headroom
        self._gpu_names: tuple[str, ...] = ()
        self._unread: set[Call] = set()
        """Calls with newer runs than `_durations`."""
        self._durations: Mapping[Call, float] = {}
        self._durations_as_of = 0
        self.demands: Mapping[Call, float] = {}
        """Shares of a GPU's time that the calls of the last `durations` need: the median, where it is known."""
        self._read: tuple[int, tuple[str, str, int], Sequence[Run]] | None = None
        self._known: set[Family] = set()
        """Families of which any number of jobs may run."""
        self._most: tuple[tuple[int, frozenset[Family]], Mapping[Family, int]] = (0, frozenset()), {}
        """Result of `most_of_families`, and what it was read for: the newest run, and families."""

    def choose_size(
        self, view: LedgerView, request: Request, signature: str, owner_uid: int, gpus: Sequence[Gpu]
    ) -> Request:
        """Return a request with `--memory auto` with the size that its history suggests; any other request with its own size."""
        if not request.is_estimated:
            return replace(request, basis=None)  # only pgpu itself sets a basis
        most = self.most(view, owner_uid, gpus, request).memory_bytes
        names = history_names([gpu for gpu in gpus if usable(gpu, request)]) if signature else ()
        # Where slices cannot grow, under MPS and with oversubscription, all runs must have fitted.
        is_fixed = request.oversubscribes or request.sharing in {SharingWish.MPS, SharingWish.AUTO}
        rules = FIXED_SLICES if is_fixed else None
        estimates = [self.estimate(view, signature, owner_uid, name, rules) for name in names]
        found = max(estimates, key=lambda each: each.memory_bytes or 0, default=UNKNOWN)
        # Of an unknown size it gets all that is free where it starts, and no less than half of a GPU where it could not grow.
        least_bytes = (
            FIRST_BYTES if grows(replace(request, basis=found.basis.value), mode_of(request.sharing)) else most // 2
        )
        memory_bytes = min(found.memory_bytes or least_bytes, most)
        return replace(request, memory_bytes=max(SMALLEST_SLICE_BYTES, memory_bytes), basis=found.basis.value)

    def update_sizes(
        self, rooms: Sequence[GpuRoom], waiting: Sequence[Waiting], quotas: Mapping[int, Quota]
    ) -> list[Waiting]:
        """Return the waiting jobs with sizes that depend on the machine or on quotas brought up to date.

        A job of unknown size needs no more than its user's quota, which may have been made smaller. A job on its last try
        gets all that its GPUs have for jobs. A parked job keeps its size.
        """
        return [
            _update_size(each, rooms, quotas) if each.request.basis in _SIZED_LATE and each.gpu_uuid is None else each
            for each in waiting
        ]

    def durations(self, view: LedgerView, calls: Collection[Call], gpus: Sequence[Gpu]) -> Mapping[Call, float]:
        """Return the expected durations of calls: the median of their newest runs on these GPUs, in seconds.

        Args:
            view: Of the ledger.
            calls: Any.
            gpus: Every GPU of this engine; empty while they cannot be read: those of the last call are used.

        Returns:
            The durations that are known, also those of calls of earlier rounds; the same object while nothing changes.
        """
        names = history_names(gpus) or self._gpu_names
        if names != self._gpu_names:
            self._gpu_names, self._durations_as_of, self._durations, self.demands = names, 0, {}, {}
        self._durations_as_of, changed = view.history.since(self._durations_as_of)
        self._unread |= changed
        if missing := self._unread.intersection(calls):
            from pgpu.scheduling.run_times import median  # noqa: PLC0415 - commands that forecast nothing have no calls

            found = view.history.durations(missing, names, DURATION_RUNS)
            demands = view.history.demands(missing, names, DURATION_RUNS)
            self._unread -= missing
            self.demands = {**self.demands, **{call: median(demands[call]) for call in demands}}
            self._durations = {**self._durations, **{call: median(found[call]) for call in found}}
        return self._durations

    def most_of_families(
        self, view: LedgerView, families: Collection[Family], gpus: Sequence[Gpu]
    ) -> Mapping[Family, int]:
        """Return how many jobs of each family may run at once; without those of which any number may.

        Args:
            view: Of the ledger.
            families: Of waiting jobs whose sizes pgpu chose.
            gpus: As for `durations`.

        Returns:
            The same object while nothing changes.
        """
        asked = view.history.newest(), frozenset(families) - self._known
        if asked != self._most[0]:
            names = history_names(gpus) or self._gpu_names
            found = {}
            for text, uid in sorted(asked[1]):
                runs = [run for name in names for run in self._runs(view, (program_of(text), name, uid))]
                found[text, uid] = most_at_once(count_ended(text, runs))
            self._known |= {family for family, most in found.items() if most is None}
            new = {family: most for family, most in found.items() if most is not None}
            self._most = asked, self._most[1] if new == self._most[1] else new
        return self._most[1]

    def remember(
        self,
        decision: Decision,
        job: Job,
        observed: MemoryObservation,
        gpus: Sequence[Gpu],
        last_sample: Sample | None = None,
    ) -> None:
        """Add a run to the history, and update the estimates of waiting jobs of the same program.

        Args:
            decision: The transaction in which the job ended.
            job: In its final state.
            observed: Its memory.
            gpus: Every GPU of this engine.
            last_sample: Of its GPU time; None if it was not sampled.
        """
        run = _run_of(job, observed, gpus)
        if run is None:
            return
        if last_sample is not None:
            run = replace(run, demand=mean_demand(last_sample, run.duration_seconds))
        decision.history.add(run)
        decision.history.keep_newest(KEPT_RUNS)
        # In the same transaction: no round sees the run without the new estimates.
        estimates: dict[tuple[str, int, int, bool], tuple[int, str]] = {}
        calls = decision.estimated_calls(self._gpu_model, program_of(run.signature), run.owner_uid, MOST_REVIEWED)
        for signature, gpu_count, is_fixed in calls:
            sharing = SharingWish.MPS if is_fixed else SharingWish.TIME_SLICE
            estimated = Request(0, gpu_count, is_estimated=True, sharing=sharing)
            request = self.choose_size(decision, estimated, signature, run.owner_uid, gpus)
            estimates[signature, run.owner_uid, gpu_count, is_fixed] = (
                request.memory_bytes,
                request.basis or Basis.UNKNOWN.value,
            )
        decision.put_estimates(self._gpu_model, estimates)

    def estimate(
        self, view: LedgerView, signature: str, owner_uid: int, gpu_name: str, rules: DemandRules | None = None
    ) -> Estimate:
        """Estimate the memory of a call on one model of GPU."""
        return estimate(signature, self._runs(view, (program_of(signature), gpu_name, owner_uid)), rules)

    def most(self, view: LedgerView, owner_uid: int, gpus: Sequence[Gpu], request: Request) -> LargestSlice:
        """Return the largest slice that the GPUs on which a job may run, and the user's quota, could ever grant."""
        gpu_count = request.gpu_count
        sizes = [gpu.memory_bytes - self._headroom.of(gpu) for gpu in gpus if usable(gpu, request)]
        most_bytes = sorted(sizes, reverse=True)[gpu_count - 1] if gpu_count <= len(sizes) else 0
        quota_bytes = view.quotas().get(owner_uid, NO_QUOTA).memory_bytes
        if quota_bytes is None or quota_bytes // gpu_count >= most_bytes:
            return LargestSlice(most_bytes)
        return LargestSlice(quota_bytes // gpu_count, is_quota=True)

    def _runs(self, view: LedgerView, key: tuple[str, str, int]) -> Sequence[Run]:
        # Cached: a thousand calls of one program may be submitted together.
        newest = view.history.newest()
        if self._read is None or self._read[:2] != (newest, key):
            self._read = (newest, key, view.history.of_program(*key))
        return self._read[2]


def history_name(gpu: Gpu) -> str:
    """Return the name of a GPU's model in the history."""
    return f"{SIMULATED_PREFIX}{gpu.name}" if gpu.is_simulated else gpu.name


def name_of_gpu(job: Job, gpus: Sequence[Gpu]) -> str | None:
    """Return the model of a job's first GPU in the history; None if that GPU is not among these."""
    names = {gpu.uuid: history_name(gpu) for gpu in gpus}
    return None if job.lease is None or not job.lease.slices else names.get(job.lease.slices[0].gpu_uuid)


def history_names(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """Return the models of these GPUs in the history, sorted."""
    return tuple(sorted({history_name(gpu) for gpu in gpus}))


def family_of_job(request: Request, signature: str, owner_uid: int) -> Family | None:
    """Return the family of a job whose size pgpu chose; None for any other job."""
    return (family_of(signature).text, owner_uid) if request.has_chosen_size and signature else None


_SIZED_LATE = {Basis.UNKNOWN.value, Basis.ALONE.value}


def _update_size(waiting: Waiting, rooms: Sequence[GpuRoom], quotas: Mapping[int, Quota]) -> Waiting:
    request = waiting.request
    quota_bytes = quotas.get(waiting.owner_uid, NO_QUOTA).memory_bytes
    entitled_bytes = sys.maxsize if quota_bytes is None else quota_bytes // request.gpu_count
    if request.basis == Basis.UNKNOWN:
        memory_bytes = max(SMALLEST_SLICE_BYTES, min(request.memory_bytes, entitled_bytes))
    else:
        capacities = [room.capacity_bytes for room in rooms if usable(room.gpu, request)]
        all_bytes = sorted(capacities, reverse=True)[request.gpu_count - 1 : request.gpu_count] or [0]
        memory_bytes = max(request.memory_bytes, min(all_bytes[0], entitled_bytes))
    # The same object where nothing changes: rounds recognise unchanged jobs by identity.
    same = memory_bytes == request.memory_bytes
    return waiting if same else replace(waiting, request=replace(request, memory_bytes=memory_bytes))


def _run_of(job: Job, observed: MemoryObservation, gpus: Sequence[Gpu]) -> Run | None:
    # None for a job that never started or has an unknown program.
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
        attempted_bytes=observed.attempted_bytes,
        sizes_itself=observed.sizes_itself,
        compute_share=job.request.compute_share,
        sharing=SharingMode.TIME_SLICE if job.lease is None else job.lease.sharing,
    )
