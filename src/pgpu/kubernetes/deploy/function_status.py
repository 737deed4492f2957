"""How the functions on a cluster are, and why one is not as it should be, in words for its author.

It refuses to judge: what is told is what the platform says, and who needs more asks that.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pgpu.kubernetes.api import DynamicClient
from pgpu.kubernetes.deploy import Platform
from pgpu.kubernetes.deploy.object_kinds import DEPLOYMENTS, KNATIVE_SERVICES, PODS, is_own
from pgpu.kubernetes.deploy.object_names import APP_ANNOTATION, FUNCTION_LABEL, SLICE_ANNOTATION, selector

_NO_ROOM = "cannot allocate all claims"
"""The scheduler's words for a claim that no device has room for."""

_BESIDE = ": a new version starts beside the old one, or with --recreate after its end"

_USUAL = {"ContainerCreating", "PodInitializing"}
"""What a container waits for without being wrong."""

Found = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DeployedFunction:
    """One function on a cluster."""

    name: str
    namespace: str
    platform: Platform
    app: str
    image: str
    slice: str
    """For people: `1 GPU, 4 GiB`, or `none`."""

    replicas: int
    ready: int
    """Replicas that take calls."""

    url: str
    reasons: tuple[str, ...]
    """Why not all is as it should be; empty where it is, as far as the platform knows."""


def deployed_functions(objects: DynamicClient, namespace: str | None, name: str = "") -> tuple[DeployedFunction, ...]:
    """Look at functions.

    Args:
        objects: The cluster's.
        namespace: Where; None: everywhere.
        name: Of one; empty: of all.

    Raises:
        ClusterError: The server refuses.
    """
    pods = defaultdict(list)
    for pod in objects.all(PODS, selector(name), namespace):
        pods[pod["metadata"]["namespace"], pod["metadata"]["labels"][FUNCTION_LABEL]].append(pod)
    found = [
        _standing(each, platform, pods[each["metadata"]["namespace"], each["metadata"]["name"]])
        for kind, platform in ((DEPLOYMENTS, Platform.DEPLOYMENT), (KNATIVE_SERVICES, Platform.KNATIVE))
        for each in objects.all_if_served(kind, selector(name), namespace)
        if is_own(each)
    ]
    return tuple(sorted(found, key=lambda each: (each.namespace, each.name)))


def _standing(found: Found, platform: Platform, pods: Sequence[Found]) -> DeployedFunction:
    about, spec, status = found["metadata"], found["spec"], found.get("status") or {}
    told = about.get("annotations") or {}
    living = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
    share, ready = told.get(SLICE_ANNOTATION, ""), sum(_is_ready(pod) for pod in living)
    no_room = f"no node has a GPU with room for its slice ({share})" + (_BESIDE if ready else "")
    reasons = dict.fromkeys((*_conditions(status), *(reason for pod in living for reason in _reasons(pod, no_room))))
    return DeployedFunction(
        name=about["name"],
        namespace=about["namespace"],
        platform=platform,
        app=told.get(APP_ANNOTATION, ""),
        image=spec["template"]["spec"]["containers"][0]["image"],
        slice=share,
        replicas=len(living),
        ready=ready,
        url=_url(about, status, platform),
        reasons=tuple(reasons),
    )


def _url(about: Found, status: Found, platform: Platform) -> str:
    inside = f"http://{about['name']}.{about['namespace']}.svc/"
    return inside if platform is Platform.DEPLOYMENT else str(status.get("url") or inside)


def _conditions(status: Found) -> Iterator[str]:
    """Yield what went wrong before there was a pod, such as a quota, and what never came to be."""
    for condition in status.get("conditions") or ():
        kind, is_so = condition.get("type"), condition.get("status")
        if (kind, is_so) in {("ReplicaFailure", "True"), ("Progressing", "False"), ("Ready", "False")}:
            yield str(condition.get("message") or condition.get("reason") or kind)


def _is_ready(pod: Found) -> bool:
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in _pod_conditions(pod))


def _pod_conditions(pod: Found) -> Sequence[Found]:
    return (pod.get("status") or {}).get("conditions") or ()


def _reasons(pod: Found, no_room: str) -> Iterator[str]:
    for condition in _pod_conditions(pod):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            message = str(condition.get("message") or "no node takes it")
            yield no_room if _NO_ROOM in message else message
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") and waiting["reason"] not in _USUAL:
            yield ": ".join(filter(None, (waiting["reason"], waiting.get("message"))))
        if (container.get("state") or {}).get("running") and not container.get("ready"):
            about = pod["metadata"]
            where = f"-l {FUNCTION_LABEL}={about['labels'][FUNCTION_LABEL]} -n {about['namespace']}"
            yield f"it runs and takes no calls yet; if that stays so, its log says why: kubectl logs {where}"
