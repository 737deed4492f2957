"""Volumes of users other than root: opened as that user, then mounted by descriptor, never resolved by name again.

The stager (native/launcher/stage.c) opens and mounts, in a process of its own that is killed if it hangs: a file system under a
user's control may block a path look-up forever. The caller is a thread of the server, of which there are few. So each user
may have only a few slow runs at a time; further ones are killed after the short deadline.

Volumes are rejected if mounts made here would not propagate to the engine, or if root's rights would apply in them.
"""

import contextlib
import errno
import os
import secrets
import select
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from pgpu.errors import PgpuError, RequestError, RuntimeUnavailableError
from pgpu.host.process_identity import identify_unreaped
from pgpu.libraries import STAGER, library_path
from pgpu.model import Account, Mount
from pgpu.runtimes.launcher import spawn
from pgpu.structs import Struct, field, replace

_QUICK_SECONDS = 0.5
"""Deadline that applies to every look-up; local file systems take a thousandth of it."""

_DEADLINE_SECONDS = 10.0
"""For looking up a few paths; a suspended network file system takes seconds."""

_MOST_SLOW_OF_A_USER = 2
_GRACE_SECONDS = 1.0
_MOST_REPORT_BYTES = 8192
_MILLISECONDS = 1000


class StagerError(Exception):
    """The stager failed or was killed; `report` is its output, empty if it was killed."""

    def __init__(self, report: str) -> None:
        super().__init__(report)
        self.report = report


class StagerRunner:
    """Runs the stager and limits how many slow runs a user has at once; one instance for all threads of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slow: Counter[int] = Counter()
        self._dying: set[int] = set()

    def run(self, words: Sequence[str], uid: int | None) -> None:
        """Run the stager to its end.

        Args:
            words: Its arguments.
            uid: The user; None for the server's own look-ups, which are exempt from the limit of slow ones.

        Raises:
            StagerError: It failed, or took too long.
        """
        try:
            report, pid = _start_stager(words)
        except (OSError, ValueError) as exc:  # ValueError: an argument has a zero byte, or cannot be encoded
            raise _start_error(exc) from exc
        try:
            # A killed stager may still hold its end of the pipe, so the report is read only after it exited.
            text = os.read(report, _MOST_REPORT_BYTES) if (status := self._wait(pid, uid)) is not None else b""
        except OSError as exc:
            raise _start_error(exc) from exc
        finally:
            os.close(report)
        if status != 0 or text:
            raise StagerError(os.fsdecode(text))

    def _wait(self, pid: int, uid: int | None) -> int | None:
        """Return the exit status, or None after the deadline; the process is then killed."""
        status = None
        try:
            with contextlib.ExitStack() as stack:
                # This child is not reaped yet, so the PID cannot have been reused.
                pidfd = os.pidfd_open(pid)
                stack.callback(os.close, pidfd)
                if _ends_within(pidfd, _QUICK_SECONDS) or self._ends_slowly(pidfd, uid):
                    status = os.waitpid(pid, 0)[1]
                else:
                    os.kill(pid, signal.SIGKILL)
                    # A process in an uninterruptible look-up ends later; `_reap` keeps its PID until then.
                    _ends_within(pidfd, _GRACE_SECONDS)
        finally:
            self._reap(pid if status is None else None)
        return status

    def _reap(self, pid: int | None) -> None:
        """Kill a process, and reap the killed ones that have ended by now. A process in a blocked system call dies later."""
        with self._lock:
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
                self._dying.add(pid)
            self._dying -= {each for each in self._dying if _is_reaped(each)}

    def _ends_slowly(self, pidfd: int, uid: int | None) -> bool:
        with self._one_more_slow(uid) as is_allowed:
            return is_allowed and _ends_within(pidfd, _DEADLINE_SECONDS - _QUICK_SECONDS)

    @contextlib.contextmanager
    def _one_more_slow(self, uid: int | None) -> Iterator[bool]:
        if uid is None:
            yield True
            return
        with self._lock:
            is_allowed = self._slow[uid] < _MOST_SLOW_OF_A_USER
            self._slow[uid] += is_allowed
        try:
            yield is_allowed
        finally:
            with self._lock:
                self._slow[uid] -= is_allowed
                self._slow += Counter()  # drops zero counts


def _start_stager(words: Sequence[str]) -> tuple[int, int]:
    """Return the read end of the stager's report pipe, and its PID."""
    with contextlib.ExitStack() as stack:
        # The report is descriptor 4, as in the launcher; 0 to 3 are not used.
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        stack.callback(os.close, nothing)
        # Only the stager keeps the write end, so its exit ends the report.
        report, report_end = os.pipe()
        stack.callback(os.close, report_end)
        try:
            return report, spawn(library_path(STAGER), words, (nothing, nothing, nothing, nothing, report_end))
        except BaseException:
            os.close(report)
            raise


def _start_error(exc: Exception) -> StagerError:
    number = exc.errno if isinstance(exc, OSError) else errno.EINVAL
    return StagerError(f"{number}\tstage\tno process can be started\n")


def _is_reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:  # already reaped elsewhere in this process
        return True


def _ends_within(pidfd: int, seconds: float) -> bool:
    poll = select.poll()  # select() fails for descriptors above 1,023, which a server has
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(seconds * _MILLISECONDS))


_NOBODY = Account(65534, 65534)


class Staging(Struct, frozen=True):
    """The directory in which volumes are mounted for the engine; accessible to root only."""

    directory: Path
    _stagers: StagerRunner = field(default_factory=StagerRunner)

    @contextlib.contextmanager
    def staged(
        self,
        volumes: Sequence[Mount],
        account: Account,
        secrets_of_root: Sequence[Path],
        places: Sequence[tuple[int, str]] = (),
        *,
        is_trial: bool = False,
    ) -> Iterator[tuple[Mount, ...]]:
        """Mount volumes for as long as the engine needs to bind them into a container.

        Args:
            volumes: Directories and files by name.
            account: The user with whose rights they are opened.
            secrets_of_root: Paths that no volume may contain, such as the engine's socket.
            places: Mount points that they must contain, as (number of the volume, path in it).
            is_trial: Whether no engine binds them: then they may stay in this process's mount namespace.

        Yields:
            The same volumes with sources that only root can change, and in which root's rights do not apply.

        Raises:
            RequestError: The user may not open a volume, it is no file or directory, its file system does not support ID
                mapping, a mount point is missing, or a mount point is in a directory of another owner.
            RuntimeUnavailableError: They cannot be mounted here, or the look-up does not end.
        """
        if not volumes:
            yield ()
            return
        place = self._create_place(secrets.token_hex(8), is_trial=is_trial)
        try:
            self._open(place, volumes, account, (secrets_of_root, places))
            yield tuple(replace(volume, source=str(place / str(number))) for number, volume in enumerate(volumes))
        finally:
            self._clear(place)

    def _open(
        self,
        place: Path,
        volumes: Sequence[Mount],
        account: Account,
        conditions: tuple[Sequence[Path], Sequence[tuple[int, str]]],
    ) -> None:
        forbidden, places = conditions
        words = ["open", f"{account.uid}:{account.gid}:{','.join(map(str, account.groups))}", str(place)]
        words += [volume.source for volume in volumes]
        # The stager compares these with resolved paths.
        words += ["--", *(str(path.resolve()) for path in forbidden)]
        words += ["--", *(f"{number}/{path}" for number, path in places)]
        try:
            self._stagers.run(words, account.uid)
        except StagerError as refusal:
            raise _failure(refusal.report, volumes) from refusal

    def sweep(self) -> None:
        """Remove the mounts that killed processes left; those of living processes stay."""
        for place in self.directory.glob("*-*-*"):
            pid, start_time_ticks, _ = place.name.split("-", 2)
            owner = identify_unreaped(int(pid)) if pid.isdecimal() else None
            if owner is None or str(owner.start_time_ticks) != start_time_ticks:
                with contextlib.suppress(PgpuError):  # retried by the next sweep; must not block other users' volumes
                    self._clear(place)

    def _create_place(self, name: str, *, is_trial: bool) -> Path:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_trial and _stays_private(self.directory):
            raise RuntimeUnavailableError(
                "volumes cannot be handed to the engine: mounts made here stay in this process's namespace",
                hint="run the server without PrivateTmp, PrivateMounts and the like",
            )
        own = identify_unreaped(os.getpid())
        if own is None:
            raise RuntimeUnavailableError("/proc does not show this process", hint="mount /proc")
        # The name identifies this process, so that `sweep` in another one removes the mounts of dead processes only. PIDs are
        # reused; a PID with its start time is not.
        place = self.directory / f"{own.pid}-{own.start_time_ticks}-{name}"
        place.mkdir(mode=0o700)
        return place

    def _clear(self, place: Path) -> None:
        """Unmount and remove the empty directory. Files below it are never deleted: until the unmount they are the user's."""
        try:
            self._stagers.run(["clear", str(place)], None)
        except StagerError as refusal:
            raise _failure(refusal.report, ()) from refusal
        with contextlib.suppress(OSError):
            place.rmdir()


def try_volumes(directory: Path) -> None:
    """Mount a directory that every machine has as the user `nobody`, and remove it again.

    Args:
        directory: Where; accessible to root only.

    Raises:
        RequestError: Its file system does not support ID mapping.
        RuntimeUnavailableError: The kernel does not support it, or mounts made here would not reach an engine.
    """
    with Staging(directory).staged([Mount("/usr", "/usr")], _NOBODY, []):
        pass


def _stays_private(directory: Path) -> bool:
    """True if mounts below a directory do not propagate to the parent namespace (a `master:` field: a slave mount)."""
    mounts = [line.split(" ") for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()]
    # proc_pid_mountinfo(5): the mount point is the fifth field, optional fields begin at the seventh.
    above = [fields for fields in mounts if directory.resolve().is_relative_to(fields[4])]
    nearest = max(above, key=lambda fields: len(fields[4]))
    return any(word.startswith("master:") for word in nearest[6 : nearest.index("-")])


def _failure(line: str, volumes: Sequence[Mount]) -> RequestError | RuntimeUnavailableError:
    number, _, rest = line.strip().partition("\t")
    stage, _, detail = rest.partition("\t")
    if not stage:
        return RuntimeUnavailableError(
            "the volumes could not be looked up in time", hint="is a network file system away?"
        )
    reason = os.strerror(int(number))
    if stage in {"place", "foreign"}:
        return _refused_place(stage, detail, volumes, reason)
    if stage in {"kind", "secret", "volume", "owners"}:
        return _refused_volume(stage, detail, reason)
    hints = {"kernel": "volumes of users need Linux 5.12 or newer", "namespace": "is user.max_user_namespaces 0?"}
    return RuntimeUnavailableError(f"the volumes cannot be mounted ({detail}): {reason}", hint=hints.get(stage))


def _refused_volume(stage: str, detail: str, reason: str) -> RequestError:
    message, hint = {
        "kind": (f"the volume {detail!r} is neither a directory nor a file", "sockets and devices are root's to give"),
        "secret": (
            f"the volume {detail!r} holds a socket that gives root access",
            "name a directory below it",
        ),
        "volume": (f"the volume {detail!r} cannot be opened by you: {reason}", None),
        "owners": (
            f"the volume {detail!r} is on a file system, or holds one, whose owners cannot be mapped",
            "name a directory on ext4, XFS, Btrfs, ZFS, tmpfs or the like, with no other mount below it",
        ),
    }[stage]
    return RequestError(message, hint=hint)


def _refused_place(stage: str, detail: str, volumes: Sequence[Mount], reason: str) -> RequestError:
    # The stager reports NUMBER/PATH: the volume's position, and the mount point inside it.
    number, _, path = detail.partition("/")
    volume = volumes[int(number)]
    shown, place = f"{volume.source}:{volume.target}", f"{volume.target.rstrip('/')}/{path}"
    if stage == "place":
        return RequestError(
            f"the volume {shown} has no place for what is mounted at {place}: {reason}",
            hint="make it there first, or mount the volume elsewhere; it would be made as root",
        )
    return RequestError(
        f"the volume {shown} has another owner: nothing can be mounted in it, at {place}",
        hint="mount one of the two elsewhere; the engine would look it up as root",
    )
