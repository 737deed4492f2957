"""Takes one job's processes off their GPU and brings them back: the part that takes long, in a thread of its own.

A supervisor carries its job's streams meanwhile. Every step is one that can be taken again, so whoever comes after a crash
begins anew: who is away already stays away. A job of which one process cannot leave comes back whole.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pgpu.enforcement.checkpoints import CheckpointError, Checkpoints, NoRoomError, StillWorkingError
from pgpu.engine.parking.parking_state import Parking, Stage, Traveller, save_parking
from pgpu.host.process_identity import is_alive

_LOG = logging.getLogger(__name__)


TRY_SECONDS = 2.0
"""A lock holds up the job's other threads, so it is tried for so long at a time."""

TROUBLE_COUNT = 5
"""So often coming back must have failed, a second apart, before the job is said to be in trouble."""

PATIENCE_SECONDS = 60.0
"""Work that does not end in this time is not waited for: the job goes on."""


@dataclass(slots=True)
class Mover:
    """One job's way, in either direction."""

    checkpoints: Checkpoints
    path: Path
    """Where it is written down how far it is."""

    free_bytes: Callable[[], int]
    """What the GPU has free now; raises PgpuError."""

    when_done: Callable[[], None]
    """Called in the thread."""

    trouble: str | None = None
    """Why processes that should be back are not, once that has been so a few times; None where none is missing."""

    _thread: threading.Thread | None = field(default=None, repr=False)
    _failures: int = 0
    _said: str = ""

    @property
    def is_moving(self) -> bool:
        """Whether the last move has not ended."""
        return self._thread is not None and self._thread.is_alive()

    def begin_leaving(self, parking: Parking) -> None:
        """Take these travellers off the GPU; nothing else may be under way.

        Raises:
            OSError: It cannot be written down, so nobody leaves.
        """
        save_parking(self.path, parking)
        self._begin(lambda: self._leave(parking))

    def begin_coming_back(self, parking: Parking) -> None:
        """Bring these travellers back; nothing else may be under way."""
        self._begin(lambda: self._come_back(parking))

    def wait(self, seconds: float) -> None:
        """Wait for the end of the move, at most so long."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _begin(self, move: Callable[[], None]) -> None:
        def run() -> None:
            try:
                move()
            except OSError as exc:
                self._complain(f"{self.path} cannot be written: {exc.strerror}")
            self.when_done()

        self._thread = threading.Thread(target=run, name="parking", daemon=True)
        self._thread.start()

    def _leave(self, parking: Parking) -> None:
        until_seconds = time.monotonic() + PATIENCE_SECONDS
        try:
            for each in parking.travellers:
                self._take_away(each, until_seconds)
        except CheckpointError as exc:
            self._complain(str(exc))
            left = self._bring(parking.travellers)
            save_parking(self.path, replace(parking, stage=Stage.REFUSED, travellers=left, reason=str(exc)))

    def _take_away(self, traveller: Traveller, until_seconds: float) -> None:
        while is_alive(traveller.process):
            try:
                self.checkpoints.leave(traveller.process.pid, TRY_SECONDS)
            except StillWorkingError:
                if time.monotonic() >= until_seconds:
                    raise
            else:
                return

    def _come_back(self, parking: Parking) -> None:
        left = self._bring(parking.travellers)
        if left:
            save_parking(self.path, replace(parking, travellers=left))
        elif parking.stage is Stage.REFUSED:
            save_parking(self.path, replace(parking, travellers=()))
        else:
            self.path.unlink(missing_ok=True)

    def _bring(self, travellers: Sequence[Traveller]) -> tuple[Traveller, ...]:
        """Return those who are still away."""
        left: list[Traveller] = []
        why = None
        for each in travellers:
            try:
                self._bring_one(each)
            except CheckpointError as exc:
                self._complain(str(exc))
                why = str(exc)
                left.append(each)
        self._failures = self._failures + 1 if left else 0
        self.trouble = why if self._failures >= TROUBLE_COUNT else None
        return tuple(left)

    def _bring_one(self, traveller: Traveller) -> None:
        """There must be room before it is tried: NVIDIA's r580 never restores a process that found none once.

        Source: NVIDIA/cuda-checkpoint, issue 44.
        """
        if not is_alive(traveller.process):
            return
        if self.checkpoints.is_away(traveller.process.pid) and self.free_bytes() < traveller.held_bytes:
            raise NoRoomError(f"process {traveller.process.pid} cannot come back yet: others hold its place on the GPU")
        self.checkpoints.come_back(traveller.process.pid)

    def _complain(self, text: str) -> None:
        """Once for each reason: what fails is tried again every second."""
        if text != self._said:
            self._said = text
            _LOG.warning(text)
