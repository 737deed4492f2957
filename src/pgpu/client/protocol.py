"""The protocol between callers of pgpu and whoever runs the engine, and the reports that cross it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from pgpu.advising.advice import Advice
from pgpu.advising.contention import Constants
from pgpu.enforcement import SliceUse
from pgpu.engine.history.usage_records import CallHistory, Findings, ProfiledJob, Waste
from pgpu.engine.watch.gpu_time import GpuTime
from pgpu.model import Bandwidths, Gpu, Job, JobSpec, Outsider, Profile, Request, SharingMode, Submission


@dataclass(frozen=True, slots=True)
class GpuReport:
    """One GPU as `pgpu gpus` shows it."""

    gpu: Gpu
    used_bytes: int
    """Held now by anybody, in bytes."""

    granted_bytes: int
    """Sum of the slices granted on it."""

    capacity_bytes: int
    """What slices may sum to now: memory less headroom less what outsiders hold."""

    enforcer: str
    does_not_cover: str
    utilisation_percent: int | None
    jobs: tuple[str, ...]
    """Ids of the jobs that hold a slice of it."""

    outsiders: tuple[Outsider, ...] = ()
    """Processes that compute on it outside of every lease."""

    granted_compute: float = 0.0
    """Sum of the shares of its time that are granted, 0 to 1."""

    sharing: SharingMode | None = None
    """How the jobs on it share it; None while there is none."""


@dataclass(frozen=True, slots=True)
class JobReport:
    """One job and what it holds now."""

    job: Job
    use: tuple[SliceUse, ...]
    """One for each slice; empty unless it runs."""

    time: tuple[GpuTime, ...] = ()
    """One for each slice; empty until it uses a GPU, and after its end."""


@dataclass(frozen=True, slots=True)
class QueueReport:
    """One waiting job as `pgpu queue` shows it."""

    position: int | None
    """From 1 on, in the order in which jobs are looked at now; None where it waits for other jobs first."""

    job: Job
    """Its reason and its expected start are of this moment."""


class Client(Protocol):
    """Everything that the command line needs of an engine."""

    def submit(self, spec: JobSpec, request: Request, *, wait_timeout_seconds: float | None) -> Job:
        """Accept a request durably and leave it to a supervisor of its own; returns at once.

        Args:
            spec: What to run.
            request: What it needs.
            wait_timeout_seconds: After this long in the queue the job is cancelled; 0 means that it is cancelled
                unless it can start now; None waits for ever.

        Raises:
            RequestError: It can never be met; nothing was stored.
        """
        ...

    def submit_all(self, submissions: Sequence[Submission]) -> Sequence[Job]:
        """Accept several jobs durably, all or none; returns at once.

        Returns:
            The jobs, each array's elements by index, in the order of the submissions except that whoever others among
            them wait for comes first.

        Raises:
            RequestError: One of them can never be met, waits for what is not there or has failed, or they wait for each
                other; nothing was stored.
        """
        ...

    def attach(self, job_id: str, stdin: BinaryIO | None, stdout: BinaryIO, stderr: BinaryIO) -> Job:
        """Carry streams, terminal size and signals between the caller and a job, from its first byte, until it ends.

        Returns:
            The job in its final state.

        Raises:
            WaitTimeoutError: It was not granted in time.
            CancelledError: Cancelled while it waited.
        """
        ...

    def jobs(self, *, include_final: bool) -> Sequence[JobReport]:
        """List jobs, oldest first."""
        ...

    def job(self, id_or_name: str) -> JobReport:
        """Find one job by id, by a beginning of its id that only one has, or by name.

        Raises:
            JobNotFoundError: None or several match.
        """
        ...

    def members(self, id_or_name: str) -> Sequence[JobReport]:
        """Find the jobs of an array by its id, by a beginning of it or by the name it was submitted with; else one job.

        Raises:
            JobNotFoundError: None or several match.
        """
        ...

    def queue(self) -> Sequence[QueueReport]:
        """List the jobs that wait for this client's GPUs in the order in which they are looked at, the held ones last."""
        ...

    def cancel(self, ids_or_names: Sequence[str], *, grace_seconds: float) -> Sequence[Job]:
        """Cancel waiting jobs and end running ones, all told at once, and wait for their ends.

        Args:
            ids_or_names: As of `members`.
            grace_seconds: Between SIGTERM and SIGKILL for those that run.

        Raises:
            JobNotFoundError: One of them is not there; nothing was changed.
        """
        ...

    def still_waits(self, job_id: str, *, timeout_seconds: float) -> str | None:
        """Rest until a job waits no longer, at most so long.

        Returns:
            Why it still waits, in one line, empty where nobody has said it yet; None if it waits no longer.
        """
        ...

    def wait(self, id_or_name: str) -> Job:
        """Block until a job is final and return it."""
        ...

    def logs(self, id_or_name: str, *, follow: bool, tail_lines: int | None = None) -> Iterator[tuple[str, bytes]]:
        """Yield (`stdout` or `stderr`, bytes) from the beginning of the stored log, or its last lines.

        Args:
            id_or_name: The job.
            follow: Go on until the job is final.
            tail_lines: Only this many lines of what is stored; None for all.
        """
        ...

    def stop(self, id_or_name: str, *, grace_seconds: float) -> Job:
        """Cancel a waiting job; send a running one SIGTERM and, after the grace, SIGKILL to all it started."""
        ...

    def signal(self, id_or_name: str, number: int) -> None:
        """Send a signal to a running job's main process."""
        ...

    def resize(
        self,
        id_or_name: str,
        memory_bytes: int | None = None,
        *,
        compute_share: float | None = None,
        is_strict: bool | None = None,
    ) -> Job:
        """Change the slices of a waiting or running job; None leaves an amount as it is.

        Args:
            id_or_name: Of the job.
            memory_bytes: Of each slice.
            compute_share: Of each GPU's time, above 0 to 1; 0 takes the share away.
            is_strict: Whether it never gets more than its share.

        Raises:
            RequestError: It can never be met.
            CapacityError: The larger slice or share does not fit now; nothing was changed.
        """
        ...

    def offer(self, id_or_name: str, value: float) -> Job:
        """Let a running job's lease be taken from now on for a waiting job of the same or a higher priority that needs it.

        The job ends then, with SIGTERM and 1.5 s later SIGKILL; one that parks hears SIGTSTP and lives on without it. Asked
        again it only changes the value.

        Args:
            id_or_name: Of a job that serves a function.
            value: What it saves to keep the lease, 0 or more, in a unit that all who offer share: the lowest for each byte
                is taken first.

        Raises:
            RequestError: It serves no function, or this is no value.
            CapacityError: It does not run, or its lease was taken already.
        """
        ...

    def park(self, id_or_name: str) -> Job:
        """Have a running job do without its lease until it is claimed; does nothing where it does already.

        Raises:
            RequestError: It is none that parks, or not on one GPU in time slices.
            CapacityError: It does not run.
        """
        ...

    def claim(self, id_or_name: str) -> Job:
        """Keep an offered lease: once this has returned nobody takes it. Does nothing where it is not on offer.

        A parked job waits for its lease from then on, like every job of its priority, on the GPU that it was on; its
        `parked_at_seconds` is None once it was granted, and its main process hears SIGCONT once all of it is back.

        Raises:
            CapacityError: It was taken before, or the job does not run.
        """
        ...

    def history(self, word: str | None) -> Sequence[CallHistory]:
        """Tell what is known of each call of each program that ran, the one that ran last first.

        Args:
            word: A signature, the beginning of one, or the id or name of a job; None for all.

        Raises:
            RequestError: Nothing is known under this word.
        """
        ...

    def profiled(self, id_or_name: str) -> ProfiledJob:
        """Return what a traced job that ended did on the GPU.

        Raises:
            RequestError: It was not traced, or has not ended.
        """
        ...

    def add_findings(self, id_or_name: str, findings: Findings) -> Profile:
        """Add what several runs of a program told to the profile of one of them, and return it.

        Raises:
            RequestError: That job has no profile.
        """
        ...

    def waste(self) -> Sequence[Waste]:
        """Tell what jobs reserved and what they used of it, the oldest first, running ones last."""
        ...

    def advise(
        self, jobs: Sequence[str | Profile], *, gpu_model: str | None = None, tolerance: float | None = None
    ) -> Advice:
        """Say how jobs should share a GPU, from profiles of each of them alone.

        Args:
            jobs: Each a profile, or the id or name of a job, or a signature or the beginning of one; two at least.
            gpu_model: As users write products; None for that of the profiles, else of the first GPU.
            tolerance: How many times longer than alone the slowest may take; None for jobs that nobody waits for.

        Raises:
            RequestError: There is no profile of one of them on this kind of GPU.
        """
        ...

    def check_calibration(self) -> None:
        """Find out whether what is calibrated could be kept, before anything is measured.

        Raises:
            RequestError: The GPUs are a server's, whose administrator calibrates them; or there are none.
        """
        ...

    def keep_constants(self, gpu_uuid: str, constants: Constants, bandwidths: Bandwidths) -> None:
        """Keep what was calibrated on a GPU: constants for its model and driver, bandwidths for itself.

        Raises:
            RequestError: As of `check_calibration`, or there is no such GPU.
        """
        ...

    def gpus(self) -> Sequence[GpuReport]:
        """Report every GPU, in NVML index order."""
        ...

    def outsiders(self) -> Sequence[Outsider]:
        """Return the processes that compute outside of every lease and that were told of, without asking any GPU."""
        ...
