"""Volumes of a user other than root: opened as that user, then mounted by what was opened, never by name again.

The opening and the binding are native/launcher/stage.c's, a process of its own, since a file system of the user may keep
whoever looks into it waiting for ever. This module refuses what cannot be proven: where mounts made here would not reach
the engine there are no volumes.
"""

import contextlib
import os
import secrets
import select
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pgpu.errors import RequestError, RuntimeUnavailableError
from pgpu.libraries import STAGER, library_path
from pgpu.model import Account, Mount
from pgpu.runtimes.launching import spawn

_DEADLINE_SECONDS = 10.0
"""For looking up a few paths; a network file system that sleeps takes seconds."""

_KIND = "kind"
_VOLUME = "volume"
_ROOTS_SOCKET = "secret"
_MOST_REPORT_BYTES = 8192


@dataclass(frozen=True, slots=True)
class Staging:
    """Where volumes are put for the engine to mount; root's alone."""

    directory: Path

    @contextlib.contextmanager
    def staged(
        self, volumes: Sequence[Mount], account: Account, secrets_of_root: Sequence[Path]
    ) -> Iterator[tuple[Mount, ...]]:
        """Put volumes in place for as long as the engine needs to mount them into a container.

        Args:
            volumes: Directories and files by name.
            account: Who may open them.
            secrets_of_root: Paths that no volume may hold, such as the engine's socket.

        Yields:
            The same volumes with sources that nobody but root can change.

        Raises:
            RequestError: The user may not open one of them, or it is no file or directory.
            RuntimeUnavailableError: They cannot be mounted here, or the look-up does not end.
        """
        if not volumes:
            yield ()
            return
        place = self._made(secrets.token_hex(8))
        try:
            identity = f"{account.uid}:{account.gid}:{','.join(map(str, account.groups))}"
            forbidden = ("--", *(str(path.resolve()) for path in secrets_of_root))
            _run("open", identity, str(place), *(volume.source for volume in volumes), *forbidden)
            yield tuple(replace(volume, source=str(place / str(number))) for number, volume in enumerate(volumes))
        finally:
            self._clear(place)

    def sweep(self) -> None:
        """Take away what processes that were killed have left; what others use at this moment stays."""
        for place in self.directory.glob("*-*"):
            owner = place.name.partition("-")[0]
            if not Path(f"/proc/{owner}").exists():
                self._clear(place)

    def _made(self, name: str) -> Path:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _stays_private(self.directory):
            raise RuntimeUnavailableError(
                "volumes cannot be handed to the engine: mounts made here stay in this process's namespace",
                hint="run the server without PrivateTmp, PrivateMounts and the like",
            )
        place = self.directory / f"{os.getpid()}-{name}"
        place.mkdir(mode=0o700)
        return place

    @staticmethod
    def _clear(place: Path) -> None:
        """Never by deleting what lies below: that is the user's own, until it is unmounted."""
        _run("clear", str(place))
        with contextlib.suppress(OSError):
            place.rmdir()


def _stays_private(directory: Path) -> bool:
    """Whether what is mounted below a directory is hidden from the namespace that this one was made from."""
    mounts = [line.split(" ") for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()]
    # proc_pid_mountinfo(5): the mount point is the fifth field, optional fields begin at the seventh.
    above = [fields for fields in mounts if directory.resolve().is_relative_to(fields[4])]
    nearest = max(above, key=lambda fields: len(fields[4]))
    return any(word.startswith("master:") for word in nearest[6 : nearest.index("-")])


def _run(*words: str) -> None:
    program = library_path(STAGER)
    report, report_end = os.pipe()
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        pid = spawn(program, words, (nothing, nothing, nothing, nothing, report_end))
    finally:
        os.close(report_end)
        os.close(nothing)
    try:
        # Whoever hangs in a look-up keeps its end of the pipe: nothing is read of it.
        report_text = os.read(report, _MOST_REPORT_BYTES) if (status := _wait(pid)) is not None else b""
    finally:
        os.close(report)
    if status != 0 or report_text:
        raise _failure(os.fsdecode(report_text))


def _wait(pid: int) -> int | None:
    """Return the status of a process that ended in time; one that did not is killed, and None returned."""
    pidfd = os.pidfd_open(pid)
    try:
        if select.select([pidfd], [], [], _DEADLINE_SECONDS)[0]:
            return os.waitpid(pid, 0)[1]
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, os.WNOHANG)
        return None
    finally:
        os.close(pidfd)


def _failure(line: str) -> RequestError | RuntimeUnavailableError:
    number, _, rest = line.strip().partition("\t")
    stage, _, detail = rest.partition("\t")
    if stage == _KIND:
        return RequestError(
            f"the volume {detail!r} is neither a directory nor a file", hint="sockets and devices are root's to give"
        )
    if stage == _ROOTS_SOCKET:
        return RequestError(
            f"the volume {detail!r} holds a socket through which everybody is root", hint="name a directory below it"
        )
    if stage == _VOLUME:
        return RequestError(f"the volume {detail!r} cannot be opened by you: {os.strerror(int(number))}")
    if not stage:
        return RuntimeUnavailableError(
            "the volumes could not be looked up in time", hint="is a network file system away?"
        )
    return RuntimeUnavailableError(f"the volumes cannot be mounted ({detail}): {os.strerror(int(number))}")
