"""What the driver needs of a node and of the cluster: a container runtime that reads CDI files, and rights of its account. Pure."""

import re

from pgpu.errors import NodeError
from pgpu.structs import Struct

# First versions that read the field in which a kubelet names CDI devices. Source: kubernetes/kubernetes#126435,
# containerd/containerd#8519.
_LEAST = {"containerd": (1, 7, 2), "cri-o": (1, 28, 0)}

_ENABLED_BY_DEFAULT = {"containerd": (2, 0, 0), "cri-o": (1, 28, 0)}
# From here on the kubelet passes the CDI names of device plugins to the runtime, without a switch. Source: KEP-4009.
_KUBELET_FOR_PLUGINS = (1, 31, 0)

_NUMBERS = r"v?(?P<major>[0-9]{1,4})\.(?P<minor>[0-9]{1,4})(?:\.(?P<patch>[0-9]{1,4}))?"
_RUNTIME = re.compile(rf"(?P<name>[a-z-]+)://{_NUMBERS}", re.ASCII)
_KUBELET = re.compile(_NUMBERS, re.ASCII)


def check_runtime(runtime: str) -> str | None:
    """Return a warning for the operator, or None. A runtime without CDI starts pods without their slice, and without an error.

    Args:
        runtime: `containerRuntimeVersion` of the Node, such as `containerd://2.1.9`.

    Raises:
        NodeError: That runtime does not read CDI files.
    """
    match = _RUNTIME.match(runtime)
    # Other runtimes and forks of these are neither refused nor trusted.
    if match is None or match["name"] not in _LEAST:
        return f"whether {runtime or 'the container runtime'} reads CDI files is not known: see that it does"
    name, version = match["name"], _version(match)
    if version < _LEAST[name]:
        least = ".".join(map(str, _LEAST[name]))
        raise NodeError(
            f"{runtime} does not read CDI files: pods would start without their slice",
            hint=f"{name} {least} or newer is needed",
        )
    if version < _ENABLED_BY_DEFAULT[name]:
        return f"{runtime} reads CDI files only with enable_cdi = true in its configuration: see that it is set"
    return None


def passes_cdi_of_plugins(runtime: str, kubelet: str) -> bool:
    """Whether a device plugin's CDI names certainly reach containers; False if that cannot be determined."""
    of_runtime, of_kubelet = _RUNTIME.match(runtime), _KUBELET.match(kubelet)
    if of_runtime is None or of_kubelet is None or of_runtime["name"] not in _ENABLED_BY_DEFAULT:
        return False
    has_cdi = _version(of_runtime) >= _ENABLED_BY_DEFAULT[of_runtime["name"]]
    return has_cdi and _version(of_kubelet) >= _KUBELET_FOR_PLUGINS


def _version(match: re.Match[str]) -> tuple[int, int, int]:
    return int(match["major"]), int(match["minor"]), int(match["patch"] or 0)


class Right(Struct, frozen=True):
    """Verbs on one kind of objects, in all namespaces."""

    group: str
    """Empty for the core group."""

    resource: str
    verbs: tuple[str, ...]
    purpose: str
    """What fails without it."""


DRIVER_RIGHTS = (
    Right(
        "resource.k8s.io",
        "resourceslices",
        ("list", "watch", "create", "update", "delete"),
        "the node's GPUs are not published",
    ),
    Right("resource.k8s.io", "resourceclaims", ("get",), "no claim can be prepared"),
    Right("", "nodes", ("get",), "slices outlive their node"),
    Right("", "pods", ("get",), "a pod takes over from one that leaves only after the kubelet's back-off"),
    Right("events.k8s.io", "events", ("create",), "users see no reason why a claim is refused"),
)
"""Rights of the driver's service account: deploy/ grants exactly these, and the doctor checks them."""
