"""What was found out once and is kept: a seam to the ledger's facts, which this room may not know.

It refuses to interpret: a text by key.
"""

from typing import Protocol


class Facts(Protocol):
    """Text by key, durable."""

    def get(self, key: str) -> str | None:
        """Return what was last put under a key; None if nothing was."""
        ...

    def put(self, key: str, value: str) -> None:
        """Keep a text under a key, instead of what was there."""
        ...
