"""Paths of the engine's files: one pair of directories for each job, and the keepers' files."""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from pgpu.engine.settings import EngineSettings
from pgpu.errors import NodeError


@dataclass(frozen=True, slots=True)
class JobPaths:
    """The two directories of one job."""

    kept: Path
    """In the state directory: files that are needed after the job has ended."""

    live: Path
    """In the runtime directory: files that only a living supervisor needs."""

    @property
    def log(self) -> Path:
        """The job's output; the older half is beside it with the suffix `.1`."""
        return self.kept / "log"

    @property
    def supervisor_log(self) -> Path:
        """Standard error of its supervisors; empty unless something went wrong."""
        return self.kept / "supervisor.log"

    @property
    def trace(self) -> Path:
        """The compressed trace log of a profiled job; exists once it has ended."""
        return self.kept / "trace"

    @property
    def wake_socket(self) -> Path:
        """Datagram socket of its supervisor: wake-ups and control messages."""
        return self.live / "wake.sock"

    @property
    def attach_socket(self) -> Path:
        """Stream socket on which its supervisor serves the job's output."""
        return self.live / "attach.sock"

    @property
    def time_samples(self) -> Path:
        """Samples of its GPU time over the last minute."""
        return self.live / "time"

    @property
    def parking(self) -> Path:
        """State of its move to the host while it is suspended."""
        return self.live / "parking"

    def pipe(self, stream: str) -> Path:
        """Return the named pipe of `stdout` or `stderr`."""
        return self.live / stream

    def make(self) -> None:
        """Make both directories with mode 0700.

        Raises:
            NodeError: One of them cannot be made.
        """
        for directory in (self.kept, self.live):
            try:
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as exc:
                raise NodeError(f"{directory} cannot be made: {exc.strerror}") from exc

    def remove_live(self) -> None:
        """Remove the files of the runtime directory."""
        shutil.rmtree(self.live, ignore_errors=True)

    def remove(self) -> None:
        """Remove all files of the job."""
        self.remove_live()
        shutil.rmtree(self.kept, ignore_errors=True)


def job_paths(settings: EngineSettings, job_id: str) -> JobPaths:
    """Return the paths of one job."""
    return JobPaths(settings.state_directory / "jobs" / job_id, settings.runtime_directory / "jobs" / job_id)


@dataclass(frozen=True, slots=True)
class KeeperPaths:
    """The files of the keeper of one queue, in the runtime directory."""

    lock: Path
    """Locked as long as the keeper lives; holds its process identity."""

    wake_socket: Path
    door_socket: Path
    """Stream socket on which clients wait until a job is no longer waiting."""

    plan: Path
    """The order of its jobs, with `objective = makespan`."""


def keeper_paths(settings: EngineSettings, gpu_model: str | None) -> KeeperPaths:
    """Return the paths of the keeper of one queue."""
    directory, name = settings.runtime_directory / "keepers", gpu_model or "gpus"
    return KeeperPaths(*(directory / f"{name}.{ending}" for ending in ("lock", "wake", "door", "plan")))


def redirect_stderr(places: JobPaths) -> None:
    """Redirect this process's standard error to the job's `supervisor.log`.

    Raises:
        NodeError: The job's directories cannot be made.
    """
    places.make()
    with places.supervisor_log.open("ab") as errors:
        os.dup2(errors.fileno(), sys.stderr.fileno())
