"""Which platform a function runs on: where it runs already, else Knative where that is installed and takes its pods.

Whether Knative takes claims is asked, not known: a release that does is used as soon as it is installed.
"""

from dataclasses import dataclass

from pgpu.errors import ClusterError, RequestError
from pgpu.kubernetes.api import DryRun, DynamicClient, ObjectKind
from pgpu.kubernetes.deploy import Platform, Workload, manifests
from pgpu.kubernetes.deploy.object_kinds import DEPLOYMENTS, KNATIVE_SERVICES, SERVICES, is_own, named
from pgpu.kubernetes.deploy.object_names import MANAGER

_CLAIMS = ("resourceClaims", "resources.claims", ".claims")
"""What Knative's refusal names where it takes no claims."""


@dataclass(frozen=True, slots=True)
class PlatformChoice:
    """A platform, and what is to be said about the choice."""

    platform: Platform
    remark: str | None = None


def choose_platform(
    objects: DynamicClient, workload: Workload, namespace: str, said: Platform | None
) -> PlatformChoice:
    """Choose where a function runs.

    Args:
        objects: The cluster's.
        workload: What runs.
        namespace: Where.
        said: What somebody wants; None: whatever is best.

    Raises:
        RequestError: It runs on the other platform already, Knative is not there, or the name is somebody else's.
    """
    has_knative = objects.serves(KNATIVE_SERVICES)
    there = _standing_on(objects, workload.name, namespace, has_knative=has_knative)
    if said is not None and there not in {None, said}:
        raise RequestError(
            f"{workload.name} is a {there} in {namespace}",
            hint=f"pgpu undeploy {workload.name} --runtime kubernetes first",
        )
    if said is Platform.KNATIVE and not has_knative:
        raise RequestError("Knative Serving is not installed on this cluster", hint="leave --knative out")
    if said is not None or there is not None:
        return PlatformChoice(said or there or Platform.DEPLOYMENT)
    return _best(objects, workload, namespace) if has_knative else PlatformChoice(Platform.DEPLOYMENT)


def _standing_on(objects: DynamicClient, name: str, namespace: str, *, has_knative: bool) -> Platform | None:
    knative = objects.find(KNATIVE_SERVICES, name, namespace) if has_knative else None
    if knative is not None:
        _check_own(knative, KNATIVE_SERVICES, namespace)
        return Platform.KNATIVE
    service = objects.find(SERVICES, name, namespace)
    found = objects.find(DEPLOYMENTS, name, namespace)
    for each, kind in ((service, SERVICES), (found, DEPLOYMENTS)):
        if each is not None:
            _check_own(each, kind, namespace)
    return None if found is None else Platform.DEPLOYMENT


def _check_own(found: dict[str, object], kind: ObjectKind, namespace: str) -> None:
    if not is_own(found):
        name = found["metadata"]["name"]  # type: ignore[index] # JSON
        raise RequestError(
            f"{namespace} has a {named(kind)} {name} that pgpu did not make", hint="call the function otherwise: --name"
        )


def _best(objects: DynamicClient, workload: Workload, namespace: str) -> PlatformChoice:
    if workload.share is None or _takes_claims(objects, workload, namespace):
        return PlatformChoice(Platform.KNATIVE)
    return PlatformChoice(
        Platform.DEPLOYMENT,
        "this cluster's Knative takes no claims of GPUs, so it is a Deployment and is not scaled to zero",
    )


def _takes_claims(objects: DynamicClient, workload: Workload, namespace: str) -> bool:
    wanted = manifests(workload, Platform.KNATIVE)[-1]
    try:
        shown = objects.apply(KNATIVE_SERVICES, wanted, namespace, MANAGER, dry_run=DryRun.ALL)
    except ClusterError as exc:
        if any(word in str(exc) for word in _CLAIMS):
            return False
        raise
    return bool(shown["spec"]["template"]["spec"].get("resourceClaims"))
