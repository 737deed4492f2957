"""Checks once a second that the programs of a job under MPS are clients of its GPU's daemon, and that the daemon works.

About one snapshot of the daemon a second serves all jobs on its GPU, in a file that all of them read. The job that gets a file
lock takes it, in a thread of its own: a slow daemon answers after seconds, and must not block an event loop.

A program can never use CUDA again after its server died, and a program that is no client uses the GPU without a limit. Either
stops the job, with a warning that names the reason; so does a daemon that died, and one that has not answered for a minute. A
daemon is not restarted here: the next job that joins starts it.
"""

import os
import threading
import time
from contextlib import suppress

from pgpu.enforcement.mps import Health, MpsControl, MpsDaemons
from pgpu.enforcement.mps.daemon import DaemonSnapshot, publish_snapshot, read_snapshot, take_snapshot
from pgpu.enforcement.mps.daemon_process import children, is_ending
from pgpu.gpu import GpuSource
from pgpu.host.file_lock import try_lock
from pgpu.model import Job, SharingMode
from pgpu.runtimes import RunningJob
from pgpu.structs import Struct, field

SILENT_SECONDS = 60.0
"""Time without an answer of the daemon after which its jobs are stopped; programs that start meanwhile block in CUDA."""

_EVERY_SECONDS = 0.9
"""Between two snapshots; less than a tick, so that each tick of one process alone finds it due."""

_STUCK_SECONDS = 30.0
"""If the last snapshot is older, the holder of the lock hangs: then the other jobs take snapshots without the lock."""


class Judging(Struct):
    """The state of one job's clients on a GPU, from one snapshot of the daemon to the next."""

    gpu_uuid: str
    _judged_seconds: float = 0.0
    _silent_since_seconds: float | None = None
    _were_clients: set[int] = field(default_factory=set)
    _strangers: set[int] = field(default_factory=set)
    """PIDs that were on the GPU and no clients in the last snapshot."""

    def judged(self, seen: DaemonSnapshot, own: set[int], now_seconds: float) -> str | None:
        """Return why the job must be stopped, in one line; None if nothing is wrong.

        Args:
            seen: The last snapshot of the daemon; one that was judged already is skipped.
            own: PIDs of the job's processes on the GPU now.
            now_seconds: On the clock of `seen`.
        """
        if seen.health is Health.GONE:
            return _daemon_died(self.gpu_uuid)
        if seen.began_seconds <= self._judged_seconds:
            return None  # Processes that came to the GPU since the snapshot began may be missing in it.
        self._judged_seconds = now_seconds
        if seen.health is Health.SILENT:
            if self._silent_since_seconds is None:
                self._silent_since_seconds = seen.began_seconds
            if seen.began_seconds - self._silent_since_seconds < SILENT_SECONDS:
                return None
            return f"the MPS control daemon of GPU {self.gpu_uuid} has not answered for {SILENT_SECONDS:g} s"
        self._silent_since_seconds = None
        return self._of_clients(seen, own)

    def _of_clients(self, seen: DaemonSnapshot, own: set[int]) -> str | None:
        known = own & seen.clients.keys()
        self._were_clients |= known
        strangers, self._strangers = self._strangers & (own - known), own - known
        if strangers & self._were_clients:
            return _server_died(self.gpu_uuid)
        if strangers:
            return f"process {min(strangers)} of it uses GPU {self.gpu_uuid} without MPS"
        if any(seen.clients[pid] in seen.faulted for pid in known):
            return _faulted(self.gpu_uuid)
        return None


def _daemon_died(gpu_uuid: str) -> str:
    return f"the MPS control daemon of GPU {gpu_uuid} died: programs that start now would run without it"


def _server_died(gpu_uuid: str) -> str:
    return f"the MPS server of GPU {gpu_uuid} died: CUDA calls of its programs fail"


def _faulted(gpu_uuid: str) -> str:
    return f"a client of the MPS server of GPU {gpu_uuid} faulted: CUDA calls of all its programs fail"


class Clients(Struct):
    """The MPS clients of one running job."""

    daemons: MpsDaemons
    gpus: GpuSource
    _thread: threading.Thread | None = None
    """Takes a snapshot."""

    _judging: Judging | None = None
    _servers: set[int] = field(default_factory=set)
    """PIDs of the daemon's servers that were found while the job ran."""

    def look(self, job: Job, running: RunningJob, now_seconds: float) -> str | None:
        """Return why the job must be stopped, in one line; None if nothing is wrong, or there is no snapshot yet.

        Raises:
            NodeError: The GPU cannot be read.
        """
        if job.lease is None or job.lease.sharing is not SharingMode.MPS:
            return None
        gpu_uuid = job.lease.slices[0].gpu_uuid
        if self._judging is None:
            self._judging = Judging(gpu_uuid)
        control = self.daemons.of(gpu_uuid).control_of(job.id)
        if control is not None:
            self._servers.update(children(control.pipe_directory))
        seen = DaemonSnapshot(now_seconds, Health.GONE) if control is None else self._last_snapshot(control)
        return None if seen is None else self._judging.judged(seen, self._on_gpu(gpu_uuid, running), now_seconds)

    def _last_snapshot(self, control: MpsControl) -> DaemonSnapshot | None:
        """Return the last snapshot, and start a thread that takes a new one if it is old; never blocks."""
        seen = read_snapshot(control)
        age_seconds = _STUCK_SECONDS if seen is None else time.monotonic() - seen.began_seconds
        if age_seconds >= _EVERY_SECONDS and (self._thread is None or not self._thread.is_alive()):
            # Beside the generations' directories: opening a lock inside of one would create it again after its removal.
            duty = try_lock(control.pipe_directory.parents[1] / "looking")
            if duty is not None or (seen is not None and age_seconds >= _STUCK_SECONDS):
                self._thread = threading.Thread(target=_look, args=(control, duty), name="mps-look", daemon=True)
                self._thread.start()
        return seen

    def loss(self, job: Job) -> str | None:
        """Return the failure of MPS under a job that ended with an error, in one line; None if daemon and servers work.

        The job's programs may fail before the next snapshot shows the reason. Reads /proc and the last snapshot only: a
        daemon that hangs cannot delay the caller.
        """
        if job.lease is None or job.lease.sharing is not SharingMode.MPS:
            return None
        gpu_uuid = job.lease.slices[0].gpu_uuid
        daemon = self.daemons.of(gpu_uuid)
        control = daemon.control_of(job.id)
        if control is None or not control.is_there():
            return _daemon_died(gpu_uuid)
        servers = self._servers | daemon.servers_at_start(job.id)
        if servers - {pid for pid in children(control.pipe_directory) if not is_ending(pid)}:
            return _server_died(gpu_uuid)
        seen = read_snapshot(control)
        return _faulted(gpu_uuid) if seen is not None and seen.faulted & servers else None

    def terminate(self, job: Job, running: RunningJob) -> None:
        """Have the server terminate a job's clients before a kill: a client that dies in a kernel may fault the others.

        Raises:
            NodeError: The GPU cannot be read.
        """
        if job.lease is None or job.lease.sharing is not SharingMode.MPS:
            return
        gpu_uuid = job.lease.slices[0].gpu_uuid
        control = self.daemons.of(gpu_uuid).control_of(job.id)
        seen = None if control is None else read_snapshot(control)
        if control is None or (seen is not None and seen.health in {Health.GONE, Health.SILENT}):
            return  # A daemon that does not answer would only delay the kill.
        own = self._on_gpu(gpu_uuid, running)
        for server in control.servers() or ():
            for pid in own.intersection(control.clients(server) or ()):
                control.terminate(server, pid)

    def _on_gpu(self, gpu_uuid: str, running: RunningJob) -> set[int]:
        return {process.pid for process in self.gpus.processes(gpu_uuid) if running.owns(process.pid)}


def _look(control: MpsControl, duty: int | None) -> None:
    try:
        with suppress(OSError):
            publish_snapshot(control, take_snapshot(control))
    finally:
        if duty is not None:
            os.close(duty)
