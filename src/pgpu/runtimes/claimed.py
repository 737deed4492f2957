"""The runtime of slices that an orchestrator claims for containers of its own: there is nothing to start, and nobody to wait for.

What the containers must be given is written down beside the slice, where the orchestrator's node agent reads it. It refuses
to run commands, except those by which a limit is proved: these run as processes, in a view of their own.
"""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pgpu.errors import EnforcementError, RequestError
from pgpu.host.atomic_file import write_atomically
from pgpu.model import Account, ClaimHolder, Delivery, Holder, Job, JobSpec
from pgpu.runtimes import RunningJob, Runtime, Stdio

CLAIM_VARIABLE = "PGPU_CLAIM"
"""In a job's specification: the uid of its claim."""

_IN_CONTAINER = ".pgpu"
_DELIVERY = "delivery.json"


class Viewers:
    """The processes that see a slice where containers see theirs."""

    def __init__(self, slice_directory: Path) -> None:
        self._slice_directory = slice_directory

    def owns(self, pid: int) -> bool:
        """Whether a process of this machine has the slice at `/.pgpu`."""
        try:
            return (Path(f"/proc/{pid}/root") / _IN_CONTAINER).samefile(self._slice_directory)
        except OSError:
            return False

    def members(self) -> Iterator[int]:
        """Yield all of them, as far as this process may look into others."""
        yield from (int(name) for name in os.listdir("/proc") if name.isdecimal() and self.owns(int(name)))  # noqa: PTH208 - names, not paths

    def kill(self) -> None:
        """Kill all of them, and nobody who has the number of one of them by then."""
        for pid in self.members():
            with suppress(ProcessLookupError), _process(pid) as pidfd:
                if self.owns(pid):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Nothing is held."""


@contextmanager
def _process(pid: int) -> Iterator[int]:
    pidfd = os.pidfd_open(pid)
    try:
        yield pidfd
    finally:
        os.close(pidfd)


class ClaimedRuntime:
    """Runs jobs that consist of their slices."""

    def __init__(self, processes: Callable[[], Runtime]) -> None:
        """Make the runtime.

        Args:
            processes: Returns what proves limits.
        """
        self._processes = processes

    @property
    def name(self) -> str:
        """`claim`."""
        return "claim"

    def check(self, spec: JobSpec, account: Account | None = None) -> None:  # noqa: ARG002 - the protocol's parameter
        """Refuse a job that no claim stands behind.

        Raises:
            RequestError: It names none.
        """
        claim_uid(spec)

    def is_advisory(self, spec: JobSpec) -> bool:  # noqa: ARG002 - the protocol's parameter
        """Never: the slice is mounted into containers."""
        return False

    def image_id(self, spec: JobSpec) -> str:  # noqa: ARG002 - the protocol's parameter
        """Return nothing: any number of images will see the slice."""
        return ""

    def can_load_driver(self, spec: JobSpec) -> bool:  # noqa: ARG002 - the protocol's parameter
        """Say yes: a limit is proved by a program of ours."""
        return True

    def start(
        self,
        job: Job,
        delivery: Delivery,
        stdio: Stdio,
        announce: Callable[[Holder], None],
        account: Account | None = None,
    ) -> RunningJob:
        """Write down what containers must be given, and from now on hold the slice for them."""
        if job.spec.command:
            return self._processes().start(job, delivery, stdio, announce, account)
        holder = ClaimHolder(claim_uid(job.spec), str(delivery.slice_directory))
        announce(holder)
        _write(delivery)
        return ClaimedJob(holder)

    def adopt(self, job: Job, stdio: Stdio) -> RunningJob | None:  # noqa: ARG002 - it has no streams
        """Take charge of a slice that is still there; after a reboot none is."""
        if not isinstance(job.holder, ClaimHolder) or not _path(Path(job.holder.slice_directory)).exists():
            return None
        return ClaimedJob(job.holder)


class ClaimedJob:
    """The `RunningJob` of a slice: it runs until somebody ends it."""

    def __init__(self, holder: ClaimHolder) -> None:
        self._holder = holder
        self._viewers = Viewers(Path(holder.slice_directory))
        self._end = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_over = False

    @property
    def holder(self) -> ClaimHolder:
        """The claim."""
        return self._holder

    def fileno(self) -> int:
        """Return a descriptor that is readable once it was ended."""
        return self._end

    def exit_code(self) -> int | None:
        """Return 0 once it was ended."""
        return 0 if self._is_over else None

    def is_alive(self) -> bool:
        """Whether nobody has ended it."""
        return not self._is_over

    def owns(self, pid: int) -> bool:
        """Whether a process is in one of the claim's containers."""
        return self._viewers.owns(pid)

    def signal(self, number: int) -> None:
        """Do nothing: ends of containers are the orchestrator's to announce."""

    def kill(self) -> None:
        """End it, and whoever is still inside: a slice that is taken away must be nobody's."""
        self._viewers.kill()
        self._is_over = True
        os.eventfd_write(self._end, 1)

    def resize_terminal(self, size: os.terminal_size) -> None:
        """Do nothing: it has no terminal."""

    def close(self) -> None:
        """Let go of the descriptor."""
        os.close(self._end)


def claim_uid(spec: JobSpec) -> str:
    """Return whose job it is.

    Raises:
        RequestError: Nobody's.
    """
    found = dict(spec.environment).get(CLAIM_VARIABLE)
    if found is None:
        raise RequestError("a job without a command is made for a claim only")
    return found


def read_delivery(slice_directory: Path) -> Delivery | None:
    """Return what containers must be given of a slice; None where it is not there, or not yet."""
    try:
        fields: dict[str, Any] = json.loads(_path(slice_directory).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    paths = {name: None if fields[name] is None else Path(fields[name]) for name in _PATHS}
    return Delivery(
        **paths,  # type: ignore[arg-type] # those that must not be None were written as what they were
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


def _write(delivery: Delivery) -> None:
    path = _path(delivery.slice_directory)
    try:
        write_atomically(path, json.dumps(asdict(delivery), default=str).encode(), 0o644)
    except OSError as exc:
        raise EnforcementError(f"{path} cannot be written: {exc.strerror}") from exc
