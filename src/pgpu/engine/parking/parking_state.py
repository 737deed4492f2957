"""How far the leaving of one suspended job has come, for its next supervisor, for whoever waits for its place and for rounds.

Written by the job's supervisor alone, whole or not at all; what cannot be read counts as never written. It lies among the
files of the living: a machine that starts anew has no processes to bring back.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from pgpu.host.atomic_file import write_atomically
from pgpu.model import ProcessHolder

_MODE = 0o600


class Stage(StrEnum):
    """Of a leaving."""

    LEAVING = "leaving"
    """Some processes may be gone from the GPU, some not."""

    AWAY = "away"
    """Its place is free: what could be moved has been, and nothing of it runs."""

    REFUSED = "refused"
    """It could not be moved, and goes on."""


@dataclass(frozen=True, slots=True)
class Traveller:
    """One process that was asked to leave."""

    process: ProcessHolder
    held_bytes: int
    """Of its GPU, when it left."""


@dataclass(frozen=True, slots=True)
class Parking:
    """How one job's leaving stands."""

    by: str
    """The job for which it is suspended."""

    stage: Stage
    travellers: tuple[Traveller, ...] = ()
    """Who may be away; written before any of them leaves."""

    reason: str = ""
    """Why it was refused."""


def save_parking(path: Path, parking: Parking) -> None:
    """Write how it stands.

    Raises:
        OSError: It cannot be written.
    """
    write_atomically(path, json.dumps(asdict(parking)).encode(), _MODE)


def load_parking(path: Path) -> Parking | None:
    """Return how it stands; None where nobody left."""
    try:
        fields = json.loads(path.read_bytes())
        return Parking(
            str(fields["by"]), Stage(fields["stage"]), _travellers(fields["travellers"]), str(fields["reason"])
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None


def is_travelling(path: Path) -> bool:
    """Whether processes of a job may be away, so that its meter counts more than it holds."""
    parking = load_parking(path)
    return parking is not None and bool(parking.travellers)


def _travellers(told: Sequence[dict[str, object]]) -> tuple[Traveller, ...]:
    return tuple(
        Traveller(ProcessHolder(**each["process"]), int(each["held_bytes"]))  # type: ignore[arg-type, call-overload]
        for each in told
    )
