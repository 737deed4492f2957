"""The control daemon of one GPU: found, started, checked and ended by any process of pgpu, under one file lock.

Each daemon has a numbered directory, its generation, so that a job never connects to another daemon than the one that it
was started under. If that daemon dies, the job's programs run without MPS, which its watcher detects. Numbers are never
reused.

A snapshot of a daemon runs the control program several times and, if the daemon is slow, takes many seconds. One process
takes it and writes it beside the daemon's directory; the others read that file.
"""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from pathlib import Path

from pgpu.digests import sha256
from pgpu.enforcement.mps.control import MpsControl, ServerStatus
from pgpu.enforcement.mps.daemon_process import children, daemon_process, end
from pgpu.errors import EnforcementError
from pgpu.host.atomic_file import write_atomically
from pgpu.host.file_lock import exclusive_flock, open_lock_file
from pgpu.host.thread_turns import pause
from pgpu.structs import Struct, field, replace, to_builtins

QUIT_SECONDS = 2
"""Time for servers that still have clients to end, once no job should be left."""

_END_SECONDS = 3.0
"""Additional time for a daemon to exit after `quit`."""

_OTHERS_READ = 0o755


class Health(Enum):
    """State of a daemon."""

    ABSENT = auto()
    """None was started, or it was ended on purpose."""

    GONE = auto()
    """One was started, and its process has ended."""

    SILENT = auto()
    """Its process exists but does not respond: the machine is busy, or the daemon hangs."""

    FAULT = auto()
    """A client faulted, and the server waits until all affected clients are gone."""

    WELL = auto()


class Generation(Struct, frozen=True):
    """The record of one daemon."""

    number: int
    trust: str
    """Trust domain of its clients: jobs that may read each other's memory anyway."""

    is_over: bool = False
    """True if it was ended. Its number stays taken, since it may still be exiting and removes its sockets then."""


class GpuDaemon:
    """The daemon of one GPU. Methods that change its state must be called within `locked`."""

    def __init__(self, home: Path, program: Path, gpu_uuid: str, simulated_state_directory: Path | None) -> None:
        self._home = home
        self._program = program
        self._gpu_uuid = gpu_uuid
        self._simulated = simulated_state_directory

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Exclusive file lock for starting and ending the daemon, across processes.

        Raises:
            EnforcementError: Its directory cannot be created.
        """
        try:
            descriptor = open_lock_file(self._home / "lock", directory_mode=0o755)
        except OSError as exc:
            raise EnforcementError(f"{self._home} cannot be made: {exc.strerror}") from exc
        with contextlib.ExitStack() as stack:
            with pause():
                stack.enter_context(exclusive_flock(descriptor))
            yield

    def generation(self) -> Generation | None:
        """Return the current daemon's record, alive or not; None if there should be none."""
        last = self._last()
        return None if last is None or last.is_over else last

    def _last(self) -> Generation | None:
        try:
            return Generation(**json.loads(self._record.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as exc:
            raise EnforcementError(f"{self._record} is garbled", hint="remove it once no job runs under MPS") from exc

    def control(self, generation: Generation) -> MpsControl:
        """Return the client of one generation's daemon."""
        home = self._home / str(generation.number)
        return MpsControl(self._program, home / "pipe", home / "log", self._gpu_uuid, self._simulated)

    def health(self) -> Health:
        generation = self.generation()
        return Health.ABSENT if generation is None else health_of(self.control(generation))

    def start(self, trust: str) -> Generation:
        """Start a new generation and remove the previous one, which has no jobs left.

        Raises:
            EnforcementError: It does not start.
        """
        self._clear()
        generation = Generation(self._next_number(), trust)
        control = self.control(generation)
        try:
            # The parent directories stay closed to other users; a job gets these directories by bind mounts.
            control.pipe_directory.mkdir(parents=True)
            control.log_directory.mkdir()
            for directory in (control.pipe_directory, control.log_directory):
                directory.chmod(_OTHERS_READ)  # independent of the umask: clients and servers run as other users
            # Before the start: a crash in between leaves a record whose daemon is gone, never a daemon without a record.
            self._write(generation)
        except OSError as exc:
            raise EnforcementError(f"{control.pipe_directory} cannot be made: {exc.strerror}") from exc
        control.start()
        return generation

    def end(self) -> None:
        """End the daemon and mark its record as over; no effect where there is none."""
        self._clear()
        last = self._last()
        if last is not None and not last.is_over:
            self._write(replace(last, is_over=True))

    def enter(self, generation: Generation, job_id: str) -> None:
        """Record that a job is started under this daemon, for the watcher of the job.

        Raises:
            EnforcementError: It cannot be written.
        """
        self._mark(generation, "jobs", job_id)

    def control_of(self, job_id: str) -> MpsControl | None:
        """Return the client of the daemon under which a job was started; None if that was ended."""
        for path in self._home.glob(f"*/jobs/{job_id}"):
            return self.control(Generation(int(path.parts[-3]), ""))
        return None

    def remember_servers(self, generation: Generation, job_id: str) -> None:
        """Record the current servers at a job's start. Without it, a server that dies before the watcher starts would go unnoticed.

        Raises:
            EnforcementError: It cannot be written.
        """
        path = self._mark_path(generation, "jobs", job_id)
        try:
            write_atomically(path, json.dumps(children(self.control(generation).pipe_directory)).encode(), 0o600)
        except OSError as exc:
            raise EnforcementError(f"{path} cannot be written: {exc.strerror}") from exc

    def servers_at_start(self, job_id: str) -> set[int]:
        """Return the PIDs of the servers at a job's start; empty if they were not recorded."""
        for path in self._home.glob(f"*/jobs/{job_id}"):
            with contextlib.suppress(OSError, ValueError, TypeError):
                return {int(pid) for pid in json.loads(path.read_bytes())}
        return set()

    def is_proved(self, generation: Generation, way: str) -> bool:
        """True if programs of jobs with this kind of delivery were verified as clients of this daemon."""
        return self._mark_path(generation, "proved", _short(way)).exists()

    def remember_proof(self, generation: Generation, way: str) -> None:
        """Record a successful verification.

        Raises:
            EnforcementError: It cannot be written.
        """
        self._mark(generation, "proved", _short(way))

    def _mark_path(self, generation: Generation, kind: str, name: str) -> Path:
        return self._home / str(generation.number) / kind / name

    def _mark(self, generation: Generation, kind: str, name: str) -> None:
        path = self._mark_path(generation, kind, name)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            path.touch(mode=0o600)
        except OSError as exc:
            raise EnforcementError(f"{path} cannot be made: {exc.strerror}") from exc

    def server_pids(self) -> list[int]:
        """Return the current daemon's servers; their GPU memory belongs to jobs, not to foreign processes."""
        generation = self.generation()
        if generation is None:
            return []
        control = self.control(generation)
        return children(control.pipe_directory) or control.servers() or []

    @property
    def _record(self) -> Path:
        return self._home / "now"

    def _next_number(self) -> int:
        last = self._last()
        return 1 if last is None else last.number + 1

    def _write(self, generation: Generation) -> None:
        write_atomically(self._record, json.dumps(to_builtins(generation)).encode(), 0o600)

    def _clear(self) -> None:
        present = self.generation()
        if present is None:
            return
        control = self.control(present)
        # The pidfd is opened before `quit`, so that the wait and the kill cannot hit another process with the same PID.
        with daemon_process(control.pipe_directory) as process:
            if process is not None:
                is_quitting = control.quit(QUIT_SECONDS)
                end(process, QUIT_SECONDS + _END_SECONDS if is_quitting else 0.0)
        control.end_servers()  # left behind if the daemon was killed
        import shutil  # noqa: PLC0415 - most processes end no daemon

        shutil.rmtree(self._home / str(present.number), ignore_errors=True)


class MpsDaemons:
    """The daemons of all GPUs of one runtime directory."""

    def __init__(self, runtime_directory: Path, program: Path, simulated_state_directory: Path | None = None) -> None:
        """Start nothing.

        Args:
            runtime_directory: On a tmpfs; `mps/` is created in it.
            program: NVIDIA's control program, or the simulated one.
            simulated_state_directory: Of the simulated GPUs; None on real ones.
        """
        self._home = runtime_directory / "mps"
        self._program = program
        self._simulated = simulated_state_directory

    def has_any(self) -> bool:
        """Whether any GPU has a daemon, alive or not.

        Raises:
            EnforcementError: A record is garbled.
        """
        # Not by the GPUs: every command asks, and most need no driver.
        homes = list(self._home.iterdir()) if self._home.exists() else []
        return any(GpuDaemon(home, self._program, "", self._simulated).generation() is not None for home in homes)

    def of(self, gpu_uuid: str) -> GpuDaemon:
        """Return the daemon of one GPU, started or not."""
        return GpuDaemon(self._home / _short(gpu_uuid), self._program, gpu_uuid, self._simulated)


def _short(text: str) -> str:
    """Hash of a name: a socket's path is limited to 107 bytes."""
    return sha256(text.encode()).hexdigest()[:8]


def health_of(control: MpsControl) -> Health:
    servers = control.servers()
    if servers is None:
        return health_without_servers(control)
    is_faulted = any(control.status(pid) is ServerStatus.FAULT for pid in servers)
    return Health.FAULT if is_faulted else Health.WELL


def health_without_servers(control: MpsControl) -> Health:
    """Classify a daemon that does not respond."""
    return Health.SILENT if control.is_there() else Health.GONE


class DaemonSnapshot(Struct, frozen=True):
    """One snapshot of a daemon."""

    began_seconds: float
    """Start of the snapshot on the monotonic clock, which all processes of a machine share."""

    health: Health
    clients: Mapping[int, int] = field(default_factory=dict)
    """Server PID by client PID."""

    faulted: frozenset[int] = frozenset()
    """Servers that wait until all clients affected by a fault are gone."""


def take_snapshot(control: MpsControl) -> DaemonSnapshot:
    """Query a daemon; takes as long as the daemon needs.

    If any response is missing, the client list is empty: with a partial list, the other clients would count as foreign processes.
    """
    began_seconds = time.monotonic()
    servers = control.servers()
    listed = {server: control.clients(server) for server in servers or ()}
    if servers is None or None in listed.values():
        return DaemonSnapshot(began_seconds, health_without_servers(control))
    clients = {pid: server for server, pids in listed.items() for pid in pids or ()}
    faulted = frozenset(server for server in servers if control.status(server) is ServerStatus.FAULT)
    return DaemonSnapshot(began_seconds, Health.FAULT if faulted else Health.WELL, clients, faulted)


def read_snapshot(control: MpsControl) -> DaemonSnapshot | None:
    """Return the last published snapshot of any process; None if there is none."""
    try:
        began_seconds, health, clients, faulted = json.loads(_place(control).read_bytes())
        return DaemonSnapshot(
            float(began_seconds), Health[health], {int(k): int(v) for k, v in clients}, frozenset(faulted)
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None


def publish_snapshot(control: MpsControl, snapshot: DaemonSnapshot) -> None:
    """Publish a snapshot for the watchers of all jobs under this daemon.

    Raises:
        OSError: It cannot be written: the daemon's directory was removed.
    """
    clients = list(snapshot.clients.items())  # pairs: keys of JSON objects are text, and these are PIDs
    text = json.dumps([snapshot.began_seconds, snapshot.health.name, clients, sorted(snapshot.faulted)])
    write_atomically(_place(control), text.encode(), 0o600)


def _place(control: MpsControl) -> Path:
    return control.pipe_directory.parent / "seen"
