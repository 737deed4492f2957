"""The runtime of slices that an orchestrator claims for its own containers; it starts no program.

The settings for the containers are written to a file beside the slice, which the orchestrator's node agent reads. Only the
commands of self-tests run here, as processes with their own mount namespace.
"""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pgpu.errors import EnforcementError, RequestError
from pgpu.host.atomic_file import write_atomically
from pgpu.model import Account, ClaimHolder, Delivery, Holder, Job, JobSpec
from pgpu.runtimes import RunningJob, Runtime, Stdio
from pgpu.structs import to_builtins

CLAIM_VARIABLE = "PGPU_CLAIM"
"""Environment variable in the job's spec: the uid of its claim."""

_IN_CONTAINER = ".pgpu"
_DELIVERY = "delivery.json"


class Viewers:
    """The processes that see a slice at the containers' path `/.pgpu`."""

    def __init__(self, slice_directory: Path) -> None:
        self._slice_directory = slice_directory

    def owns(self, pid: int) -> bool:
        """True if a process of this machine has the slice at `/.pgpu`."""
        try:
            # /proc/PID/root leads into the process's mount namespace; the same device and inode mean the same directory,
            # whatever its path here.
            return (Path(f"/proc/{pid}/root") / _IN_CONTAINER).samefile(self._slice_directory)
        except OSError:
            return False

    def members(self) -> Iterator[int]:
        """Yield the PIDs of all of them that this process may inspect."""
        # The kernel keeps no list of the processes that see a directory, so all are checked.
        yield from (int(name) for name in os.listdir("/proc") if name.isdecimal() and self.owns(int(name)))  # noqa: PTH208 - names, not paths

    def kill(self) -> None:
        """Kill all of them. Each PID is checked again after its pidfd is open, so that a reused PID is not killed."""
        for pid in self.members():
            with suppress(ProcessLookupError):
                pidfd = os.pidfd_open(pid)
                try:
                    if self.owns(pid):
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                finally:
                    os.close(pidfd)

    def close(self) -> None:
        """No effect: no descriptor is held."""


class ClaimRuntime:
    """Runs jobs that consist of their slices only."""

    def __init__(self, processes: Callable[[], Runtime]) -> None:
        self._processes = processes

    @property
    def name(self) -> str:
        return "claim"

    def check(self, spec: JobSpec, account: Account | None = None) -> None:  # noqa: ARG002 - the protocol's parameter
        """Reject a job without a claim.

        Raises:
            RequestError: Its spec has no claim uid.
        """
        claim_uid(spec)

    def is_advisory(self, spec: JobSpec) -> bool:  # noqa: ARG002 - the protocol's parameter
        """False: the slice is mounted into the containers."""
        return False

    def image_id(self, spec: JobSpec) -> str:  # noqa: ARG002 - the protocol's parameter
        """Empty: containers of any image may use the slice."""
        return ""

    def can_load_driver(self, spec: JobSpec) -> bool:  # noqa: ARG002 - the protocol's parameter
        """True: the limit is tested with pgpu's own probe."""
        return True

    def start(
        self,
        job: Job,
        delivery: Delivery,
        stdio: Stdio,
        announce: Callable[[Holder], None],
        account: Account | None = None,
    ) -> RunningJob:
        """Write the settings for the containers, and hold the slice from now on."""
        if job.spec.command:
            return self._processes().start(job, delivery, stdio, announce, account)
        holder = ClaimHolder(claim_uid(job.spec), str(delivery.slice_directory))
        # Announced first: after a crash in between, the ledger has a holder without a delivery file, which `adopt` rejects.
        announce(holder)
        path = _path(delivery.slice_directory)
        try:
            write_atomically(path, json.dumps(to_builtins(delivery, enc_hook=str)).encode(), 0o644)
        except OSError as exc:
            raise EnforcementError(f"{path} cannot be written: {exc.strerror}") from exc
        return ClaimJob(holder)

    def adopt(self, job: Job, stdio: Stdio) -> RunningJob | None:  # noqa: ARG002 - it has no streams
        """Adopt a slice that still exists; after a reboot there is none, since it was on a tmpfs."""
        if not isinstance(job.holder, ClaimHolder) or not _path(Path(job.holder.slice_directory)).exists():
            return None
        return ClaimJob(job.holder)


class ClaimJob:
    """The `RunningJob` of a slice: it runs until `kill`."""

    def __init__(self, holder: ClaimHolder) -> None:
        self._holder = holder
        # Written once and never read, so that it stays readable for every poll.
        self._end = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_over = False

    @property
    def holder(self) -> ClaimHolder:
        return self._holder

    def fileno(self) -> int:
        """Return an eventfd that is readable after `kill`."""
        return self._end

    def exit_code(self) -> int | None:
        """Return 0 after `kill`, None before."""
        return 0 if self._is_over else None

    def is_alive(self) -> bool:
        """True until `kill`."""
        return not self._is_over

    def owns(self, pid: int) -> bool:
        """True if a process is in one of the claim's containers."""
        return self._viewers().owns(pid)

    def signal(self, number: int) -> None:
        """No effect: the orchestrator stops its containers."""

    def kill(self) -> None:
        """End the job, and kill the processes that still use the slice, so that its memory is free afterwards."""
        self._viewers().kill()
        # Set before the eventfd: a thread that it wakes must find the exit code.
        self._is_over = True
        os.eventfd_write(self._end, 1)

    def resize_terminal(self, size: os.terminal_size) -> None:
        """No effect: it has no terminal."""

    def close(self) -> None:
        os.close(self._end)

    def _viewers(self) -> Viewers:
        return Viewers(Path(self._holder.slice_directory))


def claim_uid(spec: JobSpec) -> str:
    """Return the uid of the job's claim.

    Raises:
        RequestError: The spec has none.
    """
    found = dict(spec.environment).get(CLAIM_VARIABLE)
    if found is None:
        raise RequestError("a job without a command is made for a claim only")
    return found


def read_delivery(slice_directory: Path) -> Delivery | None:
    """Read the settings for the containers of a slice; None if they do not exist (yet)."""
    try:
        fields: dict[str, Any] = json.loads(_path(slice_directory).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    paths = {name: None if fields[name] is None else Path(fields[name]) for name in _PATHS}
    return Delivery(
        **paths,  # type: ignore[arg-type] # fields that must not be None were not None when written
        gpu_uuids=tuple(fields["gpu_uuids"]),
        driver_files=tuple((name, Path(path)) for name, path in fields["driver_files"]),
        environment=tuple((name, value) for name, value in fields["environment"]),
        cgroup_limits=tuple((uuid, limit) for uuid, limit in fields["cgroup_limits"]),
    )


_PATHS = (
    "slice_directory",
    "usage_path",
    "simulated_state_directory",
    "time_path",
    "board_directory",
    "mps_pipe_directory",
)


def _path(slice_directory: Path) -> Path:
    return slice_directory.parent / _DELIVERY
