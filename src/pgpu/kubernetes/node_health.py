"""Health of a node: the state of each GPU, for taints and the kubelet's health stream, and what keeps its driver from working.

Nothing here acts on a failure: the cluster evicts pods, and the operator repairs the node.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from pgpu.errors import NodeError, PgpuError
from pgpu.model import Gpu
from pgpu.structs import Struct, replace

_log = logging.getLogger(__name__)


class HealthState(StrEnum):
    """State of a GPU."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


class HealthReport(Struct, frozen=True):
    """One GPU's state at one moment."""

    gpu_uuid: str
    state: HealthState
    reason: str = ""
    """One line; empty for a healthy GPU."""

    xid: int | None = None
    """Number of the driver's last fatal error; None: there was none."""

    since_seconds: float = 0.0
    """Start of this state, in seconds since the epoch."""


class HealthSource(Protocol):
    """Source of the GPUs' health. Thread-safe."""

    def health(self) -> Mapping[str, HealthReport]:
        """Return by UUID the health of every GPU that this node has, or had when the driver began."""
        ...


class GpuHealth:
    """Health as the GPU driver reports it: a GPU is unhealthy after a fatal error, and when it is no longer listed."""

    def __init__(
        self,
        gpus: Callable[[], Sequence[Gpu]],
        xids: Callable[[], Mapping[str, int]],
        now_seconds: Callable[[], float] = time.time,
    ) -> None:
        """Args: lists the GPUs, returns the last fatal Xid by UUID, and the clock."""
        self._gpus = gpus
        self._xids = xids
        self._now_seconds = now_seconds
        self._guard = threading.Lock()
        self._last: dict[str, HealthReport] = {}

    def health(self) -> Mapping[str, HealthReport]:
        """See `HealthSource.health`."""
        with self._guard:
            # One reading at a time: `_last` must follow the order of the readings.
            found = {}
            for uuid, now in self._read().items():
                last = self._last.get(uuid)
                is_same = last is not None and (last.state, last.xid) == (now.state, now.xid)
                since_seconds = last.since_seconds if last is not None and is_same else self._now_seconds()
                found[uuid] = replace(now, since_seconds=since_seconds)
            self._last = found
            return dict(found)

    def _read(self) -> dict[str, HealthReport]:
        try:
            listed, xids = {gpu.uuid: gpu for gpu in self._gpus()}, self._xids()
        except NodeError as exc:
            return {uuid: HealthReport(uuid, HealthState.UNKNOWN, str(exc)) for uuid in self._last}
        # GPUs seen before stay in the result: a lost GPU is unhealthy, not absent.
        return {uuid: _health(uuid, listed.get(uuid), xids) for uuid in [*self._last, *listed]}


def _health(gpu_uuid: str, listed: Gpu | None, xids: Mapping[str, int]) -> HealthReport:
    # The driver reports errors of a MIG instance under the UUID of its GPU.
    xid = xids.get(gpu_uuid if listed is None or listed.parent_uuid is None else listed.parent_uuid)
    if xid is not None:
        return HealthReport(gpu_uuid, HealthState.UNHEALTHY, f"the driver reports a fatal error, Xid {xid}", xid)
    if listed is None:
        return HealthReport(gpu_uuid, HealthState.UNHEALTHY, "the driver does not list it any more")
    return HealthReport(gpu_uuid, HealthState.HEALTHY)


class HealthChangeNotifier:
    """Calls a function when a GPU's health has changed between two polls."""

    def __init__(self, source: HealthSource, changed: Callable[[], None]) -> None:
        """`changed` must not wait."""
        self._source = source
        self._changed = changed
        self._last: Mapping[str, HealthReport] | None = None

    def poll(self) -> None:
        """Read the health once; the first poll only stores it."""
        now = self._source.health()
        if self._last is not None and now != self._last:
            self._changed()
        self._last = now


class DriverReadiness:
    """What keeps a driver from working, by subject: served at `/readyz`, and logged when it changes. Thread-safe."""

    def __init__(self, subjects: tuple[str, ...] = ()) -> None:
        """Start with subjects that must work before the driver is ready, such as `registered with the kubelet`."""
        self._guard = threading.Lock()
        self._problems: dict[str, str] = dict.fromkeys(subjects, "not yet")

    def set_problem(self, subject: str, reason: str) -> None:
        """Note what keeps a subject from working; logged if it is new."""
        with self._guard:
            is_new = self._problems.get(subject) != reason
            self._problems[subject] = reason
        if is_new:
            _log.warning("%s: %s", subject, reason)

    def set_working(self, subject: str) -> None:
        """Note that a subject works; logged if it did not."""
        with self._guard:
            was_broken = self._problems.pop(subject, None) is not None
        if was_broken:
            _log.info("%s: in order", subject)

    def attempt(self, subject: str, act: Callable[[], object]) -> bool:
        """Do something and note the result; a bug is noted, too, so that the caller's loop goes on. Returns whether it worked."""
        try:
            act()
        except PgpuError as exc:
            self.set_problem(subject, f"{exc} ({exc.hint})" if exc.hint else str(exc))
        except Exception as exc:  # noqa: BLE001 - a driver whose loop ended would leave pods hanging
            self.set_problem(subject, f"a bug of pgpu: {exc!r}")
        else:
            self.set_working(subject)
            return True
        return False

    def problems(self) -> Mapping[str, str]:
        """Return what keeps each subject from working; empty: the driver is ready."""
        with self._guard:
            return dict(self._problems)
