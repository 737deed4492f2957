"""Where the engine keeps the files of one job. Names only: nothing is opened here."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from pgpu.engine.settings import EngineSettings
from pgpu.errors import NodeError


@dataclass(frozen=True, slots=True)
class JobPaths:
    """The two directories of one job."""

    kept: Path
    """In the state directory: what is still wanted after the job ended."""

    live: Path
    """In the runtime directory: what only a living supervisor needs."""

    @property
    def log(self) -> Path:
        """The job's output; the older half is beside it with the ending `.1`."""
        return self.kept / "log"

    @property
    def supervisor_log(self) -> Path:
        """What its supervisors had to say; empty unless something went wrong."""
        return self.kept / "supervisor.log"

    @property
    def trace(self) -> Path:
        """What a traced job did on the GPU, packed; there once it ended."""
        return self.kept / "trace"

    @property
    def wake_socket(self) -> Path:
        """Where its supervisor is told to look again."""
        return self.live / "wake.sock"

    @property
    def attach_socket(self) -> Path:
        """Where clients follow the job."""
        return self.live / "attach.sock"

    @property
    def time_samples(self) -> Path:
        """What it got of its GPUs' time in the last minute."""
        return self.live / "time"

    @property
    def parking(self) -> Path:
        """How far it has left its GPU while it is suspended."""
        return self.live / "parking"

    def pipe(self, stream: str) -> Path:
        """Return the named pipe of `stdout` or `stderr`."""
        return self.live / stream

    def make(self) -> None:
        """Make both directories, closed to other users.

        Raises:
            NodeError: One of them cannot be made.
        """
        for directory in (self.kept, self.live):
            try:
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as exc:
                raise NodeError(f"{directory} cannot be made: {exc.strerror}") from exc

    def remove_live(self) -> None:
        """Remove what only a living supervisor needs."""
        shutil.rmtree(self.live, ignore_errors=True)

    def remove(self) -> None:
        """Remove everything of the job."""
        self.remove_live()
        shutil.rmtree(self.kept, ignore_errors=True)


def job_paths(settings: EngineSettings, job_id: str) -> JobPaths:
    """Return the places of one job."""
    return JobPaths(settings.state_directory / "jobs" / job_id, settings.runtime_directory / "jobs" / job_id)


@dataclass(frozen=True, slots=True)
class KeeperPaths:
    """Where the keeper of one queue is found, all in the runtime directory."""

    lock: Path
    """Locked as long as it lives; says who it is."""

    wake_socket: Path
    """Where it is told to look."""

    door_socket: Path
    """Where those who wait for one job hear that it waits no longer."""

    plan: Path
    """In which order its jobs start, where the queue should end soonest."""


def keeper_paths(settings: EngineSettings, gpu_model: str | None) -> KeeperPaths:
    """Return the places of the keeper of one queue."""
    directory, name = settings.runtime_directory / "keepers", gpu_model or "gpus"
    return KeeperPaths(*(directory / f"{name}.{ending}" for ending in ("lock", "wake", "door", "plan")))
