"""A started container as a running job: its end, its signals, its streams.

The engine may disconnect and come back while the container runs or ends. The job counts as ended only when the engine
reports it, or when the engine stays away and the container's first process is gone.
"""

import contextlib
import os
import select
import threading
from pathlib import Path

from pgpu.host.process_identity import identify_unreaped
from pgpu.model import ContainerHolder
from pgpu.runtimes.docker.engine import Engine, EngineGoneError
from pgpu.runtimes.docker.streams import AttachedStreams

_RETRY_SECONDS = 1.0
_ENGINE_AWAY_SECONDS = 60.0
"""Time to wait for a returning engine and its exit code, after the container's first process is gone."""


class DockerJob:
    """One container with the thread that waits for its end."""

    def __init__(
        self,
        engine: Engine,
        holder: ContainerHolder,
        main_pid: int | None,
        streams: AttachedStreams | None,
        *,
        removes_container: bool,
    ) -> None:
        """Start the waiting thread.

        Args:
            engine: A connection; owned by this job from now on.
            holder: The container.
            main_pid: Host PID of its first process; None if it ended or is on another machine.
            streams: The started transfer of its streams; None if there are none.
            removes_container: True if `close` removes the container once it ended.
        """
        self._engine = engine
        self._holder = holder
        self._main = identify_unreaped(main_pid) if main_pid else None
        self._namespace = _pid_namespace(main_pid) if main_pid else None
        self._streams = streams
        self._removes_container = removes_container
        self._exit_code: int | None = None
        self._was_killed = False
        self._ended = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closing = threading.Event()
        self._settling = threading.Lock()
        threading.Thread(target=self._wait_for_end, name="pgpu-container-wait", daemon=True).start()

    @property
    def holder(self) -> ContainerHolder:
        return self._holder

    def fileno(self) -> int:
        """Return a descriptor that polls readable once the container has ended and its last byte was transferred."""
        return self._ended

    def exit_code(self) -> int | None:
        """Return the container's exit code after its end; None while it runs, or if the engine has no record of it."""
        return self._exit_code

    def is_alive(self) -> bool:
        """True until the waiting thread has seen the end."""
        poll = select.poll()
        poll.register(self._ended, select.POLLIN)
        return not poll.poll(0)

    def owns(self, pid: int) -> bool:
        """True if a process of the host runs in this container, started by it or by `docker exec`."""
        namespace = _pid_namespace(pid)
        if namespace is not None and namespace == self._namespace:
            return True
        with contextlib.suppress(OSError):
            return self._holder.container_id in Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii")
        return False

    def signal(self, number: int) -> None:
        """Send a signal to the container's first process; no effect if it has ended."""
        self._engine.signal(self._holder.container_id, number)

    def kill(self) -> None:
        """End all processes of the container, also of a paused one; no effect if it has ended."""
        self._engine.kill(self._holder.container_id)
        self._was_killed = True

    def resize_terminal(self, size: os.terminal_size) -> None:
        """Set the terminal size in characters; no effect if the container has ended."""
        self._engine.resize(self._holder.container_id, size)

    def close(self) -> None:
        """Release all resources; remove the container if it ended and its job requested that. Idempotent."""
        if self._closing.is_set():
            return
        is_over = self._was_killed or not self.is_alive()
        # Under the lock: the waiting thread must not write to the eventfd after it is closed below.
        with self._settling:
            self._closing.set()
        if self._streams is not None:
            self._streams.close()
        if is_over and self._removes_container:
            self._engine.remove(self._holder.container_id)
        self._engine.close()
        os.close(self._ended)

    def _wait_for_end(self) -> None:
        exit_code = self._await_exit_code()
        if self._streams is not None:
            self._streams.wait_until_drained()
        with self._settling:
            if not self._closing.is_set():
                self._exit_code = exit_code
                os.eventfd_write(self._ended, 1)

    def _await_exit_code(self) -> int | None:
        away_seconds = 0.0
        # `wait` fails while the engine restarts. It is retried as long as the first process lives, and for a minute afterwards.
        while not self._closing.is_set() and away_seconds < _ENGINE_AWAY_SECONDS:
            try:
                return self._engine.wait(self._holder.container_id)
            except EngineGoneError:
                self._closing.wait(_RETRY_SECONDS)
                away_seconds = 0.0 if self._has_main_process() else away_seconds + _RETRY_SECONDS
        return None

    def _has_main_process(self) -> bool:
        return self._main is not None and identify_unreaped(self._main.pid) == self._main


def _pid_namespace(pid: int) -> str | None:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return None
