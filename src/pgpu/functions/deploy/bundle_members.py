"""What may be in a bundle, told member by member. Pure: the same rules for who packs and for who unpacks.

A member's directory must have come before it as a directory, so nothing is ever written through a link; a link leads to
somewhere inside, by its text alone. It refuses everything that is no file, directory or link: devices, hard links, holes.
"""

import posixpath
from dataclasses import dataclass, field
from enum import Enum

from pgpu.errors import RequestError
from pgpu.units import MIB, quoted

MOST_BYTES = 100 * MIB
"""Of all files together: weights that are larger lie on a volume or are fetched by the constructor."""

MOST_MEMBERS = 10_000
MOST_PATH_BYTES = 1024
_MOST_NAME_BYTES = 255


class MemberKind(Enum):
    """What a member is."""

    FILE = "file"
    DIRECTORY = "directory"
    LINK = "link"


@dataclass(frozen=True, slots=True)
class BundleMember:
    """One thing in a bundle."""

    path: str
    """From the bundle's root, with `/` between its parts."""

    kind: MemberKind
    size_bytes: int = 0
    target: str = ""
    """A link's text."""

    is_executable: bool = False


@dataclass(slots=True)
class BundleInspector:
    """Sees the members of one bundle go by, and lets none pass that must not be there."""

    most_bytes: int = MOST_BYTES
    most_members: int = MOST_MEMBERS
    _kinds: dict[str, MemberKind] = field(default_factory=lambda: {"": MemberKind.DIRECTORY})
    _bytes: int = 0

    def admit(self, member: BundleMember) -> BundleMember:
        """Return a member that may be there.

        Raises:
            RequestError: It may not, or there is too much already; what was written of the bundle must be thrown away.
        """
        self._check_path(member.path)
        if member.kind is MemberKind.LINK:
            _check_target(member)
        self._bytes += member.size_bytes
        if member.size_bytes < 0 or self._bytes > self.most_bytes:
            raise RequestError(
                f"the bundle is larger than {self.most_bytes // MIB} MiB (it has {quoted(member.path)})",
                hint="leave files out by .pgpuignore; fetch large weights in the constructor",
            )
        self._kinds[member.path] = member.kind
        return member

    def _check_path(self, path: str) -> None:
        parts = path.split("/")
        is_plain = all(
            part not in {"", ".", ".."} and len(part.encode("utf-8", "replace")) <= _MOST_NAME_BYTES for part in parts
        )
        if not is_plain or not _is_text(path) or len(path.encode()) > MOST_PATH_BYTES:
            raise RequestError(
                f"{quoted(path)} is no path in a bundle", hint="rename it, or leave it out by .pgpuignore"
            )
        if path in self._kinds:
            raise RequestError(f"the bundle has {quoted(path)} twice")
        if self._kinds.get(posixpath.dirname(path)) is not MemberKind.DIRECTORY:
            raise RequestError(f"{quoted(path)} is in no directory of the bundle")
        if len(self._kinds) > self.most_members:
            raise RequestError(
                f"the bundle has more than {self.most_members} files", hint="leave directories out by .pgpuignore"
            )


def _check_target(member: BundleMember) -> None:
    target = posixpath.normpath(posixpath.join(posixpath.dirname(member.path), member.target))
    leaves = member.target.startswith("/") or target == ".." or target.startswith("../")
    if leaves or not member.target or not _is_text(member.target) or len(member.target.encode()) > MOST_PATH_BYTES:
        raise RequestError(
            f"the link {quoted(member.path)} leads out of the bundle",
            hint="copy what it leads to, or leave it out by .pgpuignore",
        )
    if _climbs_after_descent(member.target):
        raise RequestError(f"the link {quoted(member.path)} goes up behind a name", hint="write its target plainly")


def _climbs_after_descent(target: str) -> bool:
    """Whether `..` follows a name: the name may be a link, and `..` would begin where that leads."""
    parts = [part for part in target.split("/") if part not in {"", "."}]
    ups = next((place for place, part in enumerate(parts) if part != ".."), len(parts))
    return ".." in parts[ups:]


def _is_text(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)
