"""The kinds of objects that a function is made of, and those in which a platform tells how it is."""

from collections.abc import Mapping
from typing import Any

from pgpu.kubernetes.api import ObjectKind
from pgpu.kubernetes.deploy.knative import API_VERSION
from pgpu.kubernetes.deploy.object_names import MANAGER, MANAGER_LABEL

DEPLOYMENTS = ObjectKind("apps/v1", "Deployment", "deployments")
SERVICES = ObjectKind("v1", "Service", "services")
AUTOSCALERS = ObjectKind("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
KNATIVE_SERVICES = ObjectKind(API_VERSION, "Service", "services")
CONFIG_MAPS = ObjectKind("v1", "ConfigMap", "configmaps")
TEMPLATES = ObjectKind("resource.k8s.io/v1", "ResourceClaimTemplate", "resourceclaimtemplates")
MADE = (KNATIVE_SERVICES, DEPLOYMENTS, AUTOSCALERS, SERVICES, TEMPLATES, CONFIG_MAPS)
"""In the order in which they are removed: first what runs, last what it names."""

DEVICE_CLASSES = ObjectKind("resource.k8s.io/v1", "DeviceClass", "deviceclasses", is_namespaced=False)
REPLICA_SETS = ObjectKind("apps/v1", "ReplicaSet", "replicasets")
REVISIONS = ObjectKind(API_VERSION, "Revision", "revisions")
PODS = ObjectKind("v1", "Pod", "pods")

_BY_NAME = {(kind.api_version, kind.name): kind for kind in MADE}


def kind_of(manifest: Mapping[str, Any]) -> ObjectKind:
    """Return the kind of an object that was made of a function."""
    return _BY_NAME[manifest["apiVersion"], manifest["kind"]]


def named(kind: ObjectKind) -> str:
    """Return what people call a kind: Kubernetes and Knative both have a Service."""
    return "Knative Service" if kind == KNATIVE_SERVICES else kind.name


def is_own(found: Mapping[str, Any]) -> bool:
    """Whether pgpu made an object itself: what Knative makes of it has its labels, too, and an owner."""
    about = found["metadata"]
    return (about.get("labels") or {}).get(MANAGER_LABEL) == MANAGER and not about.get("ownerReferences")
