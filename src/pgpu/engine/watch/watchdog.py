"""Looks, once a second, for processes that hold memory of a GPU outside of every lease, and does what the operator set.

Supervisors, keepers and servers all offer to look; of one queue exactly one does, whoever holds its lock. What a job holds
past its own slice its supervisor sees, who alone tells drift from an allocation under way; both are told as events of the
ledger. It refuses to judge what only draws: displays take what headroom is for.
"""

import contextlib
import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pgpu.engine.engine import Engine
from pgpu.host.file_lock import try_lock
from pgpu.host.process_identity import identify_running, open_pidfd
from pgpu.libraries import PROBE
from pgpu.model import GpuProcess, Outsider, ProcessHolder
from pgpu.runtimes.belonging import Belonging
from pgpu.units import format_memory

_FIRST_PID_NAMESPACE = 4026531836
"""Inode of the machine's own. Source: PROC_PID_INIT_INO in linux/proc_ns.h."""

_Key = tuple[str, ProcessHolder]


def find_outsiders(engine: Engine, belonging: Belonging) -> list[Outsider]:
    """Return who holds memory of this engine's GPUs outside of every lease now.

    Processes are read before the ledger: whoever had a lease then has it still, or is gone.

    Raises:
        NodeError: A GPU or the ledger cannot be read.
    """
    seen = [
        (told, holder)
        for gpu in engine.gpus.gpus()
        for told in engine.gpus.processes(gpu.uuid)
        if not told.only_draws and (holder := identify_running(told.pid)) is not None
    ]
    with engine.ledger.view() as view:
        jobs = [entry.job for entry in engine.queue_of(view.holding()) if entry.job.request.gpu_count]
    return [
        Outsider(told.gpu_uuid, holder, told.used_bytes, _program(told.pid), _uid(told.pid))
        for told, holder in seen
        if not _is_ours(engine, told) and belonging.owner(holder, jobs) is None and identify_running(told.pid) == holder
    ]


class Watchdog:
    """What one process remembers from look to look."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._belonging = Belonging()
        self._lock: int | None = None
        self._seen: set[_Key] = set()
        """In the last look."""

        self._reported: dict[_Key, _Reported] = {}
        self._has_told = False
        """Whether the ledger knows what it reported, and not what somebody before it did."""

    def tick(self) -> None:
        """Look, if nobody else of this queue does; called about once a second.

        Raises:
            NodeError: A GPU or the ledger cannot be read.
        """
        if not self._is_on_duty():
            return
        found = {(each.gpu_uuid, each.process): each for each in find_outsiders(self._engine, self._belonging)}
        before = set(self._reported)
        for key in before - set(found):
            self._say("outsider-gone", self._reported[key].outsider)
            del self._reported[key]
        for key, outsider in found.items():
            # One look alone may see a process of a job between two moments of its life.
            if key in self._seen and key not in self._reported:
                self._say("outsider", outsider)
                self._reported[key] = _Reported(outsider)
        self._seen = set(found)
        if before != set(self._reported) or not self._has_told:
            _tell(self._engine, [each.outsider for each in self._reported.values()])
            self._has_told = True
        if self._engine.settings.on_outsider == "stop":
            for each in self._reported.values():
                self._stop(each)

    def close(self) -> None:
        """Leave the duty to somebody else."""
        self._belonging.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _is_on_duty(self) -> bool:
        if self._lock is None:
            self._lock = try_lock(_lock_path(self._engine))
        return self._lock is not None

    def _stop(self, found: "_Reported") -> None:
        """Ask it to end, and after the grace end it."""
        if not _pids_are_the_machines(self._engine):
            return
        now_seconds = time.monotonic()
        if found.kill_at_seconds is None:
            found.kill_at_seconds = now_seconds + self._engine.settings.stop_grace_seconds
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
            self._say("outsider-not-stopped", outsider)
        except ProcessLookupError:
            pass
        else:
            self._say("outsider-stopped" if number is signal.SIGTERM else "outsider-killed", outsider)
        finally:
            os.close(descriptor)

    def _say(self, kind: str, outsider: Outsider) -> None:
        self._engine.ledger.events.note(kind, describe_outsider(outsider))


def describe_outsider(outsider: Outsider) -> str:
    """Say who holds what: `process 4711 (python3) of user 1000 holds 2 GiB of GPU-… outside of every lease`."""
    amount = "memory" if outsider.used_bytes is None else format_memory(outsider.used_bytes)
    who = f"process {outsider.process.pid} ({outsider.program or '?'}) of user {outsider.uid}"
    return f"{who} holds {amount} of {outsider.gpu_uuid} outside of every lease"


@dataclass(slots=True)
class _Reported:
    """An outsider that was told of, and how far its end has come."""

    outsider: Outsider
    kill_at_seconds: float | None = None
    """On the monotonic clock; None until it was asked to end."""

    is_killed: bool = False


def find_outsiders_once(engine: Engine) -> Sequence[Outsider]:
    """Return who holds memory outside of every lease now, for whoever looks but once; see `outsiders`."""
    belonging = Belonging()
    try:
        return find_outsiders(engine, belonging)
    finally:
        belonging.close()


def read_reported_outsiders(engine: Engine) -> list[Outsider]:
    """Return whom the watchdog on duty has told of, without asking any GPU; nobody, where none is on duty.

    Raises:
        LedgerError: The ledger cannot be read.
    """
    if (lock := try_lock(_lock_path(engine))) is not None:
        os.close(lock)
        return []
    text = engine.ledger.facts.get(_fact(engine))
    return [
        Outsider(**{**fields, "process": ProcessHolder(**fields["process"])}) for fields in json.loads(text or "[]")
    ]


def _tell(engine: Engine, found: Sequence[Outsider]) -> None:
    engine.ledger.facts.put(_fact(engine), json.dumps([asdict(outsider) for outsider in found]))


def _fact(engine: Engine) -> str:
    return f"outsiders/{engine.settings.gpu_model or ''}"


def _lock_path(engine: Engine) -> Path:
    return engine.settings.runtime_directory / "watchdogs" / f"{engine.settings.gpu_model or 'gpus'}.lock"


def _is_our_probe(pid: int) -> bool:
    """Whether this is the small program that measures contexts and proves limits, for moments and outside of every lease."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/exe").readlink().name == PROBE
    return False


def _is_ours(engine: Engine, told: GpuProcess) -> bool:
    """Whether it is pgpu's own work: the probe, or a server that jobs under MPS share."""
    is_server = engine.mps is not None and engine.mps.is_server(told.gpu_uuid, told.pid)
    return is_server or _is_our_probe(told.pid)


def _pids_are_the_machines(engine: Engine) -> bool:
    """Whether the driver's PIDs are ours: on real GPUs it knows those of the machine's own namespace alone."""
    if engine.settings.gpu_model is not None:
        return True
    with contextlib.suppress(OSError):
        return Path("/proc/self/ns/pid").stat().st_ino == _FIRST_PID_NAMESPACE
    return False


def _program(pid: int) -> str:
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").rstrip("\n")
        return "".join(character if character.isprintable() else "?" for character in text)
    return ""


def _uid(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}").stat().st_uid
    return None
