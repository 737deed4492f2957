"""One lock for each name, for as long as somebody wants it. It refuses to grow with names that nobody uses any more."""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator


class KeyedLocks:
    """What is done under one name is done one after the other; different names do not wait for each other."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._askers: Counter[str] = Counter()

    @contextlib.contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Hold the lock of a name meanwhile."""
        with self._guard:
            lock = self._locks.setdefault(name, threading.Lock())
            self._askers[name] += 1
        try:
            with lock:
                yield
        finally:
            with self._guard:
                self._askers[name] -= 1
                if not self._askers[name]:
                    del self._askers[name], self._locks[name]
