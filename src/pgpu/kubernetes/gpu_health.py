"""How well each GPU of this node is, for the kubelet's health stream and for taints.

This module refuses to act on an illness: who evicts a pod is the cluster.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from pgpu.errors import NodeError
from pgpu.model import Gpu


class HealthState(StrEnum):
    """What is known of a GPU."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Health:
    """One GPU's state at one moment."""

    gpu_uuid: str
    state: HealthState
    reason: str = ""
    """In one line what is wrong; empty of a healthy GPU."""

    xid: int | None = None
    """Number of the driver's fatal error that was seen; None where there was none."""

    since_seconds: float = 0.0
    """Since when it is in this state, in seconds since the epoch."""


class HealthSource(Protocol):
    """Who knows how the GPUs are. Safe to ask from several threads."""

    def health(self) -> Mapping[str, Health]:
        """Return the health of every GPU that this node has, or had when the driver began, by UUID."""
        ...


class GpuHealth:
    """What the GPUs' driver says: a GPU is ill after a fatal error, and when it is not listed any more."""

    def __init__(
        self,
        gpus: Callable[[], Sequence[Gpu]],
        xids: Callable[[], Mapping[str, int]],
        now_seconds: Callable[[], float] = time.time,
    ) -> None:
        """Args: who lists the GPUs, who tells the last fatal Xid of each, and the clock."""
        self._gpus = gpus
        self._xids = xids
        self._now_seconds = now_seconds
        self._guard = threading.Lock()
        self._last: dict[str, Health] = {}

    def health(self) -> Mapping[str, Health]:
        """See `HealthSource.health`."""
        with self._guard:
            found = self._look()
            self._last = {uuid: self._since(found[uuid]) for uuid in found}
            return dict(self._last)

    def _look(self) -> dict[str, Health]:
        try:
            listed, xids = {gpu.uuid: gpu for gpu in self._gpus()}, self._xids()
        except NodeError as exc:
            return {uuid: Health(uuid, HealthState.UNKNOWN, str(exc)) for uuid in self._last}
        return {uuid: _health(uuid, listed.get(uuid), xids) for uuid in [*self._last, *listed]}

    def _since(self, now: Health) -> Health:
        last = self._last.get(now.gpu_uuid)
        is_new = last is None or (last.state, last.xid) != (now.state, now.xid)
        return replace(now, since_seconds=self._now_seconds() if last is None or is_new else last.since_seconds)


def _health(gpu_uuid: str, listed: Gpu | None, xids: Mapping[str, int]) -> Health:
    # An instance is as ill as the GPU that it is part of.
    xid = xids.get(gpu_uuid if listed is None or listed.parent_uuid is None else listed.parent_uuid)
    if xid is not None:
        return Health(gpu_uuid, HealthState.UNHEALTHY, f"the driver tells of a fatal error, Xid {xid}", xid)
    if listed is None:
        return Health(gpu_uuid, HealthState.UNHEALTHY, "the driver does not list it any more")
    return Health(gpu_uuid, HealthState.HEALTHY)


class HealthChangeNotifier:
    """Tells that a GPU's health has changed since the last look."""

    def __init__(self, source: HealthSource, changed: Callable[[], None]) -> None:
        """Args: who knows, and who is told; that must not wait."""
        self._source = source
        self._changed = changed
        self._last: Mapping[str, Health] | None = None

    def look(self) -> None:
        """Look once."""
        now = self._source.health()
        if self._last is not None and now != self._last:
            self._changed()
        self._last = now
