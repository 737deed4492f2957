"""What still keeps this node's driver from working, by subject: for `/readyz`, and for its operator at the moment it changes."""

import threading
from collections.abc import Callable, Mapping


class Readiness:
    """The subjects that must be in order, and what is wrong with each. Safe for many threads."""

    def __init__(self, say: Callable[[str], None], subjects: tuple[str, ...] = ()) -> None:
        """Nothing is in order yet.

        Args:
            say: Takes one line for the operator, whenever something changes.
            subjects: What must be told to be in order before the driver is ready, such as `registered with the kubelet`.
        """
        self._say = say
        self._guard = threading.Lock()
        self._wrong: dict[str, str] = dict.fromkeys(subjects, "not yet")

    def wrong(self, subject: str, why: str) -> None:
        """Note what keeps something from working; said where it is news."""
        with self._guard:
            is_news = self._wrong.get(subject) != why
            self._wrong[subject] = why
        if is_news:
            self._say(f"{subject}: {why}")

    def right(self, subject: str) -> None:
        """Note that something works; said where it did not."""
        with self._guard:
            was_wrong = self._wrong.pop(subject, None)
        if was_wrong is not None:
            self._say(f"{subject}: in order")

    def reasons(self) -> Mapping[str, str]:
        """Return what is wrong, by subject; empty where the driver is ready."""
        with self._guard:
            return dict(self._wrong)
