"""A machine with equal GPUs on which jobs of sizes that pgpu chooses run, in simulated time.

Rounds are the real `admit`, sizes the real `estimate`; slices grow, shrink and are asked for again by the rules of
`scheduling.slice_growth`. Jobs side by side do not slow each other down, growing takes no time, and a park moves the job's
memory to the host and back. All jobs belong to one user. At every moment the slices of a GPU sum to no more than it has, no job
holds more than its slice, and none loses a third attempt; each is an assertion.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from benchmarks.chosen_sizes.families import CARD_BYTES, Arrival, Work
from benchmarks.replaying import cards

from pgpu.advising.memory_demand import (
    UNKNOWN,
    Estimate,
    count_ended,
    estimate,
    family_of,
    most_at_once,
    program_of,
)
from pgpu.model import Request, Run, Slice
from pgpu.scheduling import Candidate, GpuRoom, Held, admit
from pgpu.scheduling.admission_round import Family
from pgpu.scheduling.slice_growth import (
    FIRST_BYTES,
    MOST_ATTEMPTS,
    QUIET_SECONDS,
    Grower,
    Neighbour,
    Verdict,
    answer_growth,
    most_wait_seconds,
    next_attempt_bytes,
    shrunk_bytes,
)

GPU_NAME = "replayed"
PARKING_BYTES_PER_SECOND = 12e9
"""Of a park: PCIe 4.0 with pinned memory, one way."""

DURATION_RUNS = 15
SOON_SECONDS = 1e-6


@dataclass(slots=True, eq=False)
class Job:
    """One job of the replay, from its submission to its end."""

    work: Work
    number: int
    eligible_seconds: float
    attempt: int = 1
    floor_bytes: int = 0
    """The least that its next slice must be."""

    gpu: str | None = None
    """Where it runs, or where it is parked."""

    is_running: bool = False
    slice_bytes: int = 0
    held_bytes: int = 0
    started_seconds: float = 0.0
    progress_seconds: float = 0.0
    """Of its own run, in this attempt."""

    steps_done: int = 0
    grown_seconds: float = 0.0
    """When it last held more than before."""

    is_quiet: bool = False
    wanted_bytes: int = 0
    """What it waits to hold; 0 while it computes."""

    waits_since_seconds: float | None = None
    gives_up_seconds: float = math.inf
    """When its wait is judged again, at the latest."""

    reserved_byte_seconds: float = 0.0
    on_gpu_seconds: float = 0.0

    @property
    def id(self) -> str:
        return f"job{self.number:04}"

    @property
    def family(self) -> Family:
        return family_of(self.work.signature).text, 0

    @property
    def need_bytes(self) -> int:
        """What its run holds next."""
        return self.work.steps[self.steps_done][1]

    def next_seconds(self, now_seconds: float) -> float:
        """Return when it takes more memory, or ends; infinity while it waits for memory."""
        if self.wanted_bytes:
            return math.inf
        steps = self.work.steps
        until = steps[self.steps_done][0] if self.steps_done < len(steps) else self.work.seconds
        return now_seconds + max(0.0, until - self.progress_seconds)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a replay comes to."""

    jobs: int
    lost: int
    """Attempts that ended for lack of memory."""

    lost_old: int
    """Those of them that had run for more than a minute."""

    failed: int
    """Jobs that were not started again."""

    parks: int
    thrown: float
    """GPU seconds of lost attempts, over those of useful ones."""

    waste: float
    """Mean over jobs of (mean slice over time) / (final peak), minus 1."""

    end_seconds: float
    most_attempts: int


@dataclass(slots=True)
class Machine:
    """Everything at one moment of the replay."""

    gpu_count: int
    can_park: bool
    """Whether the driver can move a job that cannot grow to the host."""

    is_restarted: bool
    """Whether such a job is queued again otherwise: those of `submit`, and not those of `run`."""

    now_seconds: float = 0.0
    waiting: list[Job] = field(default_factory=list)
    running: list[Job] = field(default_factory=list)
    runs: dict[str, list[Run]] = field(default_factory=dict)
    """By program, oldest first."""

    durations: dict[str, list[float]] = field(default_factory=dict)
    lost_seconds: list[float] = field(default_factory=list)
    """Age of each lost attempt."""

    failed: int = 0
    parks: int = 0
    wastes: list[float] = field(default_factory=list)
    useful_seconds: float = 0.0
    most_attempts: int = 1
    _is_changed: bool = True
    """Whether a round could start a job."""

    _estimates: dict[tuple[str, int], Estimate] = field(default_factory=dict)
    _most: dict[Family, int | None] = field(default_factory=dict)

    def play(self, arrivals: Iterable[Arrival]) -> Outcome:
        """Play until the last job has ended."""
        coming = [Job(each.work, number, each.seconds) for number, each in enumerate(arrivals)][::-1]
        count = len(coming)
        while coming or self.waiting or self.running:
            while coming and coming[-1].eligible_seconds <= self.now_seconds + SOON_SECONDS:
                self.waiting.append(coming.pop())
                self._is_changed = True
            self._settle()
            self._go_on(coming[-1].eligible_seconds if coming else math.inf)
        old = sum(seconds > 60.0 for seconds in self.lost_seconds)
        thrown = sum(self.lost_seconds) / max(self.useful_seconds, 1.0)
        waste = math.fsum(self.wastes) / max(1, len(self.wastes))
        lost = len(self.lost_seconds)
        return Outcome(count, lost, old, self.failed, self.parks, thrown, waste, self.now_seconds, self.most_attempts)

    def on(self, gpu: str | None) -> list[Job]:
        """Return the jobs that hold memory of a GPU, the oldest first."""
        return sorted(
            (job for job in self.running if job.gpu == gpu), key=lambda job: (job.started_seconds, job.number)
        )

    def free_bytes(self, gpu: str | None) -> int:
        """Return what no slice of a GPU has."""
        return CARD_BYTES - sum(job.slice_bytes for job in self.running if job.gpu == gpu)

    def resize(self, job: Job, slice_bytes: int) -> None:
        """Change a running slice."""
        self._is_changed = self._is_changed or slice_bytes < job.slice_bytes
        job.slice_bytes = slice_bytes

    def take(self, job: Job) -> None:
        """Let a job have the memory that it needs next: its slice is large enough."""
        job.held_bytes, job.wanted_bytes = job.need_bytes, 0
        job.waits_since_seconds, job.gives_up_seconds = None, math.inf
        job.steps_done += 1
        job.grown_seconds, job.is_quiet = self.now_seconds, False
        if job.held_bytes > job.slice_bytes:
            raise AssertionError("a job holds more than its slice")

    def park(self, job: Job, floor_bytes: int) -> None:
        """Move a job off its GPU; it comes back there, at its old place of the queue, with at least `floor_bytes`."""
        self.parks += 1
        self._leave(job)
        job.floor_bytes = floor_bytes
        # Both ways: the job computes nothing meanwhile.
        job.progress_seconds -= 2 * job.held_bytes / PARKING_BYTES_PER_SECOND
        self.waiting.append(job)

    def lose(self, job: Job) -> None:
        """End an attempt for lack of memory; the job is queued again at its old place, or has failed."""
        wanted_bytes, age_seconds = job.wanted_bytes, self.now_seconds - job.started_seconds
        self.lost_seconds.append(age_seconds)
        self._remember(job, age_seconds, exit_code=1)
        self._leave(job)
        job.gpu, job.held_bytes, job.progress_seconds, job.steps_done = None, 0, 0.0, 0
        job.reserved_byte_seconds, job.on_gpu_seconds = 0.0, 0.0
        if not self.is_restarted:
            self.failed += 1
            return
        found = next_attempt_bytes(job.attempt, wanted_bytes, self._estimate(job).memory_bytes, CARD_BYTES)
        if found is None:
            raise AssertionError("a job loses its third attempt")
        job.attempt, job.floor_bytes = job.attempt + 1, found[0]
        self.most_attempts = max(self.most_attempts, job.attempt)
        self.waiting.append(job)

    def _settle(self) -> None:
        """Let everything happen that is due now, until nothing changes any more."""
        for job in [
            job for job in self.running if job.next_seconds(self.now_seconds) <= self.now_seconds + SOON_SECONDS
        ]:
            if job.steps_done < len(job.work.steps):
                if job.need_bytes <= job.slice_bytes:
                    self.take(job)
                else:
                    job.wanted_bytes, job.waits_since_seconds = job.need_bytes, self.now_seconds
            else:
                self._end(job)
        for job in self.running:
            if not job.is_quiet and job.grown_seconds + QUIET_SECONDS <= self.now_seconds + SOON_SECONDS:
                job.is_quiet = True
                self._shrink(job)
        growers = [job for gpu in {job.gpu for job in self.running} for job in self.on(gpu) if job.wanted_bytes]
        while growers:
            for job in growers:
                self._answer(job)
            # Where one has left, there is more room for those before it.
            left = {job.gpu for job in growers if not job.is_running}
            growers = [job for gpu in left for job in self.on(gpu) if job.wanted_bytes]
        self._round()
        if any(self.free_bytes(gpu) < 0 for gpu in {job.gpu for job in self.running}):
            raise AssertionError("slices sum to more than their GPU has")

    def _go_on(self, arrival_seconds: float) -> None:
        times = [arrival_seconds]
        for job in self.running:
            times += (job.next_seconds(self.now_seconds), job.gives_up_seconds)
            if not job.is_quiet:
                times.append(job.grown_seconds + QUIET_SECONDS)
        until = min(times)
        if until == math.inf:
            if not (self.running or self.waiting):
                return
            raise RuntimeError("the jobs that are left would wait for ever")
        step = max(0.0, until - self.now_seconds)
        self.now_seconds += step
        for job in self.running:
            job.reserved_byte_seconds += job.slice_bytes * step
            job.on_gpu_seconds += step
            if not job.wanted_bytes:
                job.progress_seconds += step

    def _round(self) -> None:
        if not (self._is_changed and self.waiting):
            return
        self._is_changed = False
        waiting = sorted(self.waiting, key=lambda job: (job.eligible_seconds, job.number))
        queue = {job.id: job for job in waiting}
        candidates = [self._candidate(job) for job in waiting]
        held = [self._held(job) for job in self.running]
        admission = admit(self._rooms(), candidates, self.now_seconds, held=held)
        for grant in admission.grants:
            job = queue[grant.job_id]
            self.waiting.remove(job)
            part = grant.slices[0]
            job.gpu, job.slice_bytes, job.is_running = part.gpu_uuid, part.memory_bytes, True
            if not job.held_bytes:
                job.started_seconds = self.now_seconds
            job.grown_seconds, job.is_quiet = self.now_seconds, False
            self.running.append(job)

    def _rooms(self) -> list[GpuRoom]:
        return [
            GpuRoom(
                gpu,
                headroom_bytes=0,
                outsiders_bytes=0,
                granted_bytes=sum(job.slice_bytes for job in jobs),
                growing_jobs=len(jobs),
                growers=tuple(0 for job in jobs if job.wanted_bytes),
            )
            for gpu in cards(self.gpu_count, CARD_BYTES)
            for jobs in [self.on(gpu.uuid)]
        ]

    def _candidate(self, job: Job) -> Candidate:
        """Return a waiting job as the engine has it."""
        found = self._estimate(job)
        memory_bytes = CARD_BYTES if job.attempt == MOST_ATTEMPTS else job.floor_bytes or found.memory_bytes
        request = Request(
            min(CARD_BYTES, memory_bytes or FIRST_BYTES),
            is_estimated=True,
            basis=found.basis.value,
        )
        return Candidate(
            job.id,
            request,
            None,
            0,
            job.eligible_seconds,
            self._duration(job),
            takes_free=memory_bytes is None,
            gpu_uuid=job.gpu if job.held_bytes else None,
            family=job.family,
            most_of_family=None if job.held_bytes else self._most.get(job.family, most_at_once(0)),
        )

    def _held(self, job: Job) -> Held:
        parts = (Slice(job.gpu or "", job.slice_bytes),)
        duration_seconds = self._duration(job)
        return Held(
            job.id, 0, parts, job.started_seconds, duration_seconds=duration_seconds, family=job.family, grows=True
        )

    def _duration(self, job: Job) -> float | None:
        known = self.durations.get(job.work.signature)
        return median(known[-DURATION_RUNS:]) if known else None

    def _estimate(self, job: Job) -> Estimate:
        runs = self.runs.get(program_of(job.work.signature), ())
        key = job.work.signature, len(runs)
        if key not in self._estimates:
            self._estimates[key] = estimate(job.work.signature, runs) if runs else UNKNOWN
        return self._estimates[key]

    def _answer(self, job: Job) -> None:
        """Answer a job that needs more than its slice."""
        since_seconds = self.now_seconds if job.waits_since_seconds is None else job.waits_since_seconds
        grower = Grower(job.id, job.started_seconds, job.slice_bytes, job.wanted_bytes, since_seconds)
        others = [each for each in self.on(job.gpu) if each is not job]
        neighbours = [Neighbour(each.id, each.started_seconds, bool(each.wanted_bytes)) for each in others]
        answer = answer_growth(grower, self.free_bytes(job.gpu), neighbours, self.now_seconds + SOON_SECONDS)
        if answer.verdict is Verdict.GRANT:
            self.resize(job, answer.slice_bytes)
            self.take(job)
        elif answer.verdict is Verdict.WAIT:
            job.gives_up_seconds = since_seconds + most_wait_seconds(grower)
        elif self.can_park:
            self.park(job, job.wanted_bytes)
        else:
            self.lose(job)

    def _shrink(self, job: Job) -> None:
        known = self._estimate(job)
        fit_bytes = shrunk_bytes(job.slice_bytes, job.held_bytes, known.kept_bytes, known.runs)
        if fit_bytes is not None:
            self.resize(job, fit_bytes)

    def _end(self, job: Job) -> None:
        self._remember(job, job.work.seconds, exit_code=0)
        self.useful_seconds += job.work.seconds
        self.wastes.append(job.reserved_byte_seconds / job.on_gpu_seconds / job.work.peak_bytes - 1)
        self._leave(job)

    def _leave(self, job: Job) -> None:
        self.running.remove(job)
        job.is_running, job.slice_bytes, job.wanted_bytes = False, 0, 0
        job.waits_since_seconds, job.gives_up_seconds = None, math.inf
        self._is_changed = True

    def _remember(self, job: Job, seconds: float, exit_code: int) -> None:
        signature = job.work.signature
        is_lost = exit_code != 0
        run = Run(
            signature, GPU_NAME, job.id, 0, job.slice_bytes, job.held_bytes, 0, int(is_lost), seconds, self.now_seconds,
            exit_code, refused_at_bytes=job.slice_bytes if is_lost else 0,
            attempted_bytes=job.wanted_bytes if is_lost else 0,
        )  # fmt: skip
        self.runs.setdefault(program_of(signature), []).append(run)
        if not is_lost:
            self.durations.setdefault(signature, []).append(seconds)
        self._most[job.family] = most_at_once(count_ended(job.family[0], self.runs[program_of(signature)]))
