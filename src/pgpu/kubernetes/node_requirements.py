"""Whether a node's container runtime reads CDI files: one that does not starts pods without their slice, and says nothing. Pure."""

import re

from pgpu.errors import NodeError

_LEAST = {"containerd": (1, 7, 2), "cri-o": (1, 28, 0)}
"""From here on they read the field in which a kubelet names CDI devices. Source: kubernetes/kubernetes#126435, containerd/containerd#8519."""

_ON_WITHOUT_ASKING = {"containerd": (2, 0, 0), "cri-o": (1, 28, 0)}
_KUBELET_FOR_PLUGINS = (1, 31, 0)
"""From here on it hands the CDI names of device plugins to the runtime, and nobody can switch that off. Source: KEP-4009."""

_NUMBERS = r"v?(?P<major>[0-9]{1,4})\.(?P<minor>[0-9]{1,4})(?:\.(?P<patch>[0-9]{1,4}))?"
_RUNTIME = re.compile(rf"(?P<name>[a-z-]+)://{_NUMBERS}", re.ASCII)
_KUBELET = re.compile(_NUMBERS, re.ASCII)


def check_runtime(said: str) -> str | None:
    """Return what an operator should look at, or None.

    Args:
        said: `containerRuntimeVersion` of the Node, such as `containerd://2.1.9`.

    Raises:
        NodeError: That runtime does not know CDI.
    """
    match = _RUNTIME.match(said)
    if match is None or match["name"] not in _LEAST:
        return f"whether {said or 'the container runtime'} reads CDI files is not known: see that it does"
    name, version = match["name"], _version(match)
    if version < _LEAST[name]:
        least = ".".join(map(str, _LEAST[name]))
        raise NodeError(
            f"{said} does not read CDI files: pods would start without their slice",
            hint=f"{name} {least} or newer is needed",
        )
    if version < _ON_WITHOUT_ASKING[name]:
        return f"{said} reads CDI files only with enable_cdi = true in its configuration: see that it is set"
    return None


def hands_on_cdi_of_plugins(runtime: str, kubelet: str) -> bool:
    """Whether a device plugin's CDI names surely reach containers; false where that cannot be told."""
    runs, asks = _RUNTIME.match(runtime), _KUBELET.match(kubelet)
    if runs is None or asks is None or runs["name"] not in _ON_WITHOUT_ASKING:
        return False
    return _version(runs) >= _ON_WITHOUT_ASKING[runs["name"]] and _version(asks) >= _KUBELET_FOR_PLUGINS


def _version(match: re.Match[str]) -> tuple[int, int, int]:
    return int(match["major"]), int(match["minor"]), int(match["patch"] or 0)
