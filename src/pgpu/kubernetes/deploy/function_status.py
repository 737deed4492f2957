"""The state of functions on a cluster, and why one is not ready, as the platform reports it."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pgpu.kubernetes.api import DynamicClient, ObjectKind
from pgpu.kubernetes.deploy.apply import DEPLOYMENTS, KNATIVE_SERVICES, is_own
from pgpu.kubernetes.deploy.workload import APP_ANNOTATION, FUNCTION_LABEL, SLICE_ANNOTATION, Platform, selector
from pgpu.structs import Struct

_PODS = ObjectKind("v1", "Pod", "pods")

# The scheduler's message for a claim that no device has room for.
_NO_ROOM = "cannot allocate all claims"

_BESIDE = ": a new version starts beside the old one, or with --recreate after its end"

_NORMAL_WAITS = {"ContainerCreating", "PodInitializing"}

_Object = Mapping[str, Any]


class DeployedFunction(Struct, frozen=True):
    """One function on a cluster."""

    name: str
    namespace: str
    platform: Platform
    app: str
    image: str
    slice: str
    """Human text: `1 GPU, 4 GiB`, or `none`."""

    replicas: int
    ready: int
    """Replicas that take calls."""

    url: str
    reasons: tuple[str, ...]
    """Why it is not ready; empty if the platform reports no problem."""


def deployed_functions(objects: DynamicClient, namespace: str | None, name: str = "") -> tuple[DeployedFunction, ...]:
    """Read functions from a cluster.

    Args:
        objects: Client of the cluster.
        namespace: None: all namespaces.
        name: Empty: all functions.

    Raises:
        ClusterError: The server refuses.
    """
    pods = defaultdict(list)
    for pod in objects.all(_PODS, selector(name), namespace):
        pods[pod["metadata"]["namespace"], pod["metadata"]["labels"][FUNCTION_LABEL]].append(pod)
    found = [
        _function(each, platform, pods[each["metadata"]["namespace"], each["metadata"]["name"]])
        for kind, platform in ((DEPLOYMENTS, Platform.DEPLOYMENT), (KNATIVE_SERVICES, Platform.KNATIVE))
        for each in objects.all_if_served(kind, selector(name), namespace)
        if is_own(each)
    ]
    return tuple(sorted(found, key=lambda each: (each.namespace, each.name)))


def _function(found: _Object, platform: Platform, pods: Sequence[_Object]) -> DeployedFunction:
    about, spec, status = found["metadata"], found["spec"], found.get("status") or {}
    annotations = about.get("annotations") or {}
    # A terminating pod takes no new calls and says nothing about the present version.
    live = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
    ready = sum(
        any(each.get("type") == "Ready" and each.get("status") == "True" for each in _pod_conditions(pod))
        for pod in live
    )
    share = annotations.get(SLICE_ANNOTATION, "")
    no_room = f"no node has a GPU with room for its slice ({share})" + (_BESIDE if ready else "")
    url = f"http://{about['name']}.{about['namespace']}.svc/"
    if platform is Platform.KNATIVE:
        url = str(status.get("url") or url)
    # Replicas of one version fail alike: each reason is listed once, in order.
    reasons = [*_failed_conditions(status), *(reason for pod in live for reason in _pod_reasons(pod, no_room))]
    return DeployedFunction(
        name=about["name"],
        namespace=about["namespace"],
        platform=platform,
        app=annotations.get(APP_ANNOTATION, ""),
        image=spec["template"]["spec"]["containers"][0]["image"],
        slice=share,
        replicas=len(live),
        ready=ready,
        url=url,
        reasons=tuple(dict.fromkeys(reasons)),
    )


def _failed_conditions(status: _Object) -> Iterator[str]:
    """Yield failures of the controller: before there was a pod, such as a quota, and timeouts."""
    for condition in status.get("conditions") or ():
        kind, value = condition.get("type"), condition.get("status")
        if (kind, value) in {("ReplicaFailure", "True"), ("Progressing", "False"), ("Ready", "False")}:
            yield str(condition.get("message") or condition.get("reason") or kind)


def _pod_conditions(pod: _Object) -> Sequence[_Object]:
    return (pod.get("status") or {}).get("conditions") or ()


def _pod_reasons(pod: _Object, no_room: str) -> Iterator[str]:
    for condition in _pod_conditions(pod):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            message = str(condition.get("message") or "no node takes it")
            yield no_room if _NO_ROOM in message else message
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") and waiting["reason"] not in _NORMAL_WAITS:
            yield ": ".join(filter(None, (waiting["reason"], waiting.get("message"))))
        if (container.get("state") or {}).get("running") and not container.get("ready"):
            about = pod["metadata"]
            where = f"-l {FUNCTION_LABEL}={about['labels'][FUNCTION_LABEL]} -n {about['namespace']}"
            yield f"it runs and takes no calls yet; if that stays so, its log says why: kubectl logs {where}"
