"""The Kubernetes objects of one function, and their text. Pure.

A replica that leaves goes on serving for some seconds, until endpoints no longer name it, and then finishes its calls. It is
never scaled to zero, since nothing would start it again.
"""

import json
from collections.abc import Sequence

import yaml

from pgpu.kubernetes.deploy.pod_template import (
    PORT,
    claim_template,
    config_map,
    controller_metadata,
    pod,
    scrape_annotations,
    whole_seconds,
)
from pgpu.kubernetes.deploy.workload import (
    FUNCTION_LABEL,
    Manifest,
    Workload,
    check_function_name,
    check_namespace,
    labels,
    metadata,
)

SERVICE_PORT = 80

# Endpoints may name a leaving replica for so long: the kubelet sleeps before SIGTERM.
_DRAIN_SECONDS = 5

# How much longer than its timeout a call may take before the replica ends its worker.
_LONGEST_OVERRUN_SECONDS = 10.0

_CLOSING_SECONDS = 10
_SCHEDULING_SECONDS = 300
_KEPT_VERSIONS = 3
# Of the CPU request: the only load that every cluster with metrics measures.
_CPU_PERCENT = 80

# Line width that keeps a declaration on one line.
_NO_FOLDING = 1 << 20


def manifests(workload: Workload) -> tuple[Manifest, ...]:
    """Return a function's objects in the order in which they are applied: what others refer to comes first.

    Raises:
        RequestError: A name is invalid in Kubernetes, or a ConfigMap cannot hold the source.
    """
    check_function_name(workload.name)
    if workload.namespace is not None:
        check_namespace(workload.namespace)
    first = [config_map(workload)] if workload.source else []
    template_name = None
    if workload.share is not None:
        template = claim_template(workload, workload.share)
        template_name = str(template["metadata"]["name"])
        first.append(template)
    scaled = [autoscaler(workload)] if workload.scaling.is_automatic else []
    return (*first, deployment(workload, template_name), service(workload), *scaled)


def deployment(workload: Workload, template_name: str | None) -> Manifest:
    """Return the Deployment; its replicas claim by the template of that name, or have no GPU."""
    longest_seconds = workload.timeout_seconds + min(workload.timeout_seconds, _LONGEST_OVERRUN_SECONDS)
    # Long enough for a call that began at the last moment; after it the kubelet kills the pod.
    grace_seconds = whole_seconds(longest_seconds) + _DRAIN_SECONDS + _CLOSING_SECONDS
    spec = pod(workload, template_name, terminationGracePeriodSeconds=grace_seconds)
    spec["containers"][0]["lifecycle"] = {"preStop": {"sleep": {"seconds": _DRAIN_SECONDS}}}
    # The new replica is ready before an old one leaves, so that calls are served throughout.
    strategy: Manifest = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    if workload.ends_before_it_starts:
        strategy = {"type": "Recreate"}
    # With an autoscaler the number is left out: each deployment would reset it.
    replicas = {} if workload.scaling.is_automatic else {"replicas": max(1, workload.scaling.minimum)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": controller_metadata(workload),
        "spec": {
            **replicas,
            "selector": {"matchLabels": {FUNCTION_LABEL: workload.name}},
            "strategy": strategy,
            "revisionHistoryLimit": _KEPT_VERSIONS,
            "progressDeadlineSeconds": whole_seconds(workload.startup_timeout_seconds) + _SCHEDULING_SECONDS,
            "template": {
                "metadata": {"labels": labels(workload.name), "annotations": scrape_annotations()},
                "spec": spec,
            },
        },
    }


def service(workload: Workload) -> Manifest:
    """Return the Service of a Deployment, which routes calls to ready replicas."""
    port = {"name": "http", "port": SERVICE_PORT, "protocol": "TCP", "targetPort": PORT}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(workload.name, workload.name, workload.namespace),
        "spec": {"selector": {FUNCTION_LABEL: workload.name}, "ports": [port]},
    }


def autoscaler(workload: Workload) -> Manifest:
    """Return the HorizontalPodAutoscaler of a Deployment; it needs the cluster's metrics."""
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


def as_yaml(objects: Sequence[Manifest]) -> str:
    """Write objects as YAML documents without tags or anchors; texts of several lines are literal blocks."""
    return yaml.dump_all(
        objects, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_NO_FOLDING, explicit_start=True
    )


def as_json(objects: Sequence[Manifest]) -> str:
    """Write objects as one JSON object, a Kubernetes List."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}, indent=2) + "\n"


class _Dumper(yaml.SafeDumper):
    # References between documents are valid YAML, but some tools for manifests do not read them.
    def ignore_aliases(self, _data: object) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
