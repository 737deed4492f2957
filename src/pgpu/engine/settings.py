"""Settings of an engine, and the paths of its files in the two directories that they name.

Values only: `app` reads the settings from files, environment and flags. Every process of one engine computes the same paths.
"""

import os
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

from pgpu.errors import NodeError
from pgpu.host.file_tree import remove_tree
from pgpu.scheduling.gpu_turns import TurnRules
from pgpu.structs import Struct, field
from pgpu.units import MIB

MOST_END_DELAY_SECONDS = 0.5
"""Longest time that an ended job's clients wait because its memory is still held: by processes that it left behind."""


class EngineSettings(Struct, frozen=True):
    """Settings of one engine."""

    state_directory: Path
    """Holds the ledger and the jobs' logs; survives a reboot. Made with mode 0700 if it is missing."""

    runtime_directory: Path
    """Holds sockets and named pipes of live jobs; on a tmpfs, one for each state directory, mode 0700."""

    gpu_model: str | None = None
    """Model and count of the simulated GPUs that this engine grants (`RTX 3090x4`); None for the machine's real ones.
    The same ledger may hold jobs of other models, in queues of their own."""

    agent_unit: str | None = None
    """Template unit of systemd of which an instance is started as the agent of a queue; None where this process starts it."""

    headroom_least_bytes: int = 256 * MIB
    """Memory of each GPU that is kept free of slices, in bytes, unless the share is more. Default: what drivers and displays
    usually take."""

    headroom_fraction: float = 0.03
    """The same as a share of the GPU, 0 to below 1; the larger of both counts."""

    headroom_yields: bool = True
    """Whether slices of declared sizes may use it while the memory outside of slices is stable. Default: yes, since such slices
    take no more than they were granted."""

    on_violation: Literal["report", "stop"] = "report"
    """What happens to a job that holds over 5 % more than its slice by the driver's figures. Default: report it, since a
    driver's estimate should not end a job unless the operator chooses that."""

    idle_timeout_seconds: float | None = None
    """Time without work on its GPUs after which a job counts as idle; None for never."""

    on_idle: Literal["report", "stop"] = "report"
    """What happens to a job that is idle. Default: report it, since an interactive job may wait for input."""

    on_outsider: Literal["report", "stop"] = "report"
    """What happens to a process that computes on a GPU outside of every lease. Default: report it, since it may belong
    to a user without pgpu."""

    objective: Literal["response", "makespan"] = "response"
    """Order of waiting jobs: `response` for early ends of single jobs, `makespan` for an early end of all. Default: response,
    since most queues have several users with unrelated jobs."""

    has_mps: bool = False
    """Whether jobs on one GPU may share it under MPS. Default: no, since it needs a control daemon."""

    oversubscription: float = 1.5
    """How many times a GPU's memory the slices of jobs that oversubscribe may sum to; 1 for not at all. Default: a published
    useful value; two thirds of each slice are then guaranteed on the device."""

    has_turns: bool = True
    """Whether jobs that oversubscribe take turns while their working sets together do not fit on the GPU."""

    divides_users: bool = True
    """Whether the time of a GPU on which several users have work is divided between users first, then between their jobs.
    Default: yes, since otherwise a user with more processes has more of it."""

    turns: TurnRules = field(default_factory=TurnRules)
    """Lengths of turns."""

    log_cap_bytes: int = 100 * MIB
    """How much of each job's output is kept; the older half is removed first."""

    stable_seconds: float = 60.0
    """How long memory must not have grown: the peak of a job of unknown size before its slice is shrunk, and memory outside of
    slices before headroom yields. Default: a minute, in which a training run has done its first steps."""

    stop_grace_seconds: float = 10.0
    """Time between SIGTERM and SIGKILL, unless the stop request has its own. Default: Docker's."""

    most_waiting: int = 10_000
    """How many jobs of each user but root may wait; more are refused. Default: what one queue is built for."""

    most_waiting_bytes: int = 128 * MIB
    """How much of the ledger the waiting jobs of each user but root may take, and those of one request of any user, in bytes.
    Default: ten thousand jobs with an environment of their own each."""

    jobs_without_gpu: int = 128
    """How many jobs without a GPU run at a time, of all users together; the others wait. Default: a number of
    commands that an ordinary machine can run."""

    kept_jobs: int = 1000
    """How many ended jobs of each user are kept, with their logs; the oldest are removed first. Default: months of ordinary use."""

    @property
    def mps_directory(self) -> Path:
        """Holds the files of MPS daemons; made with the first one."""
        return self.runtime_directory / "mps"

    @property
    def outsider_peaks(self) -> Path:
        """Record of the memory outside of slices on the GPUs of this engine."""
        return self.runtime_directory / "watchdogs" / f"{self.gpu_model or 'gpus'}.peaks"

    @property
    def spool(self) -> Path:
        """Directory of the records of monitors and guards; made by the first agent."""
        return self.state_directory / "spool"


class JobPaths(Struct, frozen=True, dict=True):
    """The two directories of one job. What is used each second is kept; a path takes half a kilobyte."""

    kept: Path
    """In the state directory: files that are needed after the job has ended."""

    live: Path
    """In the runtime directory: files that are needed only while the job lives."""

    @property
    def log(self) -> Path:
        """The job's output; the older half is beside it with the suffix `.1`."""
        return self.kept / "log"

    @property
    def supervisor_log(self) -> Path:
        """What its agent logs about it; missing unless something went wrong."""
        return self.kept / "supervisor.log"

    @property
    def trace(self) -> Path:
        """The compressed trace log of a profiled job; exists once it has ended."""
        return self.kept / "trace"

    @cached_property
    def wake_socket(self) -> Path:
        """Datagram socket of its thread of the agent: wake-ups and control messages."""
        return self.live / "wake.sock"

    @property
    def attach_socket(self) -> Path:
        """Stream socket on which its monitor serves the job's output."""
        return self.live / "attach.sock"

    @property
    def time_samples(self) -> Path:
        """Samples of its GPU time over the last minute."""
        return self.live / "time"

    @cached_property
    def parking(self) -> Path:
        """State of its move to the host while it is suspended."""
        return self.live / "parking"

    @property
    def control_socket(self) -> Path:
        """Datagram socket of its monitor's control words."""
        return self.live / "control.sock"

    @property
    def monitor_lock(self) -> Path:
        """Locked as long as its monitor lives."""
        return self.live / "monitor.lock"

    @property
    def done(self) -> Path:
        """Named pipe that its monitor holds open until it has recorded the job's end."""
        return self.live / "done"

    @property
    def spool(self) -> Path:
        """See `EngineSettings.spool`."""
        return self.kept.parent.with_name("spool")

    def records(self) -> list[Path]:
        """Return the records of the job's monitors."""
        try:
            names = os.listdir(self.spool)  # noqa: PTH208 - one string for each record of all jobs
        except FileNotFoundError:
            return []
        own = (f"started-{self.kept.name}.", f"ended-{self.kept.name}.")
        return [self.spool / name for name in names if name.startswith(own)]

    def remove_records(self) -> None:
        """Remove the records of the job's monitors, once the ledger has the job's end."""
        for record in self.records():
            record.unlink(missing_ok=True)

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
        with suppress(OSError):
            remove_tree(self.live)

    def remove(self) -> None:
        """Remove all files of the job."""
        from shutil import rmtree  # noqa: PLC0415 - commands remove no jobs

        self.remove_live()
        self.remove_records()
        rmtree(self.kept, ignore_errors=True)


@lru_cache(maxsize=1024)
def job_paths(state_directory: Path, runtime_directory: Path, job_id: str) -> JobPaths:
    """Return the paths of one job."""
    # Cached: an agent uses them for each message to a job.
    return JobPaths(state_directory / "jobs" / job_id, runtime_directory / "jobs" / job_id)


class AgentPaths(Struct, frozen=True):
    """The files of the agent of one queue, in the runtime directory."""

    lock: Path
    """Locked as long as the agent or its guard lives; holds the agent's identity."""

    wake_socket: Path
    door_socket: Path
    """Stream socket on which clients wait until a job is no longer waiting."""

    plan: Path
    """The order of its jobs, with `objective = makespan`."""

    gpus: Path
    """Its GPUs as the agent's last round read them, in JSON."""


def agent_paths(settings: EngineSettings, gpu_model: str | None) -> AgentPaths:
    """Return the paths of the agent of one queue."""
    return _agent_paths(settings.runtime_directory, gpu_model)


@lru_cache(maxsize=64)
def _agent_paths(runtime_directory: Path, gpu_model: str | None) -> AgentPaths:
    # Cached as those of jobs. Named as in the release before this one, so that agents of both exclude each other.
    directory, name = runtime_directory / "keepers", gpu_model or "gpus"
    return AgentPaths(*(directory / f"{name}.{ending}" for ending in ("lock", "wake", "door", "plan", "listed")))
