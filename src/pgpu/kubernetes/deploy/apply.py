"""Lets a cluster have a function as its manifests say: tried whole first, then stored, then what is left over is removed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pgpu.errors import ClusterAccessError, ClusterError, NodeError
from pgpu.kubernetes.api import DryRun, DynamicClient, ObjectKind
from pgpu.kubernetes.deploy import Platform, Workload, manifests
from pgpu.kubernetes.deploy.error_hints import with_hints
from pgpu.kubernetes.deploy.object_kinds import (
    AUTOSCALERS,
    CONFIG_MAPS,
    DEVICE_CLASSES,
    REPLICA_SETS,
    REVISIONS,
    TEMPLATES,
    is_own,
    kind_of,
    named,
)
from pgpu.kubernetes.deploy.object_names import MANAGER, Manifest, selector
from pgpu.kubernetes.deploy.platform_choice import choose_platform
from pgpu.kubernetes.names import SHARED_CLASS


@dataclass(frozen=True, slots=True)
class DeployOptions:
    """How it is to be deployed."""

    platform: Platform | None = None
    """None: where it runs already, else the best that the cluster has."""

    is_forced: bool = False
    """Whether fields that other managers say are taken over."""


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """What became of one object."""

    kind: str
    name: str
    word: str
    """`created`, `changed`, `unchanged` or `removed`."""


@dataclass(frozen=True, slots=True)
class DeployOutcome:
    """A function that was deployed."""

    name: str
    namespace: str
    platform: Platform
    done: tuple[ObjectChange, ...]
    remarks: tuple[str, ...]

    @property
    def url(self) -> str:
        """Where it is called within the cluster."""
        return f"http://{self.name}.{self.namespace}.svc/"


def deploy(objects: DynamicClient, workload: Workload, namespace: str, wish: DeployOptions) -> DeployOutcome:
    """Deploy a function, or what has changed of it.

    Raises:
        RequestError: It has a name or a source that the cluster does not take, or it is somebody else's.
        NodeError: The cluster has no slices of GPUs.
        CapacityError: The namespace's quota has no room.
        ClusterError: The server refuses; of `ObjectConflictError` nothing was stored.
    """
    wanted = manifests(workload, Platform.DEPLOYMENT)  # refuses first what no cluster takes
    told = [] if workload.share is None else list(_checked_class(objects))
    choice = choose_platform(objects, workload, namespace, wish.platform)
    if choice.platform is not Platform.DEPLOYMENT:
        wanted = manifests(workload, choice.platform)
    for manifest in wanted:
        _apply(objects, manifest, namespace, wish, DryRun.ALL)
    done = [_stored(objects, manifest, namespace, wish) for manifest in wanted]
    try:
        done += _removed(objects, workload, namespace, choice.platform, wanted)
    except ClusterError as exc:  # the function is deployed all the same
        told.append(f"what earlier versions left could not be removed: {exc}")
    remarks = (*told, *((choice.remark,) if choice.remark else ()))
    return DeployOutcome(workload.name, namespace, choice.platform, tuple(done), remarks)


def _checked_class(objects: DynamicClient) -> Iterator[str]:
    """Refuse a cluster without slices; who may not look is told that nobody did."""
    hint = "kubectl apply -k deploy/kubernetes; docs/guide/kubernetes.md"
    if not objects.serves(DEVICE_CLASSES):
        raise NodeError("this cluster has no claims of devices (resource.k8s.io/v1)", hint="Kubernetes 1.34 or newer")
    try:
        found = objects.find(DEVICE_CLASSES, SHARED_CLASS)
    except ClusterAccessError:
        yield f"whether the cluster has the DeviceClass {SHARED_CLASS} may not be looked at: without it no replica starts"
        return
    if found is None:
        raise NodeError(f"this cluster has no DeviceClass {SHARED_CLASS}: pgpu's driver is not installed", hint=hint)


def _apply(
    objects: DynamicClient, manifest: Manifest, namespace: str, wish: DeployOptions, dry_run: DryRun
) -> dict[str, Any]:
    kind, name = kind_of(manifest), str(manifest["metadata"]["name"])
    with with_hints(kind, name, namespace):
        return objects.apply(kind, manifest, namespace, MANAGER, is_forced=wish.is_forced, dry_run=dry_run)


def _stored(objects: DynamicClient, manifest: Manifest, namespace: str, wish: DeployOptions) -> ObjectChange:
    kind, name = kind_of(manifest), str(manifest["metadata"]["name"])
    before = objects.find(kind, name, namespace)
    after = _apply(objects, manifest, namespace, wish, DryRun.NO)
    if before is None:
        return ObjectChange(named(kind), name, "created")
    is_same = before["metadata"].get("resourceVersion") == after["metadata"].get("resourceVersion")
    return ObjectChange(named(kind), name, "unchanged" if is_same else "changed")


def _removed(
    objects: DynamicClient, workload: Workload, namespace: str, platform: Platform, wanted: Sequence[Manifest]
) -> list[ObjectChange]:
    """Remove what neither this version nor one to which the platform may go back names."""
    owned = REPLICA_SETS if platform is Platform.DEPLOYMENT else REVISIONS
    versions = objects.all(owned, selector(workload.name), namespace)
    kept = {str(manifest["metadata"]["name"]) for manifest in wanted} | {
        name for each in versions for name in _named(each)
    }
    kinds = (AUTOSCALERS, CONFIG_MAPS, TEMPLATES)
    return [done for kind in kinds for done in _left(objects, kind, workload, namespace, kept)]


def _left(
    objects: DynamicClient, kind: ObjectKind, workload: Workload, namespace: str, kept: set[str]
) -> Iterator[ObjectChange]:
    is_scaled = workload.scaling.is_automatic
    for found in objects.all_if_served(kind, selector(workload.name), namespace):
        name = str(found["metadata"]["name"])
        is_used = is_scaled if kind is AUTOSCALERS else name in kept
        if not is_used and is_own(found) and objects.remove(kind, name, namespace):
            yield ObjectChange(named(kind), name, "removed")


def _named(version: dict[str, Any]) -> Iterator[str]:
    """Yield the names of the source and the template that a version's pods mount and claim by."""
    spec = version["spec"]
    pod = spec["template"]["spec"] if "template" in spec else spec
    for volume in pod.get("volumes") or ():
        yield (volume.get("configMap") or {}).get("name", "")
    for claim in pod.get("resourceClaims") or ():
        yield claim.get("resourceClaimTemplateName", "")
