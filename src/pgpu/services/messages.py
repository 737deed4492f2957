"""What clients and a server send each other, beside the values of `pgpu.model`: requests' bodies, as `wire` carries them."""

from dataclasses import dataclass

from pgpu.model import Profile, Submission

END_HEADER = "Pgpu-Log-Offset"
"""The header of an answer with a log's last lines: where in the log they end, for those who follow from there."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Jobs that somebody asks for, all or none."""

    submissions: tuple[Submission, ...]
    key: str | None = None
    """Chosen by the asker, up to 64 letters and digits. Asked twice with one key, for an answer was lost, they are the jobs
    of the first time. None is never asked twice."""

    environment: tuple[tuple[str, str], ...] = ()
    """The asker's own, which a process has beside what a `spec` adds."""

    inherited: str | None = None
    """The asker's umask and resource limits, as `pgpu.engine.submission.inheritance` writes them; None for the usual ones."""

    simulate: str | None = None
    """The simulated GPUs that it is for, such as `RTX 3090x4`; None for the server's own GPUs."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Word that several jobs or arrays must end, all told at once."""

    jobs: tuple[str, ...]
    grace_seconds: float
    """Between SIGTERM and SIGKILL for those that run."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Word that a job must end."""

    grace_seconds: float
    """Between SIGTERM and SIGKILL."""


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal for a job's main process."""

    number: int


@dataclass(frozen=True, slots=True)
class LeaseOffer:
    """Word that a job is idle and does without its lease if somebody needs it."""

    value: float
    """What it saves to keep it, 0 or more, in a unit that all who offer share."""


@dataclass(frozen=True, slots=True)
class Window:
    """The size of a terminal, in characters."""

    columns: int
    rows: int


@dataclass(frozen=True, slots=True)
class Together:
    """Jobs that might share a GPU."""

    jobs: tuple[Profile | str, ...]
    """Each a profile, or the id or name of a job, or a signature or the beginning of one."""

    gpu_model: str | None = None
    """As users write products; None for that of the profiles, else of the first GPU."""

    tolerance: float | None = None
    """How many times longer than alone the slowest may take."""
