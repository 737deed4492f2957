"""What the driver's service account must be allowed, verb by verb. deploy/ grants exactly this, and the doctor looks for it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Right:
    """Some verbs on one kind of objects, in all namespaces."""

    group: str
    """Empty for the core group."""

    resource: str
    verbs: tuple[str, ...]
    purpose: str
    """What does not work without it."""


DRIVER_RIGHTS = (
    Right(
        "resource.k8s.io",
        "resourceslices",
        ("list", "watch", "create", "update", "delete"),
        "the node's GPUs are not published",
    ),
    Right("resource.k8s.io", "resourceclaims", ("get",), "no claim can be prepared"),
    Right("", "nodes", ("get",), "slices outlive their node"),
    Right("events.k8s.io", "events", ("create",), "nobody is told why a claim is refused"),
)
