"""Which container of this node has which slice, as the kubelet tells it (podresources v1).

It needs no API server and no rights but to the kubelet's socket. This room refuses to remember: what it returns is what the
kubelet said a moment ago, and where the kubelet is away nobody knows.

Source: k8s.io/kubelet/pkg/apis/podresources/v1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ClaimDevice:
    """One device that a ResourceClaim got."""

    driver: str
    pool: str
    device: str

    share_id: str | None
    """Which share of a device that many claims have; None where it is one claim's alone."""

    cdi_ids: tuple[str, ...]
    """Fully qualified: `vendor/class=name`."""


@dataclass(frozen=True, slots=True)
class ContainerClaim:
    """A ResourceClaim that one container uses; others may use it, too."""

    namespace: str
    name: str
    devices: tuple[ClaimDevice, ...]


@dataclass(frozen=True, slots=True)
class ContainerUnits:
    """Devices of a device plugin that one container has."""

    resource: str
    """As pods ask for it, such as `pgpu.io/gpu-memory-gib`."""

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a pod: also a sidecar, never an init container that ends."""

    name: str
    claims: tuple[ContainerClaim, ...]
    units: tuple[ContainerUnits, ...]


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod that the kubelet looks after."""

    namespace: str
    name: str
    containers: tuple[Container, ...]


class PodResources(Protocol):
    """Who knows the pods of this node. Safe to ask from several threads."""

    def pods(self) -> Sequence[Pod]:
        """Return all pods, those that end left out by newer kubelets.

        For a moment after its start a kubelet knows none.

        Raises:
            KubeletAwayError: It does not answer.
        """
        ...

    def pod(self, namespace: str, name: str) -> Pod | None:
        """Return one pod; None where the kubelet knows no such, or is too old to say.

        Raises:
            KubeletAwayError: It does not answer.
        """
        ...
