"""Protocol for a durable cache of measured facts. The ledger implements it; this room does not import the ledger."""

from typing import Protocol


class Facts(Protocol):
    """Durable text by key."""

    def get(self, key: str) -> str | None:
        """Return the last value of a key; None if there is none."""
        ...

    def put(self, key: str, value: str) -> None:
        """Store the value of a key, replacing the previous one."""
        ...
