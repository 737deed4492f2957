"""Which Kubernetes it is, and whether it knows the objects that pgpu works with."""

import re
from collections.abc import Iterator

from pgpu.kubernetes.api.cluster import ClusterInspector
from pgpu.model.finding import Finding, broken, fine, weak

_GROUP = "resource.k8s.io/v1"
_NEEDED = ("DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice")
_LEAST = (1, 34)
_ON_BY_DEFAULT = (1, 36)
_VERSION = re.compile(r"v?(\d+)\.(\d+)")

_DEVICE_PLUGIN = "use a newer Kubernetes, or the device plugin: kubectl apply -k deploy/kubernetes/device-plugin"


def version(cluster: ClusterInspector) -> Iterator[Finding]:
    """Compare the API server's version with those that share devices."""
    told = cluster.version()
    found = minor(told)
    if found is None or found >= _ON_BY_DEFAULT:
        yield fine("API server", f"Kubernetes {told}")
    elif found >= _LEAST:
        yield weak(
            "API server",
            f"Kubernetes {told}: what pgpu needs is there, and off unless feature gates turn it on",
            "see which below; they must be on in kube-apiserver, kube-scheduler and every kubelet. Or use 1.36",
        )
    else:
        yield broken("API server", f"Kubernetes {told} cannot share devices among claims: 1.34 can", _DEVICE_PLUGIN)


def resources(cluster: ClusterInspector) -> Iterator[Finding]:
    """Ask for the kinds of dynamic resource allocation."""
    served = cluster.kinds_served(_GROUP)
    missing = [kind for kind in _NEEDED if kind not in served]
    if missing:
        yield broken("API server", f"{_GROUP} serves no {', '.join(missing)}", _DEVICE_PLUGIN)
    else:
        yield fine("API server", f"{_GROUP} is served")


def minor(told: str) -> tuple[int, int] | None:
    """Read a version's first two numbers: `v1.36.2-gke.1` is (1, 36). None where it has none."""
    read = _VERSION.match(told)
    return None if read is None else (int(read[1]), int(read[2]))
