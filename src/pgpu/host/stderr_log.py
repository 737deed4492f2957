"""What processes say that nobody sees: into a file that may lie on a full disk, so saying it never fails.

Python's own streams raise then, and keep what they could not write for their next flush, which raises again. This module
refuses to decide what is worth saying; but what is wrong all the time, as with a job that garbles its own files, is said once.
"""

import os
import re
import traceback
from contextlib import suppress

_STDERR = 2

_MOST_KINDS = 100
"""Of complaints: beyond these, something makes ever new ones."""


def say(words: str) -> None:
    """Write a line to standard error, or let it go."""
    with suppress(OSError):
        os.write(_STDERR, f"{words}\n".encode("utf-8", "replace"))


def say_traceback() -> None:
    """Write where the exception that is being handled came from, or let it go."""
    say(traceback.format_exc().rstrip())


class Complaints:
    """What one supervisor says of one job: each kind once. Those that differ in numbers alone are one kind."""

    def __init__(self) -> None:
        self._kinds: set[str] = set()

    def say(self, words: object) -> None:
        """Write a line to standard error, unless one of its kind was written."""
        kind = re.sub(r"\d+", "0", str(words))
        if kind not in self._kinds and len(self._kinds) < _MOST_KINDS:
            self._kinds.add(kind)
            say(str(words))
