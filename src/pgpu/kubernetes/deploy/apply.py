"""Deploys functions to a cluster and removes them.

All manifests are tried as a dry run, then stored, then objects that no version uses any more are deleted. Fields and
objects of other managers are not changed unless forced.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pgpu.errors import (
    CapacityError,
    ClusterAccessError,
    ClusterError,
    FunctionNotFoundError,
    NodeError,
    ObjectConflictError,
    ObjectNotFoundError,
    RequestError,
)
from pgpu.kubernetes.api import DryRun, DynamicClient, ObjectKind
from pgpu.kubernetes.deploy.manifests import manifests
from pgpu.kubernetes.deploy.workload import (
    MANAGER,
    MANAGER_LABEL,
    Manifest,
    Workload,
    check_function_name,
    selector,
)
from pgpu.kubernetes.names import SHARED_CLASS
from pgpu.structs import Struct

DEPLOYMENTS = ObjectKind("apps/v1", "Deployment", "deployments")
SERVICES = ObjectKind("v1", "Service", "services")
AUTOSCALERS = ObjectKind("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
KNATIVE_SERVICES = ObjectKind("serving.knative.dev/v1", "Service", "services")
"""Of an earlier release: listed and removed."""

CONFIG_MAPS = ObjectKind("v1", "ConfigMap", "configmaps")
TEMPLATES = ObjectKind("resource.k8s.io/v1", "ResourceClaimTemplate", "resourceclaimtemplates")
APPLIED_KINDS = (KNATIVE_SERVICES, DEPLOYMENTS, AUTOSCALERS, SERVICES, TEMPLATES, CONFIG_MAPS)
"""In the order of deletion: controllers first, what they refer to last."""

_DEVICE_CLASSES = ObjectKind("resource.k8s.io/v1", "DeviceClass", "deviceclasses", is_namespaced=False)
_REPLICA_SETS = ObjectKind("apps/v1", "ReplicaSet", "replicasets")
_BY_NAME = {(kind.api_version, kind.name): kind for kind in APPLIED_KINDS}
_QUOTA = "exceeded quota"


class ObjectChange(Struct, frozen=True):
    """What happened to one object."""

    kind: str
    name: str
    word: str
    """`created`, `changed`, `unchanged` or `removed`."""


class DeployOutcome(Struct, frozen=True):
    """A deployed function."""

    name: str
    namespace: str
    done: tuple[ObjectChange, ...]
    remarks: tuple[str, ...]

    @property
    def url(self) -> str:
        """Its URL within the cluster."""
        return f"http://{self.name}.{self.namespace}.svc/"


def deploy(objects: DynamicClient, workload: Workload, namespace: str, *, is_forced: bool = False) -> DeployOutcome:
    """Deploy a function, or what has changed of it.

    Raises:
        RequestError: Its name or source is invalid, or an object of that name has another manager.
        NodeError: The cluster has no slices of GPUs.
        CapacityError: The namespace's quota has no room.
        ClusterError: The server refuses; with `ObjectConflictError` nothing was stored.
    """
    wanted = manifests(workload)  # invalid workloads fail before any request
    remarks = [] if workload.share is None else _check_device_class(objects)
    _check_names(objects, workload.name, namespace)
    # Everything is tried before anything is stored: a conflict in the last object must not leave the first one
    # behind.
    for manifest in wanted:
        _apply(objects, manifest, namespace, DryRun.ALL, is_forced=is_forced)
    # In order: the Deployment refers to the ConfigMap and the claim template, whose names change with their content.
    done = [_store(objects, manifest, namespace, is_forced=is_forced) for manifest in wanted]
    try:
        done += _remove_unused(objects, workload, namespace, wanted)
    except ClusterError as exc:  # the function is deployed nevertheless
        remarks.append(f"what earlier versions left could not be removed: {exc}")
    return DeployOutcome(workload.name, namespace, tuple(done), tuple(remarks))


def undeploy(objects: DynamicClient, name: str, namespace: str) -> tuple[ObjectChange, ...]:
    """Remove all objects that pgpu made for a function; its replicas finish their calls.

    Raises:
        FunctionNotFoundError: There is none of this name.
        ClusterError: The server refuses; the remaining objects can be removed later.
    """
    check_function_name(name)
    done: list[ObjectChange] = []
    for kind in APPLIED_KINDS:
        with _with_hints(kind, name, namespace):
            for found in objects.all_if_served(kind, selector(name), namespace):
                object_name = str(found["metadata"]["name"])
                if is_own(found) and objects.remove(kind, object_name, namespace):
                    done.append(ObjectChange(display_name(kind), object_name, "removed"))
    if not done:
        raise FunctionNotFoundError(
            f"{namespace} has no function {name}", hint="`pgpu function ls --runtime kubernetes` lists them"
        )
    return tuple(done)


def display_name(kind: ObjectKind) -> str:
    """Return a kind's name for users: Kubernetes and Knative both have a Service."""
    return "Knative Service" if kind == KNATIVE_SERVICES else kind.name


def is_own(found: Mapping[str, Any]) -> bool:
    """Whether pgpu made an object itself. Objects that Knative derives have the same labels, but an owner."""
    about = found["metadata"]
    return (about.get("labels") or {}).get(MANAGER_LABEL) == MANAGER and not about.get("ownerReferences")


def _check_device_class(objects: DynamicClient) -> list[str]:
    """Refuse a cluster without slices; returns a remark if the class may not be read."""
    if not objects.serves(_DEVICE_CLASSES):
        raise NodeError("this cluster has no claims of devices (resource.k8s.io/v1)", hint="Kubernetes 1.34 or newer")
    try:
        found = objects.find(_DEVICE_CLASSES, SHARED_CLASS)
    except ClusterAccessError:
        return [
            f"whether the cluster has the DeviceClass {SHARED_CLASS} may not be looked at: without it no replica starts"
        ]
    if found is None:
        raise NodeError(
            f"this cluster has no DeviceClass {SHARED_CLASS}: pgpu's driver is not installed",
            hint="kubectl apply -k deploy/kubernetes; docs/guide/kubernetes.md",
        )
    return []


def _check_names(objects: DynamicClient, name: str, namespace: str) -> None:
    """Refuse a name whose objects pgpu did not make, or made by an earlier release for Knative."""
    for kind in (KNATIVE_SERVICES, SERVICES, DEPLOYMENTS):
        if kind is KNATIVE_SERVICES and not objects.serves(kind):
            continue
        found = objects.find(kind, name, namespace)
        if found is not None and not is_own(found):
            raise RequestError(
                f"{namespace} has a {display_name(kind)} {name} that pgpu did not make",
                hint="call the function otherwise: --name",
            )
        if found is not None and kind is KNATIVE_SERVICES:
            raise RequestError(
                f"{name} is a Knative Service of an earlier release in {namespace}",
                hint=f"pgpu function undeploy {name} --runtime kubernetes first: functions are Deployments now",
            )


def _kind_of(manifest: Mapping[str, Any]) -> ObjectKind:
    return _BY_NAME[manifest["apiVersion"], manifest["kind"]]


def _apply(
    objects: DynamicClient, manifest: Manifest, namespace: str, dry_run: DryRun, *, is_forced: bool
) -> dict[str, Any]:
    kind = _kind_of(manifest)
    with _with_hints(kind, str(manifest["metadata"]["name"]), namespace):
        return objects.apply(kind, manifest, namespace, MANAGER, is_forced=is_forced, dry_run=dry_run)


def _store(objects: DynamicClient, manifest: Manifest, namespace: str, *, is_forced: bool) -> ObjectChange:
    kind, name = _kind_of(manifest), str(manifest["metadata"]["name"])
    # Read only for the report: server-side apply itself needs no former state.
    before = objects.find(kind, name, namespace)
    after = _apply(objects, manifest, namespace, DryRun.NO, is_forced=is_forced)
    if before is None:
        return ObjectChange(display_name(kind), name, "created")
    is_same = before["metadata"].get("resourceVersion") == after["metadata"].get("resourceVersion")
    return ObjectChange(display_name(kind), name, "unchanged" if is_same else "changed")


def _remove_unused(
    objects: DynamicClient, workload: Workload, namespace: str, wanted: Sequence[Manifest]
) -> list[ObjectChange]:
    """Remove objects that neither this version nor one that the Deployment may roll back to refers to."""
    # Old ReplicaSets can be rolled back to, and their pods may restart: they keep what they refer to.
    used = {str(manifest["metadata"]["name"]) for manifest in wanted}
    for version in objects.all(_REPLICA_SETS, selector(workload.name), namespace):
        used.update(_referenced_names(version))
    done = []
    for kind in (AUTOSCALERS, CONFIG_MAPS, TEMPLATES):
        for found in objects.all_if_served(kind, selector(workload.name), namespace):
            name = str(found["metadata"]["name"])
            is_used = workload.scaling.is_automatic if kind is AUTOSCALERS else name in used
            if not is_used and is_own(found) and objects.remove(kind, name, namespace):
                done.append(ObjectChange(display_name(kind), name, "removed"))
    return done


def _referenced_names(version: dict[str, Any]) -> Iterator[str]:
    """Yield the names of the ConfigMaps and claim templates of a version's pods."""
    pod = version["spec"]["template"]["spec"]
    for volume in pod.get("volumes") or ():
        yield (volume.get("configMap") or {}).get("name", "")
    for claim in pod.get("resourceClaims") or ():
        yield claim.get("resourceClaimTemplateName", "")


@contextmanager
def _with_hints(kind: ObjectKind, name: str, namespace: str) -> Iterator[None]:
    """Add to an error of the API server which object it is about, and a hint."""
    what = f"{display_name(kind)} {name} in {namespace}"
    try:
        yield
    except ObjectConflictError as exc:
        raise ObjectConflictError(
            f"{what}: {exc}",
            hint="let that manager deploy it (--dry-run prints the manifests), or take those fields over: --force",
        ) from exc
    except ObjectNotFoundError as exc:
        raise ObjectNotFoundError(f"{what}: {exc}", hint=f"kubectl create namespace {namespace}") from exc
    except ClusterAccessError as exc:
        if _QUOTA in str(exc):
            raise CapacityError(f"{what}: {exc}", hint=f"kubectl describe quota -n {namespace}") from exc
        group = kind.api_version.partition("/")[0] if "/" in kind.api_version else ""
        plural = f"{kind.plural}.{group}" if group else kind.plural
        raise ClusterAccessError(f"{what}: {exc}", hint=f"kubectl auth can-i patch {plural} -n {namespace}") from exc
