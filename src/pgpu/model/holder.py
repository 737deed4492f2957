"""Who holds a lease, in terms that stay true when a PID or a name is used again."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProcessHolder:
    """A process of this machine."""

    pid: int
    start_time_ticks: int
    """Field 22 of /proc/PID/stat: clock ticks after boot."""

    boot_id: str
    """/proc/sys/kernel/random/boot_id when the process started."""


@dataclass(frozen=True, slots=True)
class ContainerHolder:
    """A container of a Docker engine."""

    container_id: str
    """64 hexadecimal digits."""

    engine_url: str
    """The engine's address, such as `unix:///var/run/docker.sock`."""


@dataclass(frozen=True, slots=True)
class ClaimHolder:
    """Whoever has a slice by a claim: no process of its own, and any number of containers."""

    claim_uid: str

    slice_directory: str
    """What lies at `/.pgpu` in each of those containers."""


Holder = ProcessHolder | ContainerHolder | ClaimHolder
