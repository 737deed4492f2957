"""Checks what pgpu needs of a cluster, with a remedy for each finding, and explains why a pod is pending.

Nothing is changed: objects are only tried as dry runs. What the caller may not read is reported as not checked.
"""

from collections.abc import Callable, Iterator

from pgpu.errors import ClusterAccessError, ClusterError, ClusterUnavailableError
from pgpu.kubernetes.api.cluster import ClusterInspector
from pgpu.kubernetes.doctor import cluster_checks, driver_checks
from pgpu.kubernetes.doctor.pending_pod import explain_pending_pod
from pgpu.model.finding import Finding, broken, weak

__all__ = ["CHECKS", "check_cluster", "explain_pending_pod"]

Check = Callable[[ClusterInspector], Iterator[Finding]]

CHECKS: tuple[tuple[str, Check], ...] = (
    ("API server", cluster_checks.version),
    ("API server", cluster_checks.resources),
    ("shared devices", cluster_checks.shared_devices),
    ("shared counters", cluster_checks.shared_counters),
    ("device taints", cluster_checks.device_taints),
    ("extended resources", cluster_checks.extended_resources),
    ("device classes", cluster_checks.classes),
    ("admission policy", cluster_checks.policy),
    ("rights of the driver", cluster_checks.rights),
    ("driver", driver_checks.pods),
    ("container runtimes", driver_checks.runtimes),
    ("slices", driver_checks.slices),
)
"""In an order in which causes come before their effects."""


def check_cluster(cluster: ClusterInspector) -> Iterator[Finding]:
    """Run all checks; one that fails by itself is a finding, and the others go on."""
    for name, check in CHECKS:
        try:
            yield from check(cluster)
        except ClusterUnavailableError as exc:
            yield broken(name, str(exc), exc.hint or "is the kubeconfig's server the right one, and does it run?")
            return
        except ClusterAccessError as exc:
            yield weak(name, f"not looked at: {exc}", "ask as an administrator of the cluster: --kubeconfig FILE")
        except ClusterError as exc:
            yield broken(name, str(exc), exc.hint)
