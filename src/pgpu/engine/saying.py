"""What processes say that nobody sees: into a file that may lie on a full disk, so saying it never fails.

Python's own streams raise then, and keep what they could not write for their next flush, which raises again. This module
refuses to decide what is worth saying.
"""

import os
import traceback
from contextlib import suppress

_STDERR = 2


def say(words: str) -> None:
    """Write a line to standard error, or let it go."""
    with suppress(OSError):
        os.write(_STDERR, f"{words}\n".encode("utf-8", "replace"))


def say_traceback() -> None:
    """Write where the exception that is being handled came from, or let it go."""
    say(traceback.format_exc().rstrip())
