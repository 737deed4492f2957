"""Locks by name that exist only while a thread holds or awaits them, so that the table does not grow with every claim."""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator


class KeyedLocks:
    """Reentrant locks: one name serialises its threads, different names do not block each other."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, threading.RLock] = {}
        self._users: Counter[str] = Counter()

    @contextlib.contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Hold the lock of a name; the same thread may enter again."""
        # The entry is counted before the lock is taken: it must not be deleted under a thread that waits for it.
        with self._guard:
            lock = self._locks.setdefault(name, threading.RLock())
            self._users[name] += 1
        try:
            with lock:
                yield
        finally:
            with self._guard:
                self._users[name] -= 1
                if not self._users[name]:
                    del self._users[name], self._locks[name]
