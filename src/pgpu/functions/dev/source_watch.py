"""Edits of a function's source, by watchfiles: inotify, or polling with `WATCHFILES_FORCE_POLLING=true`.

Network file systems and some container mounts report nothing through inotify. Several writes in a row, such as an editor's or a
checkout's, are one edit.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from watchfiles import Change, watch

from pgpu.errors import RequestError

_SUFFIXES = (".py", ".toml")
_SKIPPED = {"__pycache__", "node_modules", "build", "dist"}
_YIELD_MS = 250


class SourceWatch:
    """The files that imports can read, below one directory; a thread collects their changes."""

    def __init__(self, source: Path) -> None:
        self._source = source.resolve()
        self._changed: set[str] = set()
        self._stopped, self._watching = threading.Event(), threading.Event()
        self._error: OSError | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch until the end of the context.

        Raises:
            RequestError: The directory cannot be watched.
        """
        thread = threading.Thread(target=self._follow, name="source-watch", daemon=True)
        thread.start()
        self._watching.wait()
        if self._error is not None:
            raise RequestError(
                f"edits of {self._source} cannot be watched: {self._error}",
                hint="WATCHFILES_FORCE_POLLING=true polls instead, --no-reload does without",
            )
        try:
            yield
        finally:
            self._stopped.set()
            thread.join()

    @property
    def has_changed(self) -> bool:
        """Whether a file was added, changed or removed since the last `take()`."""
        return bool(self._changed)

    def take(self) -> list[str]:
        """Return the changed paths since the last call, relative to the directory."""
        changed, self._changed = self._changed, set()
        return sorted(changed)

    def _follow(self) -> None:
        try:
            for changes in watch(
                self._source, watch_filter=self._is_source, stop_event=self._stopped, rust_timeout=_YIELD_MS,
                yield_on_timeout=True, raise_interrupt=False,
            ):  # fmt: skip
                # The first result, mostly an empty one, shows that the watch is in place.
                self._changed |= {str(Path(path).relative_to(self._source)) for _, path in changes}
                self._watching.set()
        except OSError as error:
            self._error = error
        finally:
            self._watching.set()

    def _is_source(self, _change: Change, path: str) -> bool:
        """Whether imports can read a file: not in hidden directories, caches and virtual environments."""
        relative = Path(path).relative_to(self._source)
        is_skipped = any(part.startswith(".") or part in _SKIPPED for part in relative.parts)
        is_installed = any((self._source / each / "pyvenv.cfg").exists() for each in relative.parents)
        return path.endswith(_SUFFIXES) and not is_skipped and not is_installed
