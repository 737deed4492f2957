"""Reports processes that hold GPU memory outside of every lease, and stops them where `on_outsider = stop`.

Agents call `Watchdog.tick` once a second, and every ten seconds while they stay for a server and no GPU is used; of one queue
the process that holds a file lock does the work. Memory of a job beyond its own slice is not reported here, but by the job's
thread (`supervisor.watch`). Processes that only draw are ignored: headroom is for displays. The same process reads the memory
outside of slices now and then, so that it is known to be stable when a job comes (`outsider_peaks`).
"""

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pgpu.engine.context import EngineContext
from pgpu.engine.settings import EngineSettings
from pgpu.host.file_lock import try_lock
from pgpu.host.process_identity import identify_running, open_pidfd
from pgpu.libraries import PROBE
from pgpu.model import GpuProcess, Job, Outsider, ProcessHolder
from pgpu.structs import JsonDecoder, Struct, encode_json
from pgpu.units import format_memory

if TYPE_CHECKING:
    from pgpu.runtimes.process_owners import ProcessOwners

_FIRST_PID_NAMESPACE = 4026531836
"""Inode of the machine's initial PID namespace. Source: PROC_PID_INIT_INO in linux/proc_ns.h."""

READING_SECONDS = 10.0
"""Longest time between two readings of the memory outside of slices, in rounds or for any other reason."""

_OUTSIDERS = JsonDecoder(list[Outsider])
_Key = tuple[str, ProcessHolder]


def find_outsiders(context: EngineContext, owners: "ProcessOwners") -> list[Outsider]:
    """Return the processes that hold memory of this engine's GPUs outside of every lease now.

    Raises:
        NodeError: A GPU or the ledger cannot be read.
    """
    # Processes before the ledger: a process that had a lease then is in the ledger now, or has ended.
    seen = [
        (process, holder)
        for gpu in context.gpus.gpus()
        for process in context.gpus.processes(gpu.uuid)
        if not process.only_draws and (holder := identify_running(process.pid)) is not None
    ]
    jobs: list[Job] = []
    if seen:
        with context.ledger.view() as view:
            jobs = [entry.job for entry in context.queue_of(view.holding()) if entry.job.request.gpu_count]
    return [
        Outsider(process.gpu_uuid, holder, process.used_bytes, *_read_program(process.pid))
        for process, holder in seen
        if not _is_own(context, process)
        and owners.owner(holder, jobs) is None
        # Again at the end: a PID that was reused meanwhile would blame another process.
        and identify_running(process.pid) == holder
    ]


def find_outsiders_once(context: EngineContext) -> Sequence[Outsider]:
    """Return the outsiders now, for a single reading; see `find_outsiders`."""
    from pgpu.runtimes.process_owners import ProcessOwners  # noqa: PLC0415 - `ps` reads the report only

    with contextlib.closing(ProcessOwners()) as owners:
        return find_outsiders(context, owners)


def read_reported_outsiders(context: EngineContext) -> list[Outsider]:
    """Return the outsiders that the active watchdog has reported, without reading a GPU; none if no watchdog is active.

    Raises:
        LedgerError: The ledger cannot be read.
    """
    # A free lock means that no watchdog is active, so the last report is outdated.
    if (lock := try_lock(_lock_path(context.settings))) is not None:
        os.close(lock)
        return []
    return _OUTSIDERS.decode(context.ledger.facts.get(_fact(context.settings)) or "[]")


class _Reported(Struct):
    """A reported outsider, and how far stopping it has come."""

    outsider: Outsider
    kill_at_seconds: float | None = None
    """Monotonic; None before SIGTERM was sent."""

    is_killed: bool = False


class Watchdog:
    """One process's part; its state lives from tick to tick."""

    def __init__(self, context: EngineContext) -> None:
        from pgpu.runtimes.process_owners import ProcessOwners  # noqa: PLC0415 - likewise

        self._context = context
        self._owners = ProcessOwners()
        self._lock: int | None = None
        self._seen: set[_Key] = set()
        """At the last tick."""

        self._reported: dict[_Key, _Reported] = {}
        self._has_written = False
        """Whether the ledger's fact is from this process and not from an earlier watchdog."""

    @property
    def has_found(self) -> bool:
        """Whether the last tick found an outsider."""
        return bool(self._seen or self._reported)

    def tick(self) -> None:
        """Find, report and stop outsiders, unless another process of this queue does; called about once a second.

        Raises:
            NodeError: A GPU or the ledger cannot be read.
        """
        settings = self._context.settings
        # One process of each queue holds the lock until it ends; the kernel frees it then, and another one takes it.
        if self._lock is None:
            self._lock = try_lock(_lock_path(settings))
        if self._lock is None:
            return
        # A tick of a resting agent comes each ten seconds, and may come a little early.
        context = self._context
        if context.headroom.yields and time.monotonic() - context.snapshot_at_seconds > READING_SECONDS - 0.5:
            context.snapshot()
        found = {(each.gpu_uuid, each.process): each for each in find_outsiders(self._context, self._owners)}
        before = set(self._reported)
        for key in before - set(found):
            self._note("outsider-gone", self._reported[key].outsider)
            del self._reported[key]
        for key, outsider in found.items():
            # Two readings in a row: one alone may meet a process of a job between two states, such as during exec.
            if key in self._seen and key not in self._reported:
                self._note("outsider", outsider)
                self._reported[key] = _Reported(outsider)
        self._seen = set(found)
        if before != set(self._reported) or not self._has_written:
            text = encode_json([each.outsider for each in self._reported.values()]).decode()
            # For reports of other processes, which find outsiders without a reading of their own.
            self._context.ledger.facts.put(_fact(settings), text)
            self._has_written = True
        if settings.on_outsider == "stop" and _sees_machine_pids(settings):
            for each in self._reported.values():
                self._stop_outsider(each)

    def close(self) -> None:
        """Release the lock, so that another process takes it."""
        self._owners.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _stop_outsider(self, found: _Reported) -> None:
        """Send SIGTERM, and SIGKILL after the grace period."""
        now_seconds = time.monotonic()
        if found.kill_at_seconds is None:
            found.kill_at_seconds = now_seconds + self._context.settings.stop_grace_seconds
            self._send(found.outsider, signal.SIGTERM)
        elif not found.is_killed and now_seconds >= found.kill_at_seconds:
            found.is_killed = True
            self._send(found.outsider, signal.SIGKILL)

    def _send(self, outsider: Outsider, number: signal.Signals) -> None:
        descriptor = open_pidfd(outsider.process)
        if descriptor is None:
            return
        try:
            signal.pidfd_send_signal(descriptor, number)
        except PermissionError:
            self._note("outsider-not-stopped", outsider)
        except ProcessLookupError:
            pass
        else:
            self._note("outsider-stopped" if number is signal.SIGTERM else "outsider-killed", outsider)
        finally:
            os.close(descriptor)

    def _note(self, kind: str, outsider: Outsider) -> None:
        self._context.ledger.events.note(kind, describe_outsider(outsider))


def describe_outsider(outsider: Outsider) -> str:
    """Describe an outsider: `process 4711 (python3) of user 1000 holds 2 GiB of GPU-… outside of every lease`."""
    amount = "memory" if outsider.used_bytes is None else format_memory(outsider.used_bytes)
    process = f"process {outsider.process.pid} ({outsider.program or '?'}) of user {outsider.uid}"
    return f"{process} holds {amount} of {outsider.gpu_uuid} outside of every lease"


def _fact(settings: EngineSettings) -> str:
    return f"outsiders/{settings.gpu_model or ''}"


def _lock_path(settings: EngineSettings) -> Path:
    return settings.runtime_directory / "watchdogs" / f"{settings.gpu_model or 'gpus'}.lock"


def _is_own(context: EngineContext, process: GpuProcess) -> bool:
    # An MPS server, or the probe that measures contexts and proves limits.
    if context.mps is not None and context.mps.is_server(process.gpu_uuid, process.pid):
        return True
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process.pid}/exe").readlink().name == PROBE
    return False


def _sees_machine_pids(settings: EngineSettings) -> bool:
    # On real GPUs the driver's PIDs are those of the machine's initial namespace.
    if settings.gpu_model is not None:
        return True
    with contextlib.suppress(OSError):
        return Path("/proc/self/ns/pid").stat().st_ino == _FIRST_PID_NAMESPACE
    return False


def _read_program(pid: int) -> tuple[str, int | None]:
    # Name and user; the process may end between the two readings.
    name, uid = "", None
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").rstrip("\n")
        name = "".join(character if character.isprintable() else "?" for character in text)
    with contextlib.suppress(OSError):
        uid = Path(f"/proc/{pid}").stat().st_uid
    return name, uid
