"""The protocol of clients: what the command line calls on jobs and GPUs."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO, Protocol

from pgpu.model import (
    Bandwidths,
    GpuSeries,
    Job,
    JobSpec,
    JobState,
    Outsider,
    Profile,
    Request,
    Submission,
)
from pgpu.services.messages import GpuReport, JobReport, QueueReport

if TYPE_CHECKING:
    from pgpu.advising.advice import Advice
    from pgpu.advising.contention import Constants
    from pgpu.engine.history.usage_records import CallHistory, Findings, Profiled, Waste


class Client(Protocol):
    """Operations on jobs and GPUs. `JobService` implements most of them; see there for the table of routes."""

    def submit(self, spec: JobSpec, request: Request, *, wait_timeout_seconds: float | None) -> Job:
        """Accept a request durably and return at once; the queue's agent runs the job.

        Args:
            spec: What to run.
            request: What it needs.
            wait_timeout_seconds: After this long in the queue the job is cancelled; 0 means that it is cancelled
                unless it can start now; None waits without limit.

        Raises:
            RequestError: It can never be met; nothing was stored.
        """
        return self.submit_all([Submission(spec, request, wait_timeout_seconds=wait_timeout_seconds)])[0]

    def submit_all(self, submissions: Sequence[Submission]) -> Sequence[Job]:
        """Accept several jobs durably, all or none; returns at once.

        Returns:
            The jobs, each array's elements by index, in the order of the submissions, except that a job comes before
            those that wait for it.

        Raises:
            RequestError: One of them can never be met, waits for a job that does not exist or has failed, or they wait for
                each other; nothing was stored.
        """
        ...

    def dry_run(self, submissions: Sequence[Submission]) -> Sequence[QueueReport]:
        """Return where and about when each job of a submission would start, and why it would wait; stores nothing.

        Returns:
            The jobs in the order of `submit_all`, with ids that are of no job.

        Raises:
            RequestError: As `submit_all`.
        """
        ...

    def submit_attached(self, submission: Submission) -> Job:
        """Accept one job, as `submit_all` does, that the caller attaches to next.

        Where the engine is in this process, a process job becomes a descendant of this process: it keeps its control group,
        niceness, affinity and namespaces, and outlives it.

        Args:
            submission: Of one job, without an array.
        """
        return self.submit_all([submission])[0]

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
        """List the jobs that wait for this client's GPUs in the order of admission, the held ones last."""
        ...

    def cancel(self, ids_or_names: Sequence[str], *, grace_seconds: float) -> Sequence[Job]:
        """Cancel waiting jobs and end running ones, all at once, and wait for their ends.

        Args:
            ids_or_names: As of `members`.
            grace_seconds: Between SIGTERM and SIGKILL for those that run.

        Raises:
            JobNotFoundError: One of them does not exist; nothing was changed.
        """
        found = self.request_cancel(ids_or_names, grace_seconds)
        # A cancelled job never started: it has nothing that ends.
        ended = iter(self.wait_all([job.id for job in found if job.state is not JobState.CANCELLED]))
        return [job if job.state is JobState.CANCELLED else next(ended) for job in found]

    def request_cancel(self, jobs: Sequence[str], grace_seconds: float) -> Sequence[Job]:
        """Cancel waiting jobs and end running ones, without a wait for their ends."""
        ...

    def still_waits(self, job_id: str, *, timeout_seconds: float) -> str | None:
        """Block until a job is granted, or until a timeout.

        Returns:
            Why it still waits, in one line, empty while the reason is unknown; None if it was granted or ended.
        """
        ...

    def wait(self, id_or_name: str) -> Job:
        """Block until a job is final and return it."""
        ...

    def wait_all(self, job_ids: Sequence[str]) -> Iterator[Job]:
        """Yield jobs in the order of their ids, each once it and those before it are final; reads them in pages.

        Raises:
            JobNotFoundError: One of them does not exist any more.
        """
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
        """Cancel a waiting job; send a running one SIGTERM and, after the grace, SIGKILL to all it started; wait for its end."""
        return self.wait(self.request_stop(id_or_name, grace_seconds).id)

    def request_stop(self, id_or_name: str, grace_seconds: float) -> Job:
        """Cancel a waiting job or end a running one, without a wait for its end."""
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
        """Mark a running job's lease as evictable by a waiting job of the same or a higher priority.

        On eviction the job gets SIGTERM and 1.5 s later SIGKILL; a job that supports parking gets SIGTSTP and continues
        without its lease. A second call only changes the value.

        Args:
            id_or_name: Of a job that serves a function.
            value: What it saves to keep the lease, 0 or more, in a unit common to all evictable leases: the lowest value
                for each byte is evicted first.

        Raises:
            RequestError: It serves no function, or the value is negative.
            CapacityError: It does not run, or its lease was taken already.
        """
        ...

    def park(self, id_or_name: str) -> Job:
        """Take the lease from a running job until it is claimed; does nothing if it is parked already.

        Raises:
            RequestError: It does not support parking, or is not on one GPU in time slices.
            CapacityError: It does not run.
        """
        ...

    def claim(self, id_or_name: str) -> Job:
        """Keep an evictable lease: it is not evicted after this returns. Does nothing if the lease is not evictable.

        A parked job queues for its lease, like every job of its priority, on the GPU that it was on; its
        `parked_at_seconds` is None once it was granted, and its main process gets SIGCONT once its memory is restored.

        Raises:
            CapacityError: It was evicted before, or the job does not run.
        """
        ...

    def history(self, word: str | None) -> "Sequence[CallHistory]":
        """Return the history of each call of each program, the one that ran last first.

        Args:
            word: A signature, the beginning of one, or the id or name of a job; None for all.

        Raises:
            RequestError: No run matches.
        """
        ...

    def profiled(self, id_or_name: str) -> "Profiled":
        """Return the profile and the packed log of a traced job that ended.

        Raises:
            RequestError: It was not traced, or has not ended.
        """
        ...

    def add_findings(self, id_or_name: str, findings: "Findings") -> Profile:
        """Add the results of several runs of a program to the profile of one of them, and return it.

        Raises:
            RequestError: That job has no profile.
        """
        ...

    def waste(self) -> "Sequence[Waste]":
        """Return what jobs reserved and what they used of it, the oldest first, running ones last."""
        ...

    def gpu_history(self, since_seconds: float, gpu_uuid: str | None = None) -> Sequence[GpuSeries]:
        """Return what the GPUs did in each minute in which a lease was held, by UUID.

        Args:
            since_seconds: Begin, in seconds since the epoch; a week is kept.
            gpu_uuid: Of one GPU; None for all of them.
        """
        ...

    def advise(
        self, jobs: Sequence[str | Profile], *, gpu_model: str | None = None, tolerance: float | None = None
    ) -> "Advice":
        """Recommend how jobs share a GPU, from the profile of each of them alone.

        Args:
            jobs: Each a profile, or the id or name of a job, or a signature or the beginning of one; two at least.
            gpu_model: As users write products; None for that of the profiles, else of the first GPU.
            tolerance: How many times longer than alone the slowest may take; None for jobs without a deadline.

        Raises:
            RequestError: There is no profile of one of them on this kind of GPU.
        """
        ...

    def check_calibration(self) -> None:
        """Check before a measurement that its result can be stored.

        Raises:
            RequestError: The GPUs are a server's, which its administrator calibrates; or there are none.
        """
        ...

    def keep_constants(self, gpu_uuid: str, constants: "Constants", bandwidths: Bandwidths) -> None:
        """Store the calibration of a GPU: constants for its model and driver, bandwidths for this GPU.

        Raises:
            RequestError: As of `check_calibration`, or there is no such GPU.
        """
        ...

    def gpus(self) -> Sequence[GpuReport]:
        """Report every GPU, in NVML index order."""
        ...

    def outsiders(self) -> Sequence[Outsider]:
        """Return the processes outside of every lease that the watchdog reported, without a query to any GPU."""
        ...
