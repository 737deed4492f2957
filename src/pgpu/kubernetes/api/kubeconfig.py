"""Which kubeconfig somebody at a terminal means: the one that kubectl would take."""

import os
from collections.abc import Mapping
from pathlib import Path


def default_kubeconfig(named: Path | None, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the kubeconfig that was named, else the first of KUBECONFIG, else the user's own; None: that of the pod."""
    if named is not None:
        return named
    first = environment.get("KUBECONFIG", "").split(os.pathsep)[0]
    if first:
        return Path(first)
    own = Path(environment.get("HOME", "/"), ".kube", "config")
    return own if own.is_file() or "KUBERNETES_SERVICE_HOST" not in environment else None
