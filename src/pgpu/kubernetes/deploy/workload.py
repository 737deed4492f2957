"""A function to run on a cluster, as a value, and the names and labels of its objects.

Templates and sources are immutable, and their names end with a digest of their content: a pod that restarts finds what it was started
with, and new content is a new version of the pod.
"""

import hashlib
import json
import re
from enum import StrEnum
from typing import Any

from pgpu.errors import RequestError
from pgpu.structs import Struct, field
from pgpu.units import quoted

Manifest = dict[str, Any]
"""A Kubernetes object as JSON."""

FUNCTION_LABEL = "pgpu.io/function"
MANAGER_LABEL = "app.kubernetes.io/managed-by"
APP_ANNOTATION = "pgpu.io/app"
SLICE_ANNOTATION = "pgpu.io/slice"
"""Human text; the claim's template has the amounts."""

MANAGER = "pgpu"
"""Value of the manager label, and field manager of server-side apply."""

_SERVICE_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_DIGEST_DIGITS = 10


class Platform(StrEnum):
    """The controller that runs a function's replicas."""

    DEPLOYMENT = "deployment"
    """Kubernetes' own: a fixed number of replicas, or a HorizontalPodAutoscaler."""

    KNATIVE = "knative"
    """Knative Serving, by an earlier release: listed and removed, not deployed any more."""


class ReplicaSlice(Struct, frozen=True):
    """The slice of each replica."""

    gpus: int = 1
    """1 to 16, each a different GPU."""

    memory_bytes: int | None = None
    """Of each GPU; None: the driver's default."""

    compute_share: float | None = None
    """Of each GPU's time, above 0 to 1; None: not limited by a share."""


class Scaling(Struct, frozen=True):
    """Number of replicas."""

    minimum: int = 0
    maximum: int = 1
    """At least 1."""

    is_automatic: bool = False
    """Whether the Deployment has a HorizontalPodAutoscaler."""


class VolumeMount(Struct, frozen=True):
    """A volume that exists on the cluster."""

    claim: str
    """Name of its PersistentVolumeClaim."""

    place: str
    """Absolute path in the container."""

    is_writable: bool = False


class SourceFile(Struct, frozen=True):
    """A file of the function's source."""

    path: str
    """Relative to its root, with `/` between its parts."""

    content: bytes
    is_executable: bool = False


class Workload(Struct, frozen=True):
    """One function on a cluster."""

    name: str
    image: str
    """With python3, pgpu and its extra `functions`."""

    app: str
    """`module:attribute` or `file.py:attribute`, below the source."""

    declaration: str
    """JSON of the function's declaration, for the replica's HTTP server."""

    source: tuple[SourceFile, ...] = ()
    """Mounted at `source_directory`; empty: the image has it there."""

    source_directory: str = "/function"
    environment: tuple[tuple[str, str], ...] = ()
    secrets: tuple[str, ...] = ()
    """`NAME`, or `NAME:env=VARIABLE` for a variable as well: the key NAME of the Secret NAME becomes `/run/secrets/NAME`."""

    volumes: tuple[VolumeMount, ...] = ()
    namespace: str | None = None
    """None: left out of the manifests."""

    share: ReplicaSlice | None = None
    """None: a function without a GPU."""

    scaling: Scaling = field(default_factory=Scaling)
    timeout_seconds: float = 60.0
    startup_timeout_seconds: float = 300.0
    host_memory_bytes: int | None = None
    """Of each replica, with a scratch volume of the same size beside it; None: not declared."""

    cpu: str | None = None
    """CPU request of each replica as a quantity: `500m`, `2`; None: not declared."""

    ends_before_it_starts: bool = False
    """Whether a new version waits for the end of the old one: for a GPU without room for both."""


def check_function_name(name: str) -> str:
    """Return a function's name unchanged.

    Raises:
        RequestError: It is no valid name of a Service. Source: RFC 1035, as Kubernetes validates names of Services.
    """
    if not _SERVICE_NAME.fullmatch(name):
        raise RequestError(
            f"{quoted(name)} cannot be the name of a Service",
            hint="small letters, digits and -, a letter first and no - at the end, 63 at most: --name",
        )
    return name


def check_namespace(namespace: str) -> str:
    """Return a namespace's name unchanged.

    Raises:
        RequestError: It is invalid. Source: RFC 1123, as Kubernetes validates names of namespaces.
    """
    if not _LABEL.fullmatch(namespace):
        raise RequestError(
            f"{quoted(namespace)} is no name of a namespace", hint="small letters, digits and -, 63 at most"
        )
    return namespace


def labels(name: str) -> dict[str, str]:
    """Return the labels of all objects of a function."""
    return {
        "app.kubernetes.io/name": name,
        "app.kubernetes.io/component": "function",
        MANAGER_LABEL: MANAGER,
        FUNCTION_LABEL: name,
    }


def selector(name: str) -> str:
    """Return the label selector for all objects of a function; of all functions, with an empty name."""
    return f"{MANAGER_LABEL}={MANAGER},{FUNCTION_LABEL}" + (f"={name}" if name else "")


def metadata(name: str, function: str, namespace: str | None) -> Manifest:
    """Return the metadata of an object of a function."""
    placed = {} if namespace is None else {"namespace": namespace}
    return {"name": name, **placed, "labels": labels(function)}


def named_by_content(function: str, word: str, content: object) -> str:
    """Return a name with a digest of the content: `detector-source-1f3a…`."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=True)
    return f"{function}-{word}-{hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_DIGITS]}"
