"""What an engine is told when it is made. Values only: `app` reads files and flags."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pgpu.scheduling.gpu_turns import TurnRules
from pgpu.units import MIB


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings of one engine; `app` fills them from files, environment and flags."""

    state_directory: Path
    """Holds the ledger and the jobs' logs; survives a reboot. Made with mode 0700 if it is missing."""

    runtime_directory: Path
    """Holds sockets and named pipes of live jobs; on a tmpfs, one for each state directory, mode 0700."""

    gpu_model: str | None = None
    """Model and count of the simulated GPUs that this engine grants (`RTX 3090x4`); None for the machine's real ones.
    Jobs of other models stand in the same ledger and in queues of their own."""

    headroom_least_bytes: int = 256 * MIB
    """Memory of each GPU that is never granted, in bytes, unless the share is more. Default: what drivers and displays
    take without asking."""

    headroom_fraction: float = 0.03
    """The same as a share of the GPU, 0 to below 1; the larger of both counts."""

    on_violation: Literal["report", "stop"] = "report"
    """What happens to a job that the driver sees holding over 5 % more than its slice. Default: report it, since a
    driver's own estimate should not end a job unless the operator says so."""

    idle_timeout_seconds: float | None = None
    """After so long without any work of it on its GPUs a job is called idle; None for never."""

    on_idle: Literal["report", "stop"] = "report"
    """What happens to a job that is idle. Default: report it, since it may wait for its owner's next word."""

    on_outsider: Literal["report", "stop"] = "report"
    """What happens to a process that computes on a GPU outside of every lease. Default: report it, since it may be
    somebody's who knows nothing of pgpu."""

    objective: Literal["response", "makespan"] = "response"
    """What the order of waiting jobs is for: that each is soon done, or that all are. Default: response, since most queues
    have several users, none of whom waits for the others' jobs."""

    has_mps: bool = False
    """Whether jobs on one GPU may share it under MPS. Default: no, since a control daemon must be there for it."""

    oversubscription: float = 1.5
    """How many times a GPU's memory the slices of jobs that oversubscribe may sum to; 1 for not at all. Default: what was
    published as useful; a job is sure of the rest of its slice, two thirds, on the device."""

    has_turns: bool = True
    """Whether jobs that oversubscribe take turns while what they work on does not fit onto their GPU."""

    turns: TurnRules = field(default_factory=TurnRules)
    """How long turns last on a GPU that cannot hold what its jobs work on."""

    log_cap_bytes: int = 100 * MIB
    """How much of each job's output is kept; the older half goes first."""

    stable_seconds: float = 60.0
    """How long the peak of a job of unknown size must not have grown before its slice is made to fit. Default: a minute,
    in which a training has been through its first steps."""

    stop_grace_seconds: float = 10.0
    """Between SIGTERM and SIGKILL where nobody said otherwise. Default: Docker's."""

    most_waiting: int = 10_000
    """How many jobs of each user but root may wait; more are refused. Default: what one queue is built for."""

    jobs_without_gpu: int = 128
    """How many jobs without a GPU run at a time, of all users together; the others wait. Default: what a machine carries on
    which each is a supervisor and a command of its own."""

    kept_jobs: int = 1000
    """How many jobs of each user that ended are remembered, with their logs; the oldest go first. Default: months of ordinary use."""
