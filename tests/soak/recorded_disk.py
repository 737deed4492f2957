"""A directory's files as a power cut would leave them, replayed from a trace of the system calls that wrote them.

strace writes the trace: `RECORD` before a command. A file's data is on the disk after fsync or fdatasync of the file, and a name after
fsync of its directory; whatever was written since may be there or not. Writes through shared memory are not in the trace: of
SQLite's files only `-shm` has them, which no cut leaves in use.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_WRITING = (
    "openat,write,pwrite64,writev,pwritev,ftruncate,truncate,fallocate,rename,renameat,renameat2,unlink,unlinkat,link,linkat,"
    "symlink,symlinkat,mkdir,mkdirat,rmdir,fsync,fdatasync"
)
RECORD = ("strace", "-f", "-q", "-y", "-xx", "-s", "4194304", "--seccomp-bpf", "-e", f"trace={_WRITING}", "-o")
"""Followed by the trace's path and the command."""

_CALL = re.compile(r"(\d+) +(\w+)\((.*)\) += (-?\d+)")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_OPENED = re.compile(r"(?:\d+|AT_FDCWD)<((?:\\x[0-9a-f]{2})*)>")
_IGNORED_SUFFIX = "-shm"


@dataclass(eq=False)
class _File:
    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    unsynced: list[tuple[int, bytes]] = field(default_factory=list)
    """Offset and bytes of each write since."""

    def write(self, offset: int, data: bytes) -> None:
        _put(self.data, offset, data)
        self.unsynced.append((offset, data))

    def cut(self, length: int) -> None:
        self.data[length:] = bytes(max(0, length - len(self.data)))

    def half(self) -> bytes:
        """Return what is there if the first half of the writes reached the disk, the last of them half."""
        found = bytearray(self.durable)
        written = self.unsynced[: (len(self.unsynced) + 1) // 2]
        for offset, data in written[:-1]:
            _put(found, offset, data)
        if written:
            offset, data = written[-1]
            _put(found, offset, data[: len(data) // 2])
        return bytes(found)


def _put(data: bytearray, offset: int, written: bytes) -> None:
    data.extend(bytes(max(0, offset - len(data))))
    data[offset : offset + len(written)] = written


@dataclass(frozen=True)
class Cut:
    """One moment at which power may fail."""

    seen: bytes
    """What the watched file held: it stands for an observer that no power cut reaches."""

    images: dict[str, dict[str, bytes]]
    """Files by their path below the directory: `least` has what is durable, `half` half of the other writes, `most` all."""


class RecordedDisk:
    """Replays one trace, system call by system call."""

    def __init__(self, trace: Path, directory: Path, watched: Path) -> None:
        """Replay `directory`; cuts also come after each write to `watched`."""
        self._trace, self._directory, self._watched = trace, f"{directory}/", str(watched)
        self._files: dict[str, _File] = {}
        self._durable_names: dict[str, _File] = {}
        # A file that lost its name is still written through descriptors, under that name.
        self._former: dict[str, _File] = {}
        self._seen = bytearray()

    def cuts(self) -> Iterator[Cut]:
        """Yield a cut before each call that makes something durable or seen, and one at the end."""
        for name, arguments, result in _calls(self._trace):
            strings = [_text(each) for each in _STRING.findall(arguments)]
            opened = [
                _text(each).removesuffix(" (deleted)").removesuffix("(deleted)") for each in _OPENED.findall(arguments)
            ]
            path = opened[0] if opened else ""
            if (name == "write" and path == self._watched) or (name.endswith("sync") and self._is_ours(path)):
                yield self._cut()
            self._apply(name, arguments, strings, opened, result)
        yield self._cut()

    def _apply(self, name: str, arguments: str, strings: list[str], opened: list[str], result: int) -> None:
        path = opened[0] if opened else ""
        if name in {"write", "pwrite64"} and path == self._watched:
            self._seen += strings[0].encode("latin-1")
        elif name in {"write", "pwrite64", "writev", "pwritev", "ftruncate", "fallocate", "fsync", "fdatasync"}:
            if self._is_ours(path) or f"{path}/" == self._directory:
                self._apply_to_open(name, arguments, strings, path, result)
        else:
            self._apply_to_names(name, arguments, strings, opened)

    def _apply_to_open(self, name: str, arguments: str, strings: list[str], path: str, result: int) -> None:
        file = self._files.get(path) or self._former.get(path)
        if file is None:
            if name.endswith("sync"):
                self._sync_names(path)
        elif name == "ftruncate":
            file.cut(int(arguments.rsplit(", ", 1)[1]))
        elif name == "fallocate":
            file.cut(max(len(file.data), sum(map(int, arguments.split(", ")[-2:]))))
        elif name.endswith("sync"):
            file.durable, file.unsynced = bytes(file.data), []
        else:
            offset = int(arguments.rsplit(", ", 1)[1]) if name.startswith("p") else len(file.data)
            file.write(offset, "".join(strings).encode("latin-1")[:result])

    def _apply_to_names(self, name: str, arguments: str, strings: list[str], opened: list[str]) -> None:
        # A relative path follows the descriptor of its directory; the shorter forms of the calls have absolute paths here.
        paths = [
            text if text.startswith("/") else f"{base}/{text}"
            for base, text in zip(_bases(opened, strings), strings, strict=True)
        ]
        if not any(map(self._is_ours, paths)):
            return
        if name == "openat" and "O_CREAT" in arguments:
            file = self._files.setdefault(paths[0], _File())
            if "O_TRUNC" in arguments:
                file.cut(0)
        elif name.startswith("rename") and paths[0] in self._files:
            self._files[paths[1]] = self._former[paths[0]] = self._files.pop(paths[0])
        elif name.startswith("link"):
            self._files[paths[1]] = self._files[paths[0]]
        elif name.startswith("unlink") and paths[0] in self._files:
            self._former[paths[0]] = self._files.pop(paths[0])

    def _sync_names(self, directory: str) -> None:
        inside = {path: file for path, file in self._files.items() if path.rpartition("/")[0] == directory}
        others = {path: file for path, file in self._durable_names.items() if path.rpartition("/")[0] != directory}
        self._durable_names = others | inside

    def _is_ours(self, path: str) -> bool:
        return path.startswith(self._directory) and not path.endswith(_IGNORED_SUFFIX)

    def _cut(self) -> Cut:
        least = {path: file.durable for path, file in self._durable_names.items()}
        half = {path: file.half() for path, file in self._files.items()}
        most = {path: bytes(file.data) for path, file in self._files.items()}
        images = {"least": least, "half": half, "most": most}
        start = len(self._directory)
        return Cut(
            bytes(self._seen),
            {which: {path[start:]: data for path, data in image.items()} for which, image in images.items()},
        )


def _bases(opened: list[str], strings: list[str]) -> list[str]:
    return (opened + [""] * len(strings))[: len(strings)]


def _calls(trace: Path) -> Iterator[tuple[str, str, int]]:
    """Yield name, arguments and result of each call that succeeded, in the order in which they ended."""
    begun: dict[str, str] = {}
    for line in trace.read_text("ascii").splitlines():
        pid = line.partition(" ")[0]
        whole = line
        if line.endswith("<unfinished ...>"):
            begun[pid] = line.removesuffix(" <unfinished ...>").removesuffix("<unfinished ...>")
            continue
        if " resumed>" in line:
            whole = begun.pop(pid) + line.partition(" resumed>")[2]
        found = _CALL.match(whole)
        if found is not None and int(found[4]) >= 0:
            yield found[2], found[3], int(found[4])


def _text(escaped: str) -> str:
    return bytes.fromhex(escaped.replace("\\x", "")).decode("latin-1")
