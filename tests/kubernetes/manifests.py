"""Objects that the cluster's tests apply, as values of JSON. It refuses to talk to a cluster."""

import os
from pathlib import Path
from typing import Any

Manifest = dict[str, Any]

IMAGE = os.environ.get("PGPU_KUBERNETES_IMAGE", "docker.io/library/python:3.11-slim")
"""Any image with Python 3 and glibc: a CUDA client comes as text, and CUDA itself with the slice."""

ALL_BYTES = 1 << 50
"""More than any GPU has."""

DRIVER = "gpu.pgpu.io"

_CLIENT = (Path(__file__).parent / "cuda_client.py").read_text()


def claim(
    name: str, *requests: Manifest, selector: str = "", parameters: Manifest | None = None, kind: str = "ResourceClaim"
) -> Manifest:
    """Return a ResourceClaim, or a template of one, of which every request is on devices that `selector` (CEL) admits."""
    for each in requests:
        if selector:
            each["exactly"]["selectors"] = [{"cel": {"expression": selector}}]
    devices: Manifest = {"requests": list(requests)}
    if parameters is not None:
        devices["config"] = [{"opaque": {"driver": DRIVER, "parameters": parameters}}]
    spec: Manifest = {"devices": devices}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec if kind == "ResourceClaim" else {"spec": spec},
    }


def template(name: str, *requests: Manifest, selector: str = "") -> Manifest:
    """Return a ResourceClaimTemplate: a claim of its own for each pod."""
    return claim(name, *requests, selector=selector, kind="ResourceClaimTemplate")


def part(memory: str, *, tolerates: str = "") -> Manifest:
    """Return a request for a slice, such as of `30Gi`, also of a GPU with a taint of this key."""
    wish: Manifest = {"deviceClassName": DRIVER, "capacity": {"requests": {"memory": memory}}}
    if tolerates:
        # 1.36 evicts in spite of a toleration that names no effect, though the API says that it means all of them.
        wish["tolerations"] = [{"key": tolerates, "operator": "Exists", "effect": "NoExecute"}]
    return {"name": "gpu", "exactly": wish}


def whole() -> Manifest:
    """Return a request for a GPU that nobody else uses."""
    return {"name": "gpu", "exactly": {"deviceClassName": f"whole.{DRIVER}"}}


def client(
    name: str = "client",
    *claims: str,
    most_bytes: int = ALL_BYTES,
    keep_seconds: int = 0,
    limits: Manifest | None = None,
) -> Manifest:
    """Return a container with a CUDA client, which takes what it gets of the pod's claims of these names, and keeps it (0: for ever)."""
    return {
        "name": name,
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-u", "-c", _CLIENT, str(most_bytes), str(keep_seconds)],
        "resources": {"claims": [{"name": each} for each in claims], "limits": limits or {}},
    }


def pod(
    node: str,
    name: str,
    *containers: Manifest,
    templates: dict[str, str] | None = None,
    claims: dict[str, str] | None = None,
    restarts: bool = False,
) -> Manifest:
    """Return a pod.

    Args:
        node: The only one that it may run on. Simulated GPUs of two nodes may have the same UUID.
        name: The pod's.
        containers: As `client` makes them.
        templates: By the pod's own name of a claim, the template that it is made of.
        claims: By the pod's own name of a claim, the claim.
        restarts: Whether containers that end are started again.
    """
    named = [{"name": own, "resourceClaimTemplateName": other} for own, other in (templates or {}).items()]
    named += [{"name": own, "resourceClaimName": other} for own, other in (claims or {}).items()]
    spec: Manifest = {
        "restartPolicy": "Always" if restarts else "Never",
        "terminationGracePeriodSeconds": 5,
        "automountServiceAccountToken": False,
        "containers": list(containers),
        "resourceClaims": named,
        "nodeSelector": {"kubernetes.io/hostname": node},
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
