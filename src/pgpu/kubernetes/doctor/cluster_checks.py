"""The order of the checks of a cluster; one that fails by itself is a finding, never the end of the examination."""

from collections.abc import Callable, Iterator

from pgpu.errors import ClusterAccessError, ClusterError, ClusterUnavailableError
from pgpu.kubernetes.api.cluster import ClusterInspector
from pgpu.kubernetes.doctor import driver_checks, feature_checks, installation_checks, server_checks
from pgpu.model.finding import Finding, broken, weak

Check = Callable[[ClusterInspector], Iterator[Finding]]

CHECKS: tuple[tuple[str, Check], ...] = (
    ("API server", server_checks.version),
    ("API server", server_checks.resources),
    ("shared devices", feature_checks.shared_devices),
    ("shared counters", feature_checks.shared_counters),
    ("device taints", feature_checks.device_taints),
    ("extended resources", feature_checks.extended_resources),
    ("device classes", installation_checks.classes),
    ("admission policy", installation_checks.policy),
    ("rights of the driver", installation_checks.rights),
    ("driver", driver_checks.pods),
    ("container runtimes", driver_checks.runtimes),
    ("slices", driver_checks.slices),
)


def check_cluster(cluster: ClusterInspector) -> Iterator[Finding]:
    """Look at everything, in an order in which causes come before their effects."""
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
