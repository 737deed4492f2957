"""Records what the GPUs of one queue did, a row a minute for each GPU that a lease holds; see `ledger.gpu_history`.

The agent's main thread calls `tick` once a second. While a lease is held it reads the GPUs every ten seconds and writes the means when
the minute is over, or when the agent ends. Nothing is read or written while nothing runs, so the history has a gap there.
"""

import time
from collections.abc import Callable, Sequence

from pgpu.engine.context import EngineContext
from pgpu.ledger import GpuHistory, GpuMinute
from pgpu.ledger.gpu_history import MINUTE_SECONDS

READING_SECONDS = 10.0


class GpuRecorder:
    """The readings of the current minute."""

    def __init__(self, context: EngineContext, now_seconds: Callable[[], float] = time.time) -> None:
        self._context = context
        self._now_seconds = now_seconds
        self._history = GpuHistory(context.settings.state_directory)
        self._minute = 0
        self._readings: list[Sequence[GpuMinute]] = []
        self._read_at_seconds = 0.0

    def tick(self, *, is_used: bool) -> None:
        """Read the GPUs if that is due, and write the last minute once it is over.

        Args:
            is_used: Whether a job of the queue holds a lease.

        Raises:
            NodeError: A GPU or the ledger cannot be read.
        """
        now_seconds = self._now_seconds()
        minute = int(now_seconds // MINUTE_SECONDS)
        if minute != self._minute:
            self.flush()
            self._minute = minute
        # `abs`: the clock of the machine may be set back.
        if is_used and abs(now_seconds - self._read_at_seconds) >= READING_SECONDS:
            self._read_at_seconds = now_seconds
            self._readings.append(self._read())

    def flush(self) -> None:
        """Write the readings of a minute; a full disk drops them."""
        readings, self._readings = self._readings, []
        held = {row.gpu_uuid for reading in readings for row in reading if row.reserved_bytes}
        if held:
            self._history.add(self._minute, [_mean(uuid, readings) for uuid in sorted(held)])

    def _read(self) -> Sequence[GpuMinute]:
        context = self._context
        with context.ledger.view() as view:
            holding = context.queue_of(view.holding())
        snapshot = context.snapshot(holding)
        rooms = snapshot.rooms(holding, context.headroom)
        return [
            GpuMinute(
                room.gpu.uuid,
                room.granted_bytes,
                snapshot.used_bytes[room.gpu.uuid],
                context.gpus.utilisation_percent(room.gpu.uuid) if room.granted_bytes else None,
            )
            for room in rooms
        ]


def _mean(uuid: str, readings: Sequence[Sequence[GpuMinute]]) -> GpuMinute:
    rows = [row for reading in readings for row in reading if row.gpu_uuid == uuid]
    busy = [row.busy_percent for row in rows if row.busy_percent is not None]
    return GpuMinute(
        uuid,
        sum(row.reserved_bytes for row in rows) // len(rows),
        sum(row.used_bytes for row in rows) // len(rows),
        round(sum(busy) / len(busy)) if busy else None,
    )
