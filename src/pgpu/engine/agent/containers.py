"""Finds the containers of `docker run --runtime=pgpu` that need a thread of the agent, by the records in their slices.

`create` writes a container's record before it calls the agent. So an agent that takes the place of a killed one finds every
container: one whose request is not in the ledger yet, one that waits, and one that runs.
"""

import threading
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from pgpu.enforcement.slice_files import SliceFiles
from pgpu.engine.engine import Engine
from pgpu.engine.leases.recovery import is_supervised
from pgpu.errors import RuntimeUnavailableError
from pgpu.host.process_identity import myself
from pgpu.ledger import Entry
from pgpu.runtimes.container_record import RECORD, Container, container_of

ORPHAN_SECONDS = 60.0
"""A container that is older and has no first process has ended."""

TURN_SECONDS = 5.0
"""How long a container's request waits for those of containers that were created before."""


class SubmissionTurn:
    """Keeps the order of containers whose threads start together: a context in which one of them submits its request."""

    def __init__(self, before: threading.Event | None) -> None:
        """Follow another turn.

        Args:
            before: The `over` of that turn; None for the first one.
        """
        self.over = threading.Event()
        self._before = before

    def __enter__(self) -> None:
        if self._before is not None:
            # Not for ever: the submission before may be blocked by a driver.
            self._before.wait(TURN_SECONDS)

    def __exit__(self, *_: object) -> None:
        self._before = None
        self.over.set()


def container_home(engine: Engine, job_id: str) -> Path | None:
    """Return the slice's directory of a container that was created for this job; None for any other job."""
    home = engine.settings.runtime_directory / "slices" / job_id
    return home if (home / RECORD).exists() else None


def find_unattended(engine: Engine, attended: Collection[str]) -> list[str]:
    """Return the slices whose containers need a thread, in the order of their creation.

    The files of ended containers that have no live job are removed.

    Args:
        engine: Of the agent's queue.
        attended: Ids of the slices that have a thread.

    Raises:
        LedgerError: The ledger cannot be read.
    """
    found: list[tuple[int, str]] = []
    for record in (engine.settings.runtime_directory / "slices").glob(f"*/{RECORD}"):
        if record.parent.name in attended:
            continue
        with suppress(RuntimeUnavailableError, OSError):  # it was removed just now
            container = container_of(record.parent)
            entry = next(iter(engine.ledger.entries_of([record.parent.name])), None)
            if _needs_thread(engine, container, entry):
                found.append((record.stat().st_mtime_ns, record.parent.name))
            elif _is_orphan(container, entry, record):
                SliceFiles(record.parent).remove()
    return [job_id for _, job_id in sorted(found)]


def is_left(entry: Entry) -> bool:
    """Whether no other process supervises a job."""
    return entry.supervisor == myself() or not is_supervised(entry)


def _needs_thread(engine: Engine, container: Container, entry: Entry | None) -> bool:
    model = engine.settings.gpu_model
    if entry is None:
        # A process of the release before this one submits the request of a container without settings in its record.
        return bool(container.config) and container.gpu_model == model and container.exists()
    if entry.job.gpu_model != model or not is_left(entry):
        return False
    # The container of a job that ended before its start is still held: it must be ended.
    return entry.is_live or (entry.job.holder is None and container.exists())


def _is_orphan(container: Container, entry: Entry | None, record: Path) -> bool:
    is_old = time.time() - record.stat().st_mtime > ORPHAN_SECONDS
    return is_old and (entry is None or not entry.is_live) and container.first_process() is None
