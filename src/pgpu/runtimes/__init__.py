"""Runtimes start jobs inside their leases, as processes or containers, behind the `Runtime` protocol.

A runtime starts, signals, waits for and adopts jobs. GPUs and limits are chosen by its callers, and it stores nothing.
"""

import os
from collections.abc import Callable, Sequence
from typing import Protocol

from pgpu.model import Account, Delivery, Holder, Job, JobSpec, ProcessHolder
from pgpu.structs import Struct


class Stdio(Struct, frozen=True):
    """The descriptors of a started job's standard streams; the agent owns the other ends.

    With a terminal (`JobSpec.wants_tty`) all three are the slave side of one pty. Otherwise output goes to named pipes that
    the job itself also holds open for reading, so that it gets no SIGPIPE if its monitor dies. A runtime duplicates the
    descriptors that it keeps; the caller closes these three after `start` or `adopt` returned.
    """

    stdin: int
    stdout: int
    stderr: int
    monitor: "LauncherParent | None" = None
    """Starts the launcher of a process in place of this process; None makes it a child of this process."""


class LauncherParent(Protocol):
    """The monitor of one job, as its runtime sees it."""

    @property
    def end_event(self) -> int:
        """Descriptor that polls readable once the job has ended and its exit code is known, if it ever will be."""
        ...

    @property
    def knows_end(self) -> bool:
        """Whether the exit code is recorded, or a living monitor will record it."""
        ...

    def start_launcher(self, words: Sequence[str], control: int, report: int) -> None:
        """Start the launcher; its report begins with a line "started" and its PID.

        Args:
            words: Its arguments, without its own name.
            control: Read end of its control pipe.
            report: Write end of its report pipe.

        Raises:
            OSError: The kernel could not create a process.
        """
        ...

    def exit_code(self, holder: ProcessHolder, pidfd: int | None) -> int | None:
        """Return the exit code of this process, 0-255; None if it is unknown, or if its command was not executed.

        Args:
            holder: The job's main process.
            pidfd: Of that process; None if it ended before it could be opened.
        """
        ...


class RunningJob(Protocol):
    """A job that was started and may have ended."""

    @property
    def holder(self) -> Holder:
        """The process, container or claim that holds the lease."""
        ...

    def fileno(self) -> int:
        """Return a descriptor that polls readable once the job has ended, such as a pidfd."""
        ...

    def exit_code(self) -> int | None:
        """Return 0–255 (128 + signal for a signal) after the end; None while the job runs, or if its exit code is unknown."""
        ...

    def is_alive(self) -> bool:
        """True while the holder runs."""
        ...

    def owns(self, pid: int) -> bool:
        """True if this process (host PID) is part of the job, by the marks that the runtime can read."""
        ...

    def signal(self, number: int) -> None:
        """Send a signal to the job's main process; no effect if it has ended."""
        ...

    def kill(self) -> None:
        """End the job and all processes that it started."""
        ...

    def resize_terminal(self, size: os.terminal_size) -> None:
        """Set the size of the job's terminal, in characters."""
        ...

    def close(self) -> None:
        """Release descriptors, and remove the container if the job requested it."""
        ...


class Runtime(Protocol):
    """Starts jobs of one kind."""

    @property
    def name(self) -> str:
        """`process`, `docker`, `oci` or `claim`."""
        ...

    def check(self, spec: JobSpec, account: Account | None = None) -> None:
        """Reject a spec that can never start, before the request is accepted.

        Args:
            spec: The job to run.
            account: Under which it will run; paths named by another user than this process's own are not opened here.

        Raises:
            RequestError: Unknown image, bad volume, or an option that this runtime does not have.
            RuntimeUnavailableError: The engine cannot be reached.
        """
        ...

    def start(
        self,
        job: Job,
        delivery: Delivery,
        stdio: Stdio,
        announce: Callable[[Holder], None],
        account: Account | None = None,
    ) -> RunningJob:
        """Start the job with the files of `delivery` in place before its first instruction.

        The holder is created first and held back: a process waits on a pipe and exits if that is closed, a container is
        created and not started. Then `announce` is called once, then the holder is released. So a crash at any point leaves
        either nothing that runs, or a holder that the ledger records. If `announce` raises, the holder is removed and the
        error is re-raised. Leftovers of an earlier, never announced `start` of the same job (a container of that name) are
        removed first.

        Args:
            job: With its lease.
            delivery: The files and environment from the enforcer.
            stdio: The job's ends of its standard streams.
            announce: Writes the holder durably into the ledger before the job's first instruction.
            account: Under which it runs; None for this process's own, environment included. For a user other than root,
                no path is opened or resolved with root's rights.

        Raises:
            CommandNotFoundError: Exit code 127, as in Docker.
            CommandNotExecutableError: Exit code 126.
            RuntimeUnavailableError: The engine or kernel refused.
        """
        ...

    def adopt(self, job: Job, stdio: Stdio) -> RunningJob | None:
        """Attach to a job that another process started; `job.holder` is set.

        A process has its named pipes already; a container's output from now on goes to `stdio`. An ended container that still
        exists is adopted as well: not alive, with its exit code.

        Returns:
            None if the holder is gone, is another process or container, or was created and certainly never ran.
        """
        ...

    def is_advisory(self, spec: JobSpec) -> bool:
        """True if only a preload is possible here, so that a job that clears its environment also loses its limit."""
        ...

    def image_id(self, spec: JobSpec) -> str:
        """Return the ID that the job's image name resolves to now; empty without an image.

        Raises:
            RequestError: There is no such image.
            RuntimeUnavailableError: The engine cannot be reached.
        """
        ...

    def can_load_driver(self, spec: JobSpec) -> bool:
        """True if a program of this job can load a GPU driver; one of an image without glibc cannot."""
        ...
