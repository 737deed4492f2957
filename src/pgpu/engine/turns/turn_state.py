"""How the turns of each GPU stand, for whoever does them next and for whoever shows them.

Written by the arbiter on duty alone, whole or not at all; what cannot be read counts as never written.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pgpu.engine.settings import EngineSettings
from pgpu.host.atomic_file import write_atomically
from pgpu.scheduling.gpu_turns import NO_TURNS, TurnState

_MODE = 0o600


@dataclass(frozen=True, slots=True)
class TurnPaths:
    """Where the turns of one GPU are written, in the runtime directory."""

    lock: Path
    """Locked by the arbiter on duty."""

    standing: Path


@dataclass(frozen=True, slots=True)
class GpuTurn:
    """Whose turn it is on one GPU. Times are seconds since the epoch."""

    gpu_uuid: str
    holders: tuple[str, ...]
    """Job ids; none while the next wait for the last to finish what is in flight."""

    since_seconds: float | None
    until_seconds: float | None
    """When the turn ends, if anybody waits for one; both None while there are no holders."""

    waiting: tuple[str, ...]
    """Who has something to do and may not, the longest waiting first."""


def turn_paths(settings: EngineSettings, gpu_uuid: str) -> TurnPaths:
    """Return the places of one GPU's turns."""
    directory = settings.runtime_directory / "turns"
    return TurnPaths(directory / f"{gpu_uuid}.lock", directory / f"{gpu_uuid}.json")


def save_turns(path: Path, turns: TurnState) -> None:
    """Write how turns stand.

    Raises:
        OSError: It cannot be written.
    """
    fields = {name: sorted(value) if isinstance(value, frozenset) else value for name, value in asdict(turns).items()}
    write_atomically(path, json.dumps(fields).encode(), _MODE)


def load_turns(path: Path) -> TurnState:
    """Return how turns stood when they were written last: `FREE` where that cannot be told."""
    try:
        return _turns(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return NO_TURNS


def turns_now(settings: EngineSettings, gpu_uuids: Sequence[str]) -> list[GpuTurn]:
    """Return whose turn it is on each of these GPUs; those on which everybody runs are left out."""
    offset_seconds = time.time() - time.monotonic()
    found = [(uuid, load_turns(turn_paths(settings, uuid).standing)) for uuid in gpu_uuids]
    return [_shown(uuid, turns, offset_seconds) for uuid, turns in found if turns.is_on]


def _shown(gpu_uuid: str, turns: TurnState, offset_seconds: float) -> GpuTurn:
    waiting = turns.waiting_since_seconds
    return GpuTurn(
        gpu_uuid,
        turns.holders,
        turns.since_seconds + offset_seconds if turns.holders else None,
        turns.until_seconds + offset_seconds if turns.holders else None,
        tuple(sorted(waiting, key=lambda job_id: (waiting[job_id], job_id))),
    )


def _turns(fields: dict[str, Any]) -> TurnState:
    return TurnState(
        is_on=bool(fields["is_on"]),
        holders=tuple(fields["holders"]),
        since_seconds=float(fields["since_seconds"]),
        until_seconds=float(fields["until_seconds"]),
        coming=tuple(fields["coming"]),
        leaving=_seconds(fields["leaving"]),
        served_seconds=_seconds(fields["served_seconds"]),
        waiting_since_seconds=_seconds(fields["waiting_since_seconds"]),
        brief=frozenset(fields["brief"]),
        went_first=frozenset(fields["went_first"]),
        had_turn=frozenset(fields["had_turn"]),
    )


def _seconds(values: dict[str, float]) -> dict[str, float]:
    return {str(key): float(value) for key, value in values.items()}
