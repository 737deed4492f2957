"""What pgpu reads of a cluster's objects, as frozen values. Nothing here asks or decides."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ObjectName:
    """Which object an event is about."""

    api_version: str
    """Such as `v1` or `resource.k8s.io/v1`."""

    kind: str
    name: str
    namespace: str = ""
    """Empty for what lies in none, such as a Node."""

    uid: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """One machine of the cluster."""

    name: str
    uid: str
    runtime: str = ""
    """What runs its containers and which version, such as `containerd://2.1.9`; empty where it does not say."""

    kubelet: str = ""
    """Which version, such as `v1.36.2`; likewise."""

    @property
    def object_name(self) -> ObjectName:
        """How events name it."""
        return ObjectName("v1", "Node", self.name, uid=self.uid)


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """One device that the scheduler chose for one request of a claim."""

    request: str
    """Name of the request in the claim; `request/subrequest` where one of several was chosen."""

    driver: str
    pool: str
    device: str
    share_id: str | None = None
    """Which share of a device that several claims have; None of a device that one claim has alone."""

    consumed: Mapping[str, int] = field(default_factory=dict)
    """By name of the capacity what the scheduler took of it, in its unit, parts rounded up; empty of a whole device."""

    has_admin_access: bool = False
    """Whether the request was for a look at a device that others hold."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """Opaque parameters for one driver, as the scheduler copied them into the allocation."""

    is_from_class: bool
    """Whether a DeviceClass, which administrators write, says so; else the claim, which anybody may write."""

    driver: str
    parameters: Mapping[str, Any]
    """JSON of the driver's own kind."""

    requests: tuple[str, ...] = ()
    """For which requests of the claim; empty: for all."""


@dataclass(frozen=True, slots=True)
class ClaimUser:
    """Who may use a claim now."""

    resource: str
    """Usually `pods`."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """A claim on devices, and what the scheduler gave it."""

    namespace: str
    name: str
    uid: str
    devices: tuple[AllocatedDevice, ...] = ()
    """Of all drivers, in the scheduler's order; empty where nothing is allocated."""

    configurations: tuple[Configuration, ...] = ()
    """Of all drivers, in the order in which they were given: a later one of the same source says more precisely."""

    users: tuple[ClaimUser, ...] = ()

    @property
    def object_name(self) -> ObjectName:
        """How events name it."""
        return ObjectName("resource.k8s.io/v1", "ResourceClaim", self.name, self.namespace, self.uid)
