"""The pod of a replica: its container, the claim for its slice, and its source as a ConfigMap. Pure.

The container runs the replica's HTTP server with its worker, as an unprivileged user, without capabilities, with a read-only root and
without a service account token; only `/tmp` and the socket directory are writable. The slice comes with the claim: the container
runtime mounts driver libraries, limits and environment. Volumes and Secrets exist already.
"""

import base64
import itertools
import math
import re
from collections.abc import Sequence

from pgpu.errors import RequestError
from pgpu.kubernetes.api.resources import quantity_of
from pgpu.kubernetes.deploy.workload import (
    APP_ANNOTATION,
    SLICE_ANNOTATION,
    Manifest,
    ReplicaSlice,
    SourceFile,
    Workload,
    metadata,
    named_by_content,
)
from pgpu.kubernetes.names import COMPUTE, DRIVER, MEMORY, SHARED_CLASS
from pgpu.units import GIB, MIB, format_memory, format_share, quoted

PORT = 8080
METRICS_PATH = "/metrics"
CLAIM = "slice"
"""The pod's name for its claim."""

MOST_SOURCE_BYTES = MIB
"""Of a ConfigMap's values together. Source: `MaxSecretSize` of Kubernetes' API, which limits ConfigMaps as well."""

_READY, _LIVE = "/v2/health/ready", "/v2/health/live"
_SOCKETS, _SCRATCH, _SECRETS = "/run/pgpu-function", "/tmp", "/run/secrets"  # noqa: S108 - the container's own
# User and group of images without root, by convention.
_NOBODY = 65532

# Memory limit if none is declared, as of a sealed container elsewhere; the request is then less.
_USUAL_HOST_MEMORY_BYTES = 4 * GIB

_LEAST_MEMORY_BYTES, _LEAST_CPU = 256 * MIB, "250m"
_PROBE_SECONDS, _PROBE_TIMEOUT_SECONDS, _LIVE_FAILURES = 10, 5, 3
# The kubelet gives up on a slow start later than the replica itself, which logs the reason.
_LATER_SECONDS = 30

_ENVIRONMENT = {
    "HOME": _SCRATCH,
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
}

_SECURITY_CONTEXT = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "privileged": False,
    "readOnlyRootFilesystem": True,
    "runAsGroup": _NOBODY,
    "runAsNonRoot": True,
    "runAsUser": _NOBODY,
    "seccompProfile": {"type": "RuntimeDefault"},
}

# Attribute in which several GPUs of one claim differ: without the constraint, two shares could be of one GPU.
_DISTINCT = f"{DRIVER}/uuid"

# Each is an entry of the pod's template, which has a size limit as well.
_MOST_FILES = 1000

_MOST_KEY = 200
_NO_KEY = re.compile(r"[^A-Za-z0-9._-]+")
# Characters that some YAML or JSON reader may change; files with them are stored as binary data.
_NO_TEXT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff\ufffe\uffff]")

_OBJECT_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
"""Source: RFC 1123, as Kubernetes validates names of Secrets and PersistentVolumeClaims."""

_READABLE, _EXECUTABLE = 0o444, 0o555
_SOURCE_HINT = "leave files out by .pgpuignore, or build an image that holds it: --source-in-image /function"


def pod(workload: Workload, template_name: str | None, **fields: object) -> Manifest:
    """Return the spec of a replica's pod.

    Args:
        workload: Runs in it.
        template_name: Of the ResourceClaimTemplate; None: without a GPU.
        fields: Of the platform.
    """
    scratch_size = quantity_of(workload.host_memory_bytes or _USUAL_HOST_MEMORY_BYTES)
    volumes: list[Manifest] = [
        {"name": "scratch", "emptyDir": {"sizeLimit": scratch_size}},
        {"name": "sockets", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    ]
    if workload.source:
        volumes.append(
            {"name": "source", "configMap": {"name": source_name(workload), "items": items(workload.source)}}
        )
    if workload.secrets:
        volumes.append({"name": "secrets", "projected": _projected(workload.secrets)})
    for number, volume in enumerate(workload.volumes):
        claim = {
            "claimName": _checked("PersistentVolumeClaim", volume.claim),
            **({} if volume.is_writable else {"readOnly": True}),
        }
        volumes.append({"name": f"volume-{number}", "persistentVolumeClaim": claim})
    spec: Manifest = {
        # The function's code is the user's: it gets no credentials of the cluster, and no variables of other
        # Services.
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [_container(workload, has_claim=template_name is not None)],
        "volumes": volumes,
        **fields,
    }
    if template_name is not None:
        spec["resourceClaims"] = [{"name": CLAIM, "resourceClaimTemplateName": template_name}]
    return spec


def _projected(uses: Sequence[str]) -> Manifest:
    """Return the content of the volume with secrets: a file for each.

    Raises:
        RequestError: A name cannot be a Secret's.
    """
    names = [_checked("Secret", use.partition(":")[0]) for use in uses]
    # Readable by all: its owner is root, and the pod has no other user than the function's.
    return {
        "defaultMode": _READABLE,
        "sources": [{"secret": {"name": name, "items": [{"key": name, "path": name}]}} for name in names],
    }


def _checked(kind: str, name: str) -> str:
    if not _OBJECT_NAME.fullmatch(name):
        raise RequestError(f"{quoted(name)} is no name of a {kind}", hint="small letters, digits, - and .")
    return name


def _container(workload: Workload, *, has_claim: bool) -> Manifest:
    arguments = (
        *("--app", workload.app),
        *("--source", workload.source_directory),
        *("--directory", _SOCKETS),
        *("--http", f"0.0.0.0:{PORT}"),
        *("--name", workload.name),
        *("--declaration", workload.declaration),
        *(word for each in workload.secrets if ":" in each for word in ("--secret-variable", each)),
    )
    # Two emptyDir volumes are all that is writable: scratch, and sockets in memory.
    mounts: list[Manifest] = [
        {"name": "scratch", "mountPath": _SCRATCH},
        {"name": "sockets", "mountPath": _SOCKETS},
    ]
    if workload.source:
        mounts.append({"name": "source", "mountPath": workload.source_directory, "readOnly": True})
    for number, volume in enumerate(workload.volumes):
        mode = {} if volume.is_writable else {"readOnly": True}
        mounts.append({"name": f"volume-{number}", "mountPath": volume.place, **mode})
    if workload.secrets:
        mounts.append({"name": "secrets", "mountPath": _SECRETS, "readOnly": True})
    declared_bytes = workload.host_memory_bytes
    requested_bytes = _LEAST_MEMORY_BYTES if declared_bytes is None else declared_bytes
    given = {"PGPU_SECRETS": _SECRETS} if workload.secrets else {}
    start_seconds = whole_seconds(workload.startup_timeout_seconds) + _LATER_SECONDS
    return {
        "name": "function",
        "image": workload.image,
        "command": ["python3", "-P", "-m", "pgpu.functions.front"],
        # Kubernetes would expand $(NAME), in variables as well.
        "args": [argument.replace("$", "$$") for argument in arguments],
        "workingDir": workload.source_directory,
        "env": [
            {"name": name, "value": value.replace("$", "$$")}
            for name, value in {**_ENVIRONMENT, **dict(workload.environment), **given}.items()
        ],
        "ports": [{"containerPort": PORT, "protocol": "TCP"}],
        "resources": {
            "requests": {"cpu": workload.cpu or _LEAST_CPU, "memory": quantity_of(requested_bytes)},
            "limits": {"memory": quantity_of(declared_bytes or _USUAL_HOST_MEMORY_BYTES)},
            # Only containers that name the claim get its devices.
            **({"claims": [{"name": CLAIM}]} if has_claim else {}),
        },
        "securityContext": _SECURITY_CONTEXT,
        "volumeMounts": mounts,
        "startupProbe": _probe(_READY, period_seconds=1, failures=start_seconds),
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


def controller_metadata(workload: Workload) -> Manifest:
    """Return the metadata of the pods' controller, with annotations that `pgpu function ls` shows."""
    shown = {APP_ANNOTATION: workload.app, SLICE_ANNOTATION: describe_share(workload.share)}
    return {**metadata(workload.name, workload.name, workload.namespace), "annotations": shown}


def scrape_annotations() -> dict[str, str]:
    """Return the annotations by which Prometheus finds a replica's metrics, by convention."""
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(PORT),
        "prometheus.io/path": METRICS_PATH,
    }


def whole_seconds(seconds: float) -> int:
    """Round up to whole seconds, at least 1: Kubernetes' fields have no smaller unit."""
    return max(1, math.ceil(seconds))


def claim_template(workload: Workload, share: ReplicaSlice) -> Manifest:
    """Return the ResourceClaimTemplate of a replica. How the slice is shared is up to the DeviceClass."""
    capacities = {} if share.memory_bytes is None else {MEMORY: quantity_of(share.memory_bytes)}
    if share.compute_share is not None:
        # Whole percent, never less than requested.
        capacities[COMPUTE] = str(math.ceil(round(share.compute_share * 100, 6)))
    # ExactCount with capacity requests: each device is a share of a GPU, of these sizes.
    request: Manifest = {"deviceClassName": SHARED_CLASS, "allocationMode": "ExactCount", "count": share.gpus}
    if capacities:
        request["capacity"] = {"requests": capacities}
    devices: Manifest = {"requests": [{"name": "gpu", "exactly": request}]}
    if share.gpus > 1:
        devices["constraints"] = [{"requests": ["gpu"], "distinctAttribute": _DISTINCT}]
    spec = {"spec": {"devices": devices}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": metadata(named_by_content(workload.name, "slice", spec), workload.name, workload.namespace),
        "spec": spec,
    }


def describe_share(share: ReplicaSlice | None) -> str:
    """Format a slice as `pgpu function ls` shows it: `2 GPUs, 4 GiB, 25%`; `none` without a GPU."""
    if share is None:
        return "none"
    count = "1 GPU" if share.gpus == 1 else f"{share.gpus} GPUs"
    size = "" if share.memory_bytes is None else f", {format_memory(share.memory_bytes)}"
    return count + size + ("" if share.compute_share is None else f", {format_share(share.compute_share)}")


def config_map(workload: Workload) -> Manifest:
    """Return the ConfigMap with a function's source: each file is a key, and the pod mounts them as the original tree.

    Raises:
        RequestError: The source is too large, or a ConfigMap cannot hold one of its files.
    """
    source = workload.source
    size_bytes = sum(len(file.content) for file in source)
    if size_bytes > MOST_SOURCE_BYTES:
        largest = max(source, key=lambda file: len(file.content))
        raise RequestError(
            f"the source holds {format_memory(size_bytes)}, and a ConfigMap at most {format_memory(MOST_SOURCE_BYTES)}; "
            f"the largest file is {quoted(largest.path)}",
            hint=_SOURCE_HINT,
        )
    if len(source) > _MOST_FILES:
        raise RequestError(
            f"the source has {len(source)} files, and at most {_MOST_FILES} are mounted", hint=_SOURCE_HINT
        )
    if wrong := next((file.path for file in source if file.path.startswith("..")), None):
        raise RequestError(f"Kubernetes mounts no file whose name begins like {quoted(wrong)}", hint=_SOURCE_HINT)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(source_name(workload), workload.name, workload.namespace),
        "immutable": True,
        **_content(source),
    }


def source_name(workload: Workload) -> str:
    """Return the ConfigMap's name, which changes with the source."""
    return named_by_content(workload.name, "source", [_content(workload.source), items(workload.source)])


def items(source: Sequence[SourceFile]) -> list[Manifest]:
    """Return path and mode of each key in the pod."""
    keys = _keys(source)
    modes = {True: _EXECUTABLE, False: _READABLE}
    return [{"key": keys[file.path], "path": file.path, "mode": modes[file.is_executable]} for file in source]


def _content(source: Sequence[SourceFile]) -> Manifest:
    keys = _keys(source)
    # Text stays readable in the cluster; anything that a reader could alter is stored as base64.
    texts, binaries = {}, {}
    for file in source:
        try:
            text = file.content.decode("utf-8")
        except UnicodeDecodeError:
            text = "\x00"
        if _NO_TEXT.search(text):
            binaries[keys[file.path]] = base64.b64encode(file.content).decode()
        else:
            texts[keys[file.path]] = text
    return {**({"data": texts} if texts else {}), **({"binaryData": binaries} if binaries else {})}


def _keys(source: Sequence[SourceFile]) -> dict[str, str]:
    """Return each path's key: `pkg/model.py` is `pkg.model.py`, with a number if another path has the same key."""
    keys: dict[str, str] = {}
    taken: set[str] = set()
    for file in source:
        plain = _NO_KEY.sub(".", file.path).lstrip(".")[-_MOST_KEY:] or "file"
        candidates = itertools.chain([plain], (f"{plain}-{number}" for number in itertools.count(2)))
        keys[file.path] = next(key for key in candidates if key not in taken)
        taken.add(keys[file.path])
    return keys
