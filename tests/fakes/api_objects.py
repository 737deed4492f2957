"""The store of an API server: objects of any kind with their versions, and the history of their changes."""

import copy
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]


class RefusalError(Exception):
    """An answer that is no success."""

    def __init__(self, code: int, reason: str, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after
        self.status: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        self.status |= {"message": message, "reason": reason, "code": code}


@dataclass(frozen=True)
class Kind:
    """One kind of objects, by the path under which it is served."""

    base: str
    """`api/v1` or `apis/GROUP/VERSION`."""

    plural: str
    name: str
    is_namespaced: bool = True

    @property
    def group(self) -> str:
        return self.base.split("/")[1] if self.base.startswith("apis/") else ""

    @property
    def api_version(self) -> str:
        return self.base.split("/", 1)[1]


KINDS = (
    Kind("api/v1", "nodes", "Node", is_namespaced=False),
    Kind("api/v1", "namespaces", "Namespace", is_namespaced=False),
    Kind("api/v1", "pods", "Pod"),
    Kind("api/v1", "events", "Event"),
    Kind("api/v1", "services", "Service"),
    Kind("api/v1", "secrets", "Secret"),
    Kind("api/v1", "configmaps", "ConfigMap"),
    Kind("api/v1", "serviceaccounts", "ServiceAccount"),
    Kind("apis/apps/v1", "deployments", "Deployment"),
    Kind("apis/apps/v1", "daemonsets", "DaemonSet"),
    Kind("apis/apps/v1", "replicasets", "ReplicaSet"),
    Kind("apis/autoscaling/v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler"),
    Kind("apis/events.k8s.io/v1", "events", "Event"),
    Kind("apis/resource.k8s.io/v1", "resourceslices", "ResourceSlice", is_namespaced=False),
    Kind("apis/resource.k8s.io/v1", "deviceclasses", "DeviceClass", is_namespaced=False),
    Kind("apis/resource.k8s.io/v1", "resourceclaims", "ResourceClaim"),
    Kind("apis/resource.k8s.io/v1", "resourceclaimtemplates", "ResourceClaimTemplate"),
    Kind("apis/serving.knative.dev/v1", "services", "Service"),
    Kind("apis/serving.knative.dev/v1", "revisions", "Revision"),
    Kind("apis/rbac.authorization.k8s.io/v1", "clusterroles", "ClusterRole", is_namespaced=False),
    Kind(
        "apis/admissionregistration.k8s.io/v1",
        "validatingadmissionpolicies",
        "ValidatingAdmissionPolicy",
        is_namespaced=False,
    ),
    Kind(
        "apis/admissionregistration.k8s.io/v1",
        "validatingadmissionpolicybindings",
        "ValidatingAdmissionPolicyBinding",
        is_namespaced=False,
    ),
    Kind("apis/authorization.k8s.io/v1", "subjectaccessreviews", "SubjectAccessReview", is_namespaced=False),
)


@dataclass
class Happening:
    version: int
    what: str
    kind: Kind
    found: Object


@dataclass
class Objects:
    """A store, safe for many threads; every change gets the next version."""

    version: int = 100
    oldest_told: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)
    _found: dict[tuple[Kind, str, str], Object] = field(default_factory=dict)
    everything: list[Happening] = field(default_factory=list)
    """Number of all changes, those of compacted history included."""

    _happened: list[Happening] = field(default_factory=list)

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        with self.changed:
            return copy.deepcopy(self._at(kind, namespace, name))

    def all(self, kind: Kind, namespace: str = "") -> list[Object]:
        with self.changed:
            chosen = [found for key, found in self._found.items() if key[0] == kind and namespace in {"", key[1]}]
            return copy.deepcopy(chosen)

    def create(self, kind: Kind, namespace: str, wanted: Object, *, dry_run: bool = False) -> Object:
        with self.changed:
            metadata = named(wanted)["metadata"]
            key = (kind, namespace, metadata["name"])
            if key in self._found:
                raise RefusalError(409, "AlreadyExists", f'{kind.plural} "{metadata["name"]}" already exists')
            metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": now(), "generation": 1}
            if namespace:
                metadata["namespace"] = namespace
            wanted |= {"apiVersion": kind.api_version, "kind": kind.name}
            return wanted if dry_run else self._put("ADDED", key, wanted)

    def update(self, kind: Kind, namespace: str, wanted: Object) -> Object:
        with self.changed:
            key = (kind, namespace, wanted["metadata"]["name"])
            old = self._at(*key)
            version = wanted["metadata"].get("resourceVersion")
            if version not in {None, "", old["metadata"]["resourceVersion"]}:
                raise RefusalError(
                    409,
                    "Conflict",
                    f'Operation cannot be fulfilled on {kind.plural} "{key[2]}": the object has been modified',
                )
            for name in ("uid", "creationTimestamp"):
                wanted["metadata"][name] = old["metadata"][name]
            is_new = wanted.get("spec") != old.get("spec")
            wanted["metadata"]["generation"] = old["metadata"].get("generation", 1) + is_new
            wanted["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
            wanted |= {"apiVersion": kind.api_version, "kind": kind.name}
            return copy.deepcopy(old) if wanted == old else self._put("MODIFIED", key, wanted)

    def delete(self, kind: Kind, namespace: str, name: str) -> Object:
        with self.changed:
            found = self._at(kind, namespace, name)
            del self._found[kind, namespace, name]
            return self._note("DELETED", kind, found)

    def load(self, listed: Mapping[str, Any]) -> None:
        """Store recorded objects with new versions."""
        for recorded in listed["items"]:
            kind = next(k for k in KINDS if (k.api_version, k.name) == (recorded["apiVersion"], recorded["kind"]))
            metadata = recorded["metadata"]
            with self.changed:
                self._put("ADDED", (kind, metadata.get("namespace", ""), metadata["name"]), copy.deepcopy(recorded))

    def forget_history(self) -> None:
        """Compact the history: a watch from an older version gets 410."""
        with self.changed:
            self.version += 1
            self.oldest_told = self.version
            self._happened.clear()
            self.changed.notify_all()

    def since(self, version: int, is_over: Callable[[], bool], seconds: float) -> Iterator[Happening | None]:
        """Yield the changes after a version, in order, until the watch ends; None after some seconds without a change."""
        while not is_over():
            with self.changed:
                if version < self.oldest_told:
                    raise RefusalError(410, "Expired", f"too old resource version: {version} ({self.oldest_told})")
                news = [each for each in self._happened if each.version > version]
                if not news:
                    heard = self.changed.wait(seconds)
            if news:
                version = news[-1].version
                yield from news
            elif not heard:
                yield None

    def _at(self, kind: Kind, namespace: str, name: str) -> Object:
        if (kind, namespace, name) not in self._found:
            raise RefusalError(404, "NotFound", f'{kind.plural} "{name}" not found')
        return self._found[kind, namespace, name]

    def _put(self, what: str, key: tuple[Kind, str, str], wanted: Object) -> Object:
        self._found[key] = wanted
        return self._note(what, key[0], wanted)

    def _note(self, what: str, kind: Kind, found: Object) -> Object:
        self.version += 1
        found["metadata"]["resourceVersion"] = str(self.version)
        happened = Happening(self.version, what, kind, copy.deepcopy(found))
        self._happened.append(happened)
        self.everything.append(happened)
        self.changed.notify_all()
        return copy.deepcopy(found)


def named(wanted: Object) -> Object:
    """Generate a name for an object with `generateName`."""
    metadata = wanted.setdefault("metadata", {})
    if not metadata.get("name"):
        metadata["name"] = f"{metadata.get('generateName', '')}{uuid.uuid4().hex[:5]}"
    return wanted


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def merged(old: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result
