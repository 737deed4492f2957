"""What a handler may know of the request that it serves; it asks for it with a parameter `ctx: pgpu.Context`.

It refuses to change anything: a handler cannot answer through it or extend its deadline.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Context:
    """One request, as its handler sees it. Made without a server, as in a test, it has no deadline and goes on."""

    request_id: str = ""
    """The id that the caller gets in `X-Request-Id`, and that the log has."""

    headers: Mapping[str, str] = field(default_factory=dict)
    """The request's headers, names in lower case."""

    deadline_seconds: float | None = None
    """When the caller stops waiting, on the clock of `time.monotonic()`; None: never."""

    ask_cancelled: Callable[[], bool] = _never
    """How `is_cancelled` finds out."""

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody waits for the answer any more: the caller left, or its deadline passed."""
        return self.ask_cancelled() or self.remaining_seconds() <= 0

    def remaining_seconds(self) -> float:
        """Seconds until the caller stops waiting; infinite without a deadline, negative after it."""
        return float("inf") if self.deadline_seconds is None else self.deadline_seconds - time.monotonic()
