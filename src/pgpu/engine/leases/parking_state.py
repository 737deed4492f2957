"""The state of one suspended job's move to the host: a file for the next agent, for jobs that wait, and for rounds.

Only the process that supervises the job writes it, atomically; an unreadable file counts as none. It is in the runtime
directory, since after a reboot there are no processes to bring back.
"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from pgpu.host.atomic_file import write_atomically
from pgpu.model import Job, ProcessHolder, SharingMode
from pgpu.structs import DecodeError, JsonDecoder, Struct, encode_json

if TYPE_CHECKING:
    from pgpu.enforcement.checkpoints import Checkpoints


class Stage(StrEnum):
    """How far the move is."""

    LEAVING = "leaving"
    """Some processes may be off the GPU, some not."""

    AWAY = "away"
    """All that can be moved is off the GPU, and nothing of the job runs."""

    REFUSED = "refused"
    """It could not be moved, and continues."""


class Traveller(Struct, frozen=True):
    """A process that is, or may be, moved to the host."""

    process: ProcessHolder
    held_bytes: int
    """GPU memory that it held before."""


class Parking(Struct, frozen=True):
    """The state of one job's move."""

    by: str
    """Id of the job for which it is suspended."""

    stage: Stage
    travellers: tuple[Traveller, ...] = ()
    """Written before the first of them is moved."""

    reason: str = ""
    """Why it was refused."""


_PARKING = JsonDecoder(Parking)


def save_parking(path: Path, parking: Parking) -> None:
    """Write the state.

    Raises:
        OSError: It cannot be written.
    """
    # Atomic: waiting jobs and rounds of other processes read the file at any time.
    write_atomically(path, encode_json(parking), 0o600)


def load_parking(path: Path) -> Parking | None:
    """Return the state; None if nothing was moved."""
    try:
        return _PARKING.decode(path.read_bytes())
    except (OSError, DecodeError):
        return None


def is_travelling(path: Path) -> bool:
    """Whether processes of a job may be off the GPU, so that its meter counts more than it holds there."""
    parking = load_parking(path)
    return parking is not None and bool(parking.travellers)


def can_leave(job: Job, checkpoints: "Checkpoints | None", path: Path) -> bool:
    """Whether the driver may move the whole of a job with a lease to the host, by what was found until now.

    Not for jobs that oversubscribe: the driver moves their pages by itself, and not under MPS. Whether a certain job can be
    moved shows only in an attempt; a failure is recorded in its state.

    Args:
        job: Any.
        checkpoints: Of its driver; None where there are none.
        path: Of its state.
    """
    lease = job.lease
    if lease is None or len(lease.slices) != 1 or lease.sharing is not SharingMode.TIME_SLICE:
        return False
    if job.request.oversubscribes or checkpoints is None or not checkpoints.are_offered():
        return False
    # A job that could not be moved once is not tried again.
    parking = load_parking(path)
    return parking is None or not parking.reason
