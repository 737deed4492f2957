"""The order of the checks of a cluster; one that fails by itself is a finding, never the end of the examination."""

from collections.abc import Callable, Iterator

from pgpu.errors import ClusterAccessError, ClusterError, ClusterUnavailableError
from pgpu.kubernetes.api.looking import Onlooker
from pgpu.kubernetes.doctor import driver, features, installation, server
from pgpu.model.finding import Finding, broken, weak

Check = Callable[[Onlooker], Iterator[Finding]]

CHECKS: tuple[tuple[str, Check], ...] = (
    ("API server", server.version),
    ("API server", server.resources),
    ("shared devices", features.shared_devices),
    ("shared counters", features.shared_counters),
    ("device taints", features.device_taints),
    ("extended resources", features.extended_resources),
    ("device classes", installation.classes),
    ("admission policy", installation.policy),
    ("rights of the driver", installation.rights),
    ("driver", driver.pods),
    ("container runtimes", driver.runtimes),
    ("slices", driver.slices),
)


def examine(cluster: Onlooker) -> Iterator[Finding]:
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
