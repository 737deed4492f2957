"""The state of each GPU's turns: a file for the next holder of the lock, and for reports.

Only the holder of the lock writes it, atomically; an unreadable file counts as none.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pgpu.engine.settings import EngineSettings
from pgpu.host.atomic_file import write_atomically
from pgpu.scheduling.gpu_turns import NO_TURNS, TurnState

_MODE = 0o600


@dataclass(frozen=True, slots=True)
class TurnPaths:
    """Files of one GPU's turns, in the runtime directory."""

    lock: Path
    """Held by the one supervisor that runs the turns."""

    standing: Path


@dataclass(frozen=True, slots=True)
class GpuTurn:
    """The turn on one GPU. Times are seconds since the epoch."""

    gpu_uuid: str
    holders: tuple[str, ...]
    """Job ids; empty while the next ones wait for work of the last ones in flight."""

    since_seconds: float | None
    until_seconds: float | None
    """When the turn ends, if other jobs wait; both None while there are no holders."""

    waiting: tuple[str, ...]
    """Ids of jobs with work that is held, the longest waiting first."""


def turn_paths(settings: EngineSettings, gpu_uuid: str) -> TurnPaths:
    """Return the files of one GPU's turns."""
    directory = settings.runtime_directory / "turns"
    return TurnPaths(directory / f"{gpu_uuid}.lock", directory / f"{gpu_uuid}.json")


def save_turns(path: Path, turns: TurnState) -> None:
    """Write the state.

    Raises:
        OSError: It cannot be written.
    """
    fields = {name: sorted(value) if isinstance(value, frozenset) else value for name, value in asdict(turns).items()}
    write_atomically(path, json.dumps(fields).encode(), _MODE)


def load_turns(path: Path) -> TurnState:
    """Return the last state; `NO_TURNS` if it cannot be read."""
    try:
        fields = json.loads(path.read_bytes())
        seconds = {
            name: {str(key): float(value) for key, value in fields[name].items()}
            for name in ("leaving", "served_seconds", "waiting_since_seconds")
        }
        return TurnState(
            is_on=bool(fields["is_on"]),
            holders=tuple(fields["holders"]),
            since_seconds=float(fields["since_seconds"]),
            until_seconds=float(fields["until_seconds"]),
            coming=tuple(fields["coming"]),
            brief=frozenset(fields["brief"]),
            went_first=frozenset(fields["went_first"]),
            had_turn=frozenset(fields["had_turn"]),
            **seconds,
        )
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return NO_TURNS


def turns_now(settings: EngineSettings, gpu_uuids: Sequence[str]) -> list[GpuTurn]:
    """Return the turns on these GPUs; without those on which all jobs run."""
    offset_seconds = time.time() - time.monotonic()
    found = []
    for uuid in gpu_uuids:
        turns = load_turns(turn_paths(settings, uuid).standing)
        if not turns.is_on:
            continue
        waiting = turns.waiting_since_seconds
        found.append(
            GpuTurn(
                uuid,
                turns.holders,
                turns.since_seconds + offset_seconds if turns.holders else None,
                turns.until_seconds + offset_seconds if turns.holders else None,
                tuple(sorted(waiting, key=lambda job_id: (waiting[job_id], job_id))),
            )
        )
    return found
