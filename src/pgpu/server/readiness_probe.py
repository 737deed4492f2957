"""Whether a server can do its work now, part by part, and why not.

Ready means that a request would be accepted and started. A container engine that is away is told and makes nobody unready:
processes still run, and containers wait.
"""

import threading
import time
from dataclasses import dataclass

from pgpu.engine.engine import Engine
from pgpu.errors import PgpuError
from pgpu.ledger import Ledger
from pgpu.server.maintenance import Maintenance

_PATIENCE_SECONDS = 1.0
_KEPT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Check:
    """One part."""

    name: str
    """`ledger`, `gpus`, `jobs` or `docker`."""

    is_good: bool
    is_needed: bool
    """Whether nothing can be accepted without it."""

    message: str | None
    """Why it is not good, in one line; None if it is, or if the caller may not know."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """All parts at one moment."""

    is_ready: bool
    checks: tuple[Check, ...]


class ReadinessProbe:
    """Examines one server, at most once a second however many ask."""

    def __init__(self, engine: Engine, caretaker: Maintenance) -> None:
        self._engine = engine
        self._caretaker = caretaker
        self._probe = Ledger(engine.ledger.path, busy_timeout_seconds=_PATIENCE_SECONDS)
        self._guard = threading.Lock()
        self._found: tuple[float, Readiness] | None = None

    def examine(self) -> Readiness:
        """Return how it is, as of this second."""
        with self._guard:
            if self._found is None or time.monotonic() - self._found[0] > _KEPT_SECONDS:
                self._found = time.monotonic(), self._examined()
            return self._found[1]

    def _examined(self) -> Readiness:
        needed = (
            _check("ledger", self._ledger_trouble()),
            _check("gpus", self._gpu_trouble()),
            _check("jobs", self._caretaker.trouble),
        )
        docker = _check("docker", self._caretaker.docker_trouble, is_needed=False)
        return Readiness(all(check.is_good for check in needed), (*needed, docker))

    def _ledger_trouble(self) -> str | None:
        """Write: a full disk, a lock that is not let go of and a file system gone read-only are found only so."""
        try:
            self._probe.facts.put("server examined", str(time.time()))
        except PgpuError as exc:
            return str(exc)
        return None

    def _gpu_trouble(self) -> str | None:
        try:
            return None if self._engine.gpus.gpus() else "no GPU was found"
        except PgpuError as exc:
            return str(exc)


def _check(name: str, trouble: str | None, *, is_needed: bool = True) -> Check:
    return Check(name, trouble is None, is_needed, trouble)
