"""A function as a Deployment with a Service, and a HorizontalPodAutoscaler where one is asked for. Pure.

A replica that leaves goes on serving for some seconds, until nobody sends it calls any more, and then finishes what it has.
It refuses to go down to no replica: nothing of Kubernetes' own would wake it.
"""

from pgpu.kubernetes.deploy.object_names import FUNCTION_LABEL, Manifest, labels, metadata
from pgpu.kubernetes.deploy.pod_template import CLAIM, PORT, annotated, pod, scrape_annotations, whole_seconds
from pgpu.kubernetes.deploy.workload import Workload

SERVICE_PORT = 80
_UNTIL_NOBODY_CALLS_SECONDS = 5
"""How long endpoints may still name a replica that leaves: a sleep of the kubelet's before SIGTERM."""

_LONGEST_OVERRUN_SECONDS = 10.0
"""How much longer than its timeout a call may take, as the front has it, before its worker is ended."""

_CLOSING_SECONDS = 10
_SCHEDULING_SECONDS = 300
_KEPT_VERSIONS = 3
_CPU_PERCENT = 80
"""The only load that every cluster with metrics knows; of what the replica asked for."""


def deployment(workload: Workload, template_name: str | None) -> Manifest:
    """Return the Deployment.

    Args:
        workload: What runs.
        template_name: Of the ResourceClaimTemplate of its replicas; None: without a GPU.
    """
    started_seconds = whole_seconds(workload.startup_timeout_seconds) + _SCHEDULING_SECONDS
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": annotated(workload),
        "spec": {
            **_replicas(workload),
            "selector": {"matchLabels": _selected(workload)},
            "strategy": _strategy(workload),
            "revisionHistoryLimit": _KEPT_VERSIONS,
            "progressDeadlineSeconds": started_seconds,
            "template": {
                "metadata": {"labels": labels(workload.name), "annotations": scrape_annotations()},
                "spec": _pod(workload, template_name),
            },
        },
    }


def service(workload: Workload) -> Manifest:
    """Return the Service: calls go to the replicas that are ready."""
    port = {"name": "http", "port": SERVICE_PORT, "protocol": "TCP", "targetPort": PORT}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(workload.name, workload.name, workload.namespace),
        "spec": {"selector": _selected(workload), "ports": [port]},
    }


def autoscaler(workload: Workload) -> Manifest:
    """Return the HorizontalPodAutoscaler; it needs the cluster's metrics."""
    target = {"type": "Utilization", "averageUtilization": _CPU_PERCENT}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata(workload.name, workload.name, workload.namespace),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": workload.name},
            "minReplicas": max(1, workload.scaling.minimum),
            "maxReplicas": workload.scaling.maximum,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
        },
    }


def _replicas(workload: Workload) -> Manifest:
    """Return how many; nothing where an autoscaler says it, which would be contradicted by each deployment."""
    return {} if workload.scaling.is_automatic else {"replicas": max(1, workload.scaling.minimum)}


def _selected(workload: Workload) -> dict[str, str]:
    return {FUNCTION_LABEL: workload.name}


def _strategy(workload: Workload) -> Manifest:
    if workload.ends_before_it_starts:
        return {"type": "Recreate"}
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}


def _pod(workload: Workload, template_name: str | None) -> Manifest:
    spec = pod(workload, None if template_name is None else CLAIM)
    spec["containers"][0]["lifecycle"] = {"preStop": {"sleep": {"seconds": _UNTIL_NOBODY_CALLS_SECONDS}}}
    longest_seconds = workload.timeout_seconds + min(workload.timeout_seconds, _LONGEST_OVERRUN_SECONDS)
    spec["terminationGracePeriodSeconds"] = (
        whole_seconds(longest_seconds) + _UNTIL_NOBODY_CALLS_SECONDS + _CLOSING_SECONDS
    )
    if template_name is not None:
        spec["resourceClaims"] = [{"name": CLAIM, "resourceClaimTemplateName": template_name}]
    return spec
