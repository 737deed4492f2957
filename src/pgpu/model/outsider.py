"""A process that holds memory of a GPU and is part of no job."""

from dataclasses import dataclass

from pgpu.model.holder import ProcessHolder


@dataclass(frozen=True, slots=True)
class Outsider:
    """One process on one GPU, outside of every lease."""

    gpu_uuid: str
    process: ProcessHolder
    used_bytes: int | None
    """None where the driver does not tell."""

    program: str
    """The name that the kernel knows it by, 15 characters of it; printable."""

    uid: int | None
    """Whose it is; None where it ended meanwhile."""
