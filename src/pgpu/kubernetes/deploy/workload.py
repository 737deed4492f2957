"""What is to run, as a value: everything that the manifests of one function are made of.

It refuses defaults of its own where a function's declaration has one: whoever makes it has read that.
"""

from dataclasses import dataclass, field
from enum import StrEnum


class Platform(StrEnum):
    """Which of a cluster's controllers runs the replicas."""

    DEPLOYMENT = "deployment"
    """Kubernetes' own: as many replicas as it is told, or as a HorizontalPodAutoscaler says."""

    KNATIVE = "knative"
    """Knative Serving: as many as calls need, down to none."""


@dataclass(frozen=True, slots=True)
class Share:
    """The slice of each replica."""

    gpus: int = 1
    """1 to 16, each a different GPU."""

    memory_bytes: int | None = None
    """Of each GPU; None: what the driver gives where nothing is said."""

    compute_share: float | None = None
    """Of each GPU's time, above 0 to 1; None: none asked."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """How many replicas there may be."""

    minimum: int = 0
    maximum: int = 1
    """At least 1."""

    idle_seconds: float = 300.0
    """How long the last replica stays without calls, where the platform goes down to none."""

    is_automatic: bool = False
    """Whether a Deployment has a HorizontalPodAutoscaler; Knative has its own."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of the function's source."""

    path: str
    """From its root, with `/` between its parts."""

    content: bytes
    is_executable: bool = False


@dataclass(frozen=True, slots=True)
class Workload:
    """One function on a cluster."""

    name: str
    image: str
    """With python3, pgpu and its extra `functions`."""

    app: str
    """`module:attribute` or `file.py:attribute`, below the source."""

    declaration: str
    """JSON of what the function declares, for its front."""

    source: tuple[SourceFile, ...] = ()
    """Mounted over `source_directory`; empty: the image holds it there."""

    source_directory: str = "/function"
    namespace: str | None = None
    """None: whoever applies the manifests says it."""

    share: Share | None = None
    """None: a function without a GPU."""

    scaling: Scaling = field(default_factory=Scaling)
    calls_at_once: int = 1
    """Of one replica: its lanes, times the largest batch."""

    timeout_seconds: float = 60.0
    startup_timeout_seconds: float = 300.0
    host_memory_bytes: int | None = None
    """Of each replica, its scratch beside it; None: not said."""

    cpu: str | None = None
    """CPU time that each replica asks for, as Kubernetes writes it: `500m`, `2`; None: not said."""

    is_public: bool = False
    """Whether callers outside of the cluster may reach it, where the platform has a door there."""

    ends_before_it_starts: bool = False
    """Whether a new version waits until the old one is gone: for a GPU that has no room for both."""
