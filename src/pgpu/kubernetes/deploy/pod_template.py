"""The pod of a replica: its one container, the front with its worker behind it, and what that may do. Pure.

It runs as nobody in particular, with no capability, a root that cannot be written and no token of the cluster. What it
may write is its scratch at `/tmp`. The slice comes with the claim: driver libraries, limits and environment are mounted by
the runtime. It refuses volumes and secrets: whoever needs them adds them to the manifests, or to what was deployed.
"""

import math

from pgpu.kubernetes.api.resources import quantity_of
from pgpu.kubernetes.deploy.claim_template import described
from pgpu.kubernetes.deploy.object_names import APP_ANNOTATION, SLICE_ANNOTATION, Manifest, metadata
from pgpu.kubernetes.deploy.source_config_map import items, source_name
from pgpu.kubernetes.deploy.workload import Workload
from pgpu.units import GIB, MIB

PORT = 8080
METRICS_PATH = "/metrics"
CLAIM = "slice"
"""The pod's name for its claim."""

_READY, _LIVE = "/v2/health/ready", "/v2/health/live"
_SOCKETS, _SCRATCH = "/run/pgpu-function", "/tmp"  # noqa: S108 - the container's own
_NOBODY = 65532
"""The user and group that images without root use by convention."""

_USUAL_HOST_MEMORY_BYTES = 4 * GIB
"""The limit where nothing is said, as of a sealed container elsewhere; what is asked for then is less."""

_LEAST_MEMORY_BYTES, _LEAST_CPU = 256 * MIB, "250m"
_PROBE_SECONDS, _PROBE_TIMEOUT_SECONDS, _LIVE_FAILURES = 10, 5, 3
_LATER_SECONDS = 30
"""The front gives up on a slow start first, and says why in the log."""


def container(workload: Workload, claim: str | None) -> Manifest:
    """Return the container of a replica.

    Args:
        workload: What runs.
        claim: The pod's name for the claim that the container gets; None: it has none.
    """
    return {
        "name": "function",
        "image": workload.image,
        # The former name of `pgpu.functions.replica`: an image may hold an earlier version of pgpu.
        "command": ["python3", "-P", "-m", "pgpu.functions.front"],
        "args": [word.replace("$", "$$") for word in _words(workload)],  # $(NAME) is Kubernetes' to replace
        "workingDir": workload.source_directory,
        "env": [{"name": name, "value": value} for name, value in _ENVIRONMENT.items()],
        "ports": [{"containerPort": PORT, "protocol": "TCP"}],
        "resources": _resources(workload, claim),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "runAsGroup": _NOBODY,
            "runAsNonRoot": True,
            "runAsUser": _NOBODY,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": _mounts(workload),
        **probes(workload),
    }


def pod(workload: Workload, claim: str | None = None) -> Manifest:
    """Return what a pod's spec says beside what its controller adds, with the container's claim if it has one."""
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [container(workload, claim)],
        "volumes": _volumes(workload),
    }


def annotated(workload: Workload) -> Manifest:
    """Return the metadata of what runs the pods, with what `pgpu functions` shows of them."""
    shown = {APP_ANNOTATION: workload.app, SLICE_ANNOTATION: described(workload.share)}
    return {**metadata(workload.name, workload.name, workload.namespace), "annotations": shown}


def scrape_annotations() -> dict[str, str]:
    """Return what tells Prometheus, by its usual convention, that a replica counts its calls."""
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(PORT),
        "prometheus.io/path": METRICS_PATH,
    }


def whole_seconds(seconds: float) -> int:
    """Round up to seconds, 1 at least: fields of Kubernetes take nothing smaller."""
    return max(1, math.ceil(seconds))


def probes(workload: Workload) -> Manifest:
    """Return how the kubelet asks: whether it has started, whether it takes calls, and whether its front answers at all."""
    often = whole_seconds(workload.startup_timeout_seconds) + _LATER_SECONDS
    return {
        "startupProbe": _probe(_READY, period_seconds=1, failures=often),
        "readinessProbe": _probe(_READY, period_seconds=_PROBE_SECONDS // 2, failures=1),
        "livenessProbe": _probe(_LIVE, period_seconds=_PROBE_SECONDS, failures=_LIVE_FAILURES),
    }


def _probe(path: str, *, period_seconds: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": path, "port": PORT},
        "periodSeconds": period_seconds,
        "timeoutSeconds": _PROBE_TIMEOUT_SECONDS,
        "successThreshold": 1,
        "failureThreshold": failures,
    }


_ENVIRONMENT = {
    "HOME": _SCRATCH,
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
}


def _words(workload: Workload) -> tuple[str, ...]:
    return (
        *("--app", workload.app),
        *("--source", workload.source_directory),
        *("--directory", _SOCKETS),
        *("--http", f"0.0.0.0:{PORT}"),
        *("--name", workload.name),
        *("--declaration", workload.declaration),
    )


def _resources(workload: Workload, claim: str | None) -> Manifest:
    said = workload.host_memory_bytes
    asked = quantity_of(_LEAST_MEMORY_BYTES if said is None else said)
    claims = {} if claim is None else {"claims": [{"name": claim}]}
    return {
        "requests": {"cpu": workload.cpu or _LEAST_CPU, "memory": asked},
        "limits": {"memory": quantity_of(said or _USUAL_HOST_MEMORY_BYTES)},
        **claims,
    }


def _mounts(workload: Workload) -> list[Manifest]:
    own = [{"name": "scratch", "mountPath": _SCRATCH}, {"name": "sockets", "mountPath": _SOCKETS}]
    if not workload.source:
        return own
    return [*own, {"name": "source", "mountPath": workload.source_directory, "readOnly": True}]


def _volumes(workload: Workload) -> list[Manifest]:
    size = quantity_of(workload.host_memory_bytes or _USUAL_HOST_MEMORY_BYTES)
    own: list[Manifest] = [
        {"name": "scratch", "emptyDir": {"sizeLimit": size}},
        {"name": "sockets", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    ]
    if not workload.source:
        return own
    kept = {"name": source_name(workload), "items": items(workload.source)}
    return [*own, {"name": "source", "configMap": kept}]
