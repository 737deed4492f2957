"""Sees that code changed, by looking: times and sizes of the files that imports can read.

Polling, since notices of the kernel don't cross network file systems and container mounts. It refuses to look into what
nobody edits: hidden directories, virtual environments, caches.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

_SUFFIXES = (".py", ".toml")
_SKIPPED = {"__pycache__", "node_modules", "build", "dist"}
_MOST_FILES = 5000
"""More is no source directory; the first ones found are watched."""

SourceSnapshot = Mapping[str, tuple[int, int]]
"""Time of the last change in ns and size in bytes, by path."""


def take_snapshot(source: Path) -> SourceSnapshot:
    """Return how the files of a directory are now."""
    found: dict[str, tuple[int, int]] = {}
    for entry in _entries(str(source)):
        try:
            status = entry.stat()
        except OSError:
            continue  # gone since it was listed: an editor's swap file
        found[entry.path] = (status.st_mtime_ns, status.st_size)
        if len(found) >= _MOST_FILES:
            break
    return found


def changed_paths(before: SourceSnapshot, after: SourceSnapshot) -> list[str]:
    """Return the paths that were added, changed or removed."""
    return sorted(path for path in {*before, *after} if before.get(path) != after.get(path))


def _entries(directory: str) -> Iterator["os.DirEntry[str]"]:
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError:
        return
    if any(entry.name == "pyvenv.cfg" for entry in entries):
        return
    for entry in entries:
        if entry.name.startswith(".") or entry.name in _SKIPPED:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _entries(entry.path)
        elif entry.name.endswith(_SUFFIXES):
            yield entry
