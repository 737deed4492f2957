"""The operations on jobs and GPUs that the command line calls: those of `JobService`, and those that wait for jobs."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO

from pgpu.model import Bandwidths, Job, JobSpec, JobState, Request, Submission
from pgpu.services.messages import JobReport, QueueReport

if TYPE_CHECKING:
    from pgpu.advising.contention import Constants

    # At run time a client gets these operations from the service itself or from the table of routes: the client of a server
    # does not import the service, which would load the engine.
    from pgpu.services.job_service import JobService as JobOperations
else:
    JobOperations = object


class Client(ABC, JobOperations):
    """Operations of one caller on jobs and GPUs; see `JobService` for those that do not wait."""

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

    @abstractmethod
    def submit_all(self, submissions: Sequence[Submission]) -> Sequence[Job]:
        """Accept several jobs durably, all or none; returns at once.

        Returns:
            The jobs, each array's elements by index, in the order of the submissions, except that a job comes before
            those that wait for it.

        Raises:
            RequestError: One of them can never be met, waits for a job that does not exist or has failed, or they wait for
                each other; nothing was stored.
        """

    @abstractmethod
    def dry_run(self, submissions: Sequence[Submission]) -> Sequence[QueueReport]:
        """Return where and about when each job of a submission would start, and why it would wait; stores nothing.

        Returns:
            The jobs in the order of `submit_all`, with ids that are of no job.

        Raises:
            RequestError: As `submit_all`.
        """

    def submit_attached(self, submission: Submission) -> Job:
        """Accept one job, as `submit_all` does, that the caller attaches to next.

        Where the engine is in this process, a process job becomes a descendant of this process: it keeps its control group,
        niceness, affinity and namespaces, and outlives it.

        Args:
            submission: Of one job, without an array.
        """
        return self.submit_all([submission])[0]

    @abstractmethod
    def attach(self, job_id: str, stdin: BinaryIO | None, stdout: BinaryIO, stderr: BinaryIO) -> Job:
        """Carry streams, terminal size and signals between the caller and a job, from its first byte, until it ends.

        Returns:
            The job in its final state.

        Raises:
            WaitTimeoutError: It was not granted in time.
            CancelledError: Cancelled while it waited.
        """

    @abstractmethod
    def jobs(self, *, include_final: bool) -> Sequence[JobReport]:
        """List jobs, oldest first."""

    def cancel(self, ids_or_names: Sequence[str], *, grace_seconds: float) -> Sequence[Job]:
        """Cancel waiting jobs and end running ones, all at once, and wait for their ends.

        Args:
            ids_or_names: As of `JobService.members`.
            grace_seconds: Between SIGTERM and SIGKILL for those that run.

        Raises:
            JobNotFoundError: One of them does not exist; nothing was changed.
        """
        found = self.request_cancel(ids_or_names, grace_seconds)
        # A cancelled job never started: it has nothing that ends.
        ended = iter(self.wait_all([job.id for job in found if job.state is not JobState.CANCELLED]))
        return [job if job.state is JobState.CANCELLED else next(ended) for job in found]

    @abstractmethod
    def still_waits(self, job_id: str, *, timeout_seconds: float) -> str | None:
        """Block until a job is granted, or until a timeout.

        Returns:
            Why it still waits, in one line, empty while the reason is unknown; None if it was granted or ended.
        """

    @abstractmethod
    def wait(self, id_or_name: str) -> Job:
        """Block until a job is final and return it."""

    @abstractmethod
    def wait_all(self, job_ids: Sequence[str]) -> Iterator[Job]:
        """Yield jobs in the order of their ids, each once it and those before it are final; reads them in pages.

        Raises:
            JobNotFoundError: One of them does not exist any more.
        """

    @abstractmethod
    def logs(self, id_or_name: str, *, follow: bool, tail_lines: int | None = None) -> Iterator[tuple[str, bytes]]:
        """Yield (`stdout` or `stderr`, bytes) from the beginning of the stored log, or its last lines.

        Args:
            id_or_name: The job.
            follow: Go on until the job is final.
            tail_lines: Only this many lines of what is stored; None for all.
        """

    def stop(self, id_or_name: str, *, grace_seconds: float) -> Job:
        """Cancel a waiting job; send a running one SIGTERM and, after the grace, SIGKILL to all it started; wait for its end."""
        return self.wait(self.request_stop(id_or_name, grace_seconds).id)

    @abstractmethod
    def check_calibration(self) -> None:
        """Check before a measurement that its result can be stored.

        Raises:
            RequestError: The GPUs are a server's, which its administrator calibrates; or there are none.
        """

    @abstractmethod
    def keep_constants(self, gpu_uuid: str, constants: "Constants", bandwidths: Bandwidths) -> None:
        """Store the calibration of a GPU: constants for its model and driver, bandwidths for this GPU.

        Raises:
            RequestError: As of `check_calibration`, or there is no such GPU.
        """
