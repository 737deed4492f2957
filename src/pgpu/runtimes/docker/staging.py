"""Volumes of users other than root: opened as that user, then mounted by descriptor, never resolved by name again.

native/launcher/stage.c opens and mounts. Volumes are rejected if mounts made here would not propagate to the engine, or if
root's rights would apply in them.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pgpu.errors import PgpuError, RequestError, RuntimeUnavailableError
from pgpu.host.process_identity import identify_unreaped
from pgpu.model import Account, Mount
from pgpu.runtimes.docker.look_ups import LookUpFailedError, LookUps

_NOBODY = Account(65534, 65534)


@dataclass(frozen=True, slots=True)
class Staging:
    """The directory in which volumes are mounted for the engine; accessible to root only."""

    directory: Path
    _look_ups: LookUps = field(default_factory=LookUps)

    @contextlib.contextmanager
    def staged(
        self,
        volumes: Sequence[Mount],
        account: Account,
        secrets_of_root: Sequence[Path],
        places: Sequence[tuple[int, str]] = (),
    ) -> Iterator[tuple[Mount, ...]]:
        """Mount volumes for as long as the engine needs to bind them into a container.

        Args:
            volumes: Directories and files by name.
            account: The user with whose rights they are opened.
            secrets_of_root: Paths that no volume may contain, such as the engine's socket.
            places: Mount points that they must contain, as (number of the volume, path in it).

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
        place = self._made(secrets.token_hex(8))
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
        words += ["--", *(str(path.resolve()) for path in forbidden)]
        words += ["--", *(f"{number}/{path}" for number, path in places)]
        try:
            self._look_ups.run(words, account.uid)
        except LookUpFailedError as refusal:
            raise _failure(refusal.report, volumes) from refusal

    def sweep(self) -> None:
        """Remove the mounts that killed processes left; those of living processes stay."""
        for place in self.directory.glob("*-*-*"):
            pid, start_time_ticks, _ = place.name.split("-", 2)
            owner = identify_unreaped(int(pid)) if pid.isdecimal() else None
            if owner is None or str(owner.start_time_ticks) != start_time_ticks:
                with contextlib.suppress(PgpuError):  # retried by the next sweep; must not block other users' volumes
                    self._clear(place)

    def _made(self, name: str) -> Path:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _stays_private(self.directory):
            raise RuntimeUnavailableError(
                "volumes cannot be handed to the engine: mounts made here stay in this process's namespace",
                hint="run the server without PrivateTmp, PrivateMounts and the like",
            )
        place = self.directory / f"{os.getpid()}-{_start_time_ticks()}-{name}"
        place.mkdir(mode=0o700)
        return place

    def _clear(self, place: Path) -> None:
        """Unmount and remove the empty directory. Files below it are never deleted: until the unmount they are the user's."""
        try:
            self._look_ups.run(["clear", str(place)], None)
        except LookUpFailedError as refusal:
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


def _start_time_ticks() -> int:
    """Start time of this process, which distinguishes it from later processes with the same PID."""
    own = identify_unreaped(os.getpid())
    if own is None:
        raise RuntimeUnavailableError("/proc does not show this process", hint="mount /proc")
    return own.start_time_ticks


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
    if stage == "place":
        return _missing_place(detail, volumes, reason)
    if stage == "foreign":
        return _foreign_place(detail, volumes)
    if stage in {"kind", "secret", "volume", "owners"}:
        return _refused_volume(stage, detail, reason)
    hints = {"kernel": "volumes of users need Linux 5.12 or newer", "namespace": "is user.max_user_namespaces 0?"}
    return RuntimeUnavailableError(f"the volumes cannot be mounted ({detail}): {reason}", hint=hints.get(stage))


def _refused_volume(stage: str, detail: str, reason: str) -> RequestError:
    message, hint = {
        "kind": (f"the volume {detail!r} is neither a directory nor a file", "sockets and devices are root's to give"),
        "secret": (
            f"the volume {detail!r} holds a socket through which everybody is root",
            "name a directory below it",
        ),
        "volume": (f"the volume {detail!r} cannot be opened by you: {reason}", None),
        "owners": (
            f"the volume {detail!r} is on a file system, or holds one, whose owners cannot be mapped",
            "name a directory on ext4, XFS, Btrfs, ZFS, tmpfs or the like, with no other mount below it",
        ),
    }[stage]
    return RequestError(message, hint=hint)


def _missing_place(detail: str, volumes: Sequence[Mount], reason: str) -> RequestError:
    volume, place = _place(detail, volumes)
    return RequestError(
        f"the volume {volume} has no place for what is mounted at {place}: {reason}",
        hint="make it there first, or mount the volume elsewhere; it would be made as root",
    )


def _foreign_place(detail: str, volumes: Sequence[Mount]) -> RequestError:
    volume, place = _place(detail, volumes)
    return RequestError(
        f"the volume {volume} is somebody else's: nothing can be mounted in it, at {place}",
        hint="mount one of the two elsewhere; the engine would look it up as root",
    )


def _place(detail: str, volumes: Sequence[Mount]) -> tuple[str, str]:
    """Return a volume as requested, and the path of a mount point in it as the container sees it."""
    number, _, path = detail.partition("/")
    volume = volumes[int(number)]
    return f"{volume.source}:{volume.target}", f"{volume.target.rstrip('/')}/{path}"
