"""How well each GPU of this node is, for the kubelet's health stream and for taints.

This module refuses to act on an illness: who evicts a pod is the cluster.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


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
