"""Snapshots of a GPU's MPS daemon: about one a second for all jobs on the GPU, in a file that all of them read.

The job that gets a file lock takes the snapshot, in a thread of its own: a slow daemon answers after seconds, and must not
block an event loop. `clients` evaluates the snapshots.
"""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from pgpu.enforcement.mps import MpsControl
from pgpu.enforcement.mps.daemon import DaemonSnapshot, publish_snapshot, read_snapshot, take_snapshot
from pgpu.host.file_lock import try_lock
from pgpu.structs import Struct

_EVERY_SECONDS = 0.9
"""Less than a tick, so that each tick of one process alone finds it due."""

_STUCK_SECONDS = 30.0
"""If the last snapshot is older, the holder of the lock hangs: then the other jobs take snapshots without the lock."""


class Looks(Struct):
    """One job's part in the snapshots."""

    _thread: threading.Thread | None = None

    def last(self, control: MpsControl) -> DaemonSnapshot | None:
        """Return the last snapshot, and start a thread that takes a new one if it is old; never blocks."""
        seen = read_snapshot(control)
        age_seconds = _STUCK_SECONDS if seen is None else time.monotonic() - seen.began_seconds
        if age_seconds >= _EVERY_SECONDS and (self._thread is None or not self._thread.is_alive()):
            self._look(control, is_stuck=seen is not None and age_seconds >= _STUCK_SECONDS)
        return seen

    def _look(self, control: MpsControl, *, is_stuck: bool) -> None:
        duty = try_lock(_lock_of(control))
        if duty is None and not is_stuck:
            return
        self._thread = threading.Thread(target=_look, args=(control, duty), name="mps-look", daemon=True)
        self._thread.start()


def _look(control: MpsControl, duty: int | None) -> None:
    try:
        with suppress(OSError):
            publish_snapshot(control, take_snapshot(control))
    finally:
        if duty is not None:
            os.close(duty)


def _lock_of(control: MpsControl) -> Path:
    # Beside the generations' directories: opening a lock inside of one would create it again after its removal.
    return control.pipe_directory.parents[1] / "looking"
