"""Put a job into its lease: as a process or as a container, behind one protocol.

A runtime starts, signals, waits and adopts. It refuses to choose a GPU, to know what a limit is, and to store anything.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pgpu.model import Account, Delivery, Holder, Job, JobSpec


@dataclass(frozen=True, slots=True)
class Stdio:
    """The descriptors that a started job uses as its standard streams; the supervisor owns the other ends.

    With a terminal (`JobSpec.wants_tty`) all three are the same pty's slave side. Otherwise output goes to named pipes
    that the job itself holds open for reading too, so that it outlives its supervisor without a SIGPIPE. A runtime
    duplicates what it keeps; the caller closes these three after `start` or `adopt` returned.
    """

    stdin: int
    stdout: int
    stderr: int


class RunningJob(Protocol):
    """A job that was started and may have ended."""

    @property
    def holder(self) -> Holder:
        """What holds the lease."""
        ...

    def fileno(self) -> int:
        """Return a descriptor that polls readable once the job ended, such as a pidfd."""
        ...

    def exit_code(self) -> int | None:
        """Return 0–255 (128 + signal for a signal) once it ended; None while it runs, or where nobody could see it end."""
        ...

    def is_alive(self) -> bool:
        """Whether the holder still runs."""
        ...

    def owns(self, pid: int) -> bool:
        """Whether this process of the host, by host PID, is part of the job, as far as one can tell."""
        ...

    def signal(self, number: int) -> None:
        """Send a signal to the job's main process; does nothing if it ended."""
        ...

    def kill(self) -> None:
        """End the job and everything it started."""
        ...

    def resize_terminal(self, size: os.terminal_size) -> None:
        """Tell a job with a terminal its new size in characters."""
        ...

    def close(self) -> None:
        """Release descriptors, and remove the container where the job asked for it."""
        ...


class Runtime(Protocol):
    """Starts jobs of one kind."""

    @property
    def name(self) -> str:
        """`process` or `docker`."""
        ...

    def check(self, spec: JobSpec, account: Account | None = None) -> None:
        """Refuse what can never start, before the request is accepted.

        Args:
            spec: What to run.
            account: Under which it will run; nothing that a user other than this process's own named is opened here.

        Raises:
            RequestError: Unknown image, bad volume, an option that this runtime has not.
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
        """Start the job with what `delivery` names in place before its first instruction.

        The holder is made first, held back (a process waits on a pipe whose end it treats as "go away", a container is
        created and not started), then `announce` is called once, then the holder is let go. So a crash at any point
        leaves either nothing that runs, or a holder that the ledger knows. If `announce` raises, the holder is removed
        and the error passes on. What an earlier, never announced `start` of the same job left over (a container of
        that name) is removed first.

        Args:
            job: With its lease.
            delivery: What the enforcer made.
            stdio: The job's ends of its standard streams.
            announce: Writes the holder durably into the ledger before the job's first instruction.
            account: Under which it runs; None for this process's own, environment included. Of another user than root
                nothing is opened, and nothing looked up, with root's rights.

        Raises:
            CommandNotFoundError: Exit code 127, as Docker's.
            CommandNotExecutableError: Exit code 126.
            RuntimeUnavailableError: The engine or kernel refused.
        """
        ...

    def adopt(self, job: Job, stdio: Stdio) -> RunningJob | None:
        """Take charge of a job that another process started; `job.holder` is set.

        A process has its named pipes already; a container's output from now on goes to `stdio`. A container that ended
        and still exists is adopted too: not alive, with its exit code.

        Returns:
            None if the holder is gone, was never this one, or was created and surely never ran.
        """
        ...

    def is_advisory(self, spec: JobSpec) -> bool:
        """Whether this runtime can only preload here, so that a job that drops its environment drops its limit."""
        ...

    def image_id(self, spec: JobSpec) -> str:
        """Return what the name of the job's image stands for now; empty where there is no image.

        Raises:
            RequestError: There is no such image.
            RuntimeUnavailableError: The engine cannot be reached.
        """
        ...

    def can_load_driver(self, spec: JobSpec) -> bool:
        """Whether a program of this job could load a GPU's driver at all; one of an image without glibc cannot."""
        ...
