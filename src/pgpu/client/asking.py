"""What clients send to a server, beside the values of `pgpu.model`: bodies of requests, as `wire` carries them."""

from dataclasses import dataclass

from pgpu.model import JobSpec, Request


@dataclass(frozen=True, slots=True)
class Ask:
    """A job that somebody asks for."""

    spec: JobSpec
    request: Request
    id: str | None = None
    """Chosen by the asker: twelve hexadecimal digits that no job has. Asked twice with one id, for an answer was lost, it
    is one job. None lets the server choose."""

    wait_timeout_seconds: float | None = None
    """See `Client.submit`."""

    environment: tuple[tuple[str, str], ...] = ()
    """The asker's own, which a process has beside what `spec` adds."""

    inherited: str | None = None
    """The asker's umask and resource limits, as `pgpu.engine.inheritance` writes them; None for the server's."""

    simulate: str | None = None
    """The simulated GPUs that it is for, such as `RTX 3090x4`; None for the server's own GPUs."""


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
class Window:
    """The size of a terminal, in characters."""

    columns: int
    rows: int


@dataclass(frozen=True, slots=True)
class Resize:
    """A new size of each slice of a job."""

    memory_bytes: int
