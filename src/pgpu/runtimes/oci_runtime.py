"""Jobs in containers that an engine created by `docker run --runtime=pgpu`.

Such a container exists and is held back by `pgpu-hold` before its job has a lease. Its bundle got the slice's mounts when it
was created; starting the job sets the limit, tests it in a probe container, and releases the container. The engine keeps the
container's streams, and creates, restarts and removes it; a container that ended in the meantime is not restarted.

The engine is called over its socket. If it does not respond, the exit code stays unknown, and signals are
sent to the process directly.
"""

import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

from pgpu.errors import CancelledError, EnforcementError, RuntimeUnavailableError
from pgpu.host import unix_http
from pgpu.host.atomic_file import write_atomically
from pgpu.host.process_identity import has_ended
from pgpu.libraries import BRINGER, library_path
from pgpu.model import Account, Delivery, Holder, Job, JobSpec, ProcessHolder
from pgpu.runtimes import RunningJob, Stdio
from pgpu.runtimes.cgroups import LimitCgroup, leaf_cgroup
from pgpu.runtimes.container_record import CONTAINER_VARIABLE, ENVIRONMENT, Container, Gate, container_of
from pgpu.runtimes.probe_container import MPS_IN_JOB, start_probe
from pgpu.runtimes.running_process import open_process

_PATIENCE_SECONDS = 3.0
_EXITED = re.compile(r"Exited \((\d+)\)")


class AwaitedExit:
    """A pending request for a container's exit code, which completes when the container ends."""

    def __init__(self, engine: str, container_id: str) -> None:
        """Send the request."""
        self.engine = engine
        self.container_id = container_id
        # Sent before the release: if the container had ended already, `next-exit` would wait for the exit after a restart.
        self._connection = _send(engine, "POST", f"/containers/{container_id}/wait?condition=next-exit")

    def code(self) -> int | None:
        """Return the exit code of the ended container; None if the engine does not return it."""
        answer = _receive(self._connection)
        self._connection = None
        if answer is not None:
            with contextlib.suppress(ValueError, KeyError):
                return int(json.loads(answer)["StatusCode"])
        # The request failed, such as in a restart of the engine. The list still has the code, as "Exited (1) 2 minutes ago".
        filters = "%7B%22id%22%3A%5B%22" + self.container_id + "%22%5D%7D"  # {"id":["…"]}
        answer = _receive(_send(self.engine, "GET", f"/containers/json?all=1&filters={filters}"))
        found = _EXITED.search(answer or "")
        return int(found[1]) if found else None

    def close(self) -> None:
        """Cancel the request."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def signal_container(engine: str, container_id: str, number: int) -> bool:
    """Send a signal through the engine, which then does not restart the container; return True if the engine accepted it."""
    return _receive(_send(engine, "POST", f"/containers/{container_id}/kill?signal={number}")) is not None


def _send(engine: str, method: str, path: str) -> socket.socket | None:
    with contextlib.suppress(OSError, ValueError):
        return unix_http.send(engine, method, path, timeout_seconds=_PATIENCE_SECONDS)
    return None


def _receive(connection: socket.socket | None) -> str | None:
    """Return the body of a successful response; None for any other."""
    if connection is None:
        return None
    with contextlib.suppress(OSError, ValueError):
        response = unix_http.receive(connection)
        return None if response.is_error else response.body.decode("utf-8", "replace")
    return None


_KILL_DEADLINE_SECONDS = 10.0
_SIGNAL_EXIT_BASE = 128

_GET_INFO = 0xC040FF0B
_INFO = struct.Struct("=QQ11Ii")
_INFO_EXIT = 1 << 3
"""Source: <linux/pidfd.h>: PIDFD_GET_INFO returns the exit status since Linux 6.15."""


class OciJob:
    """The `RunningJob` of a container in its slice."""

    def __init__(self, holder: ProcessHolder, pidfd: int, awaited: AwaitedExit) -> None:
        """Attach to a container.

        Args:
            holder: Its first process.
            pidfd: Of that process; closed by `close`.
            awaited: The pending request for its exit code.
        """
        self._holder = holder
        self._pidfd = pidfd
        self._awaited = awaited
        self._namespace = _pid_namespace(holder.pid)
        self._exit_code: int | None = None

    @property
    def holder(self) -> ProcessHolder:
        return self._holder

    def fileno(self) -> int:
        """Return the pidfd: it polls readable once the first process, and so the container, has ended."""
        return self._pidfd

    def exit_code(self) -> int | None:
        """Return the container's exit code after its end; None while it runs, or if it is unknown."""
        if self._exit_code is None and not self.is_alive():
            # The kernel's record first: it needs no engine, and remains after the container's shim has reaped the process.
            self._exit_code = _code_of_kernel(self._pidfd)
            if self._exit_code is None:
                self._exit_code = self._awaited.code()
        return self._exit_code

    def is_alive(self) -> bool:
        """True while the first process runs."""
        return not has_ended(self._pidfd)

    def owns(self, pid: int) -> bool:
        """True if a process of the host runs in this container, started by it or by `docker exec`."""
        namespace = _pid_namespace(pid)
        if namespace is not None and namespace == self._namespace:
            return True
        with contextlib.suppress(OSError):
            return self._awaited.container_id in Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii")
        return False

    def signal(self, number: int) -> None:
        """Send a signal to the first process; no effect if it has ended."""
        if self.is_alive() and not signal_container(self._awaited.engine, self._awaited.container_id, number):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """End the container.

        Raises:
            RuntimeUnavailableError: Its first process is still there after 10 s.
        """
        self.signal(signal.SIGKILL)
        if not has_ended(self._pidfd, _KILL_DEADLINE_SECONDS):
            raise RuntimeUnavailableError(f"the container {self._awaited.container_id[:12]} does not end")

    def resize_terminal(self, size: os.terminal_size) -> None:
        """No effect: its terminal is the engine's."""

    def close(self) -> None:
        """Release the descriptors; a running container continues."""
        self._awaited.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def _pid_namespace(pid: int) -> str | None:
    """Return a process's PID namespace; None for this process's own, which all processes of the host share."""
    try:
        found = str(Path(f"/proc/{pid}/ns/pid").readlink())
        return None if found == str(Path("/proc/self/ns/pid").readlink()) else found
    except OSError:
        return None


def _code_of_kernel(pidfd: int) -> int | None:
    """Return the exit code that the kernel keeps for a pidfd; None if it keeps none."""
    buffer = bytearray(_INFO.pack(_INFO_EXIT, 0, *([0] * 11), 0))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, buffer)
    except OSError:
        return None
    fields = _INFO.unpack(buffer)
    if not fields[0] & _INFO_EXIT:
        return None
    status = fields[-1]
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else _SIGNAL_EXIT_BASE + os.WTERMSIG(status)


class OciRuntime:
    """Runs jobs in containers that an OCI runtime created."""

    def __init__(self, *, limit_cgroup: LimitCgroup | None = None) -> None:
        """Create the runtime.

        Args:
            limit_cgroup: Sets a driver's limit on a container's control group; None if no enforcer needs it.
        """
        self._limit_cgroup = limit_cgroup

    @property
    def name(self) -> str:
        return "oci"

    def check(self, spec: JobSpec, account: Account | None = None) -> None:  # noqa: ARG002 - the engine chose the user
        """Reject a job without a container.

        Raises:
            RuntimeUnavailableError: There is no record of its container.
        """
        _container(spec)

    def is_advisory(self, spec: JobSpec) -> bool:  # noqa: ARG002 - the protocol's parameter
        """False: the slice is mounted into the container."""
        return False

    def image_id(self, spec: JobSpec) -> str:
        """Return the image's ID, or the container's if the image's is unknown."""
        container = _container(spec)
        return container.image_id or container.container_id

    def can_load_driver(self, spec: JobSpec) -> bool:
        """True if the container has glibc: there is no NVIDIA driver for musl, and a static program loads none."""
        return _container(spec).glibc

    def start(
        self,
        job: Job,
        delivery: Delivery,
        stdio: Stdio,
        announce: Callable[[Holder], None],
        account: Account | None = None,  # noqa: ARG002 - the engine chose the user
    ) -> RunningJob:
        """Release the held container; its limit is in its slice already."""
        container = _container(job.spec)
        if delivery.slice_directory.parent != container.home:
            return start_probe(container, job, delivery, stdio)
        holder = container.first_process()
        if holder is None:
            raise CancelledError("its container ended before its memory was granted")
        running = _open_job(container, holder)
        if running is None:
            raise CancelledError("its container ended before its memory was granted")
        try:
            # The program is held back meanwhile: limit, pipes and environment are in place at its first instruction.
            self._apply_cgroup_limits(holder, delivery)
            _bring_mps(running, delivery)
            # The environment is written before the holder is announced: an adopter then only has to release the container.
            settings = b"".join(f"{name}={value}\0".encode() for name, value in delivery.environment)
            write_atomically(container.gate.with_name(ENVIRONMENT), settings, 0o444)
            # Announced before the release: after a crash in between, `adopt` finds the holder and releases it.
            announce(holder)
            name = container.name or container.container_id[:12]
            os.write(stdio.stderr, f"pgpu: the output of this job is its container's: docker logs {name}\n".encode())
            _release(container)
        except BaseException:  # includes KeyboardInterrupt; `running` is not returned, so it is closed here
            running.close()
            raise
        return running

    def adopt(self, job: Job, stdio: Stdio) -> OciJob | None:  # noqa: ARG002 - its streams are the engine's
        """Attach to a container that another agent released, or was about to release."""
        if not isinstance(job.holder, ProcessHolder):
            return None
        container = _container(job.spec)
        running = _open_job(container, job.holder)
        # Released again, since the other agent may have died before its release; a second `+` has no effect.
        if running is not None:
            _release(container)
        return running

    def _apply_cgroup_limits(self, holder: ProcessHolder, delivery: Delivery) -> None:
        if not delivery.cgroup_limits:
            return
        if self._limit_cgroup is None:
            raise EnforcementError("this lease needs the driver's limit, and nothing here can set it")
        self._limit_cgroup(leaf_cgroup(holder.pid), delivery)


def _container(spec: JobSpec) -> Container:
    home = dict(spec.environment).get(CONTAINER_VARIABLE)
    if home is None:
        raise RuntimeUnavailableError("such a job is made by `docker run --runtime=pgpu` only")
    return container_of(Path(home))


def _open_job(container: Container, holder: ProcessHolder) -> OciJob | None:
    pidfd = open_process(holder)
    if pidfd is None:
        return None
    return OciJob(holder, pidfd, AwaitedExit(container.engine, container.container_id))


def _bring_mps(running: OciJob, delivery: Delivery) -> None:
    """Mount the MPS pipe directory into the container; at its creation the daemon was not known yet."""
    if delivery.mps_pipe_directory is None:
        return
    pidfd = running.fileno()  # a pidfd, since the PID may be reused by another container
    words = (library_path(BRINGER), delivery.mps_pipe_directory, str(pidfd), MPS_IN_JOB)
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False, pass_fds=(pidfd,))
    if done.returncode != 0:
        why = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
        raise EnforcementError(f"the pipes of MPS cannot be brought into the container: {why}")


def _release(container: Container) -> None:
    with contextlib.closing(Gate(container.gate)) as gate:
        gate.write("+")
