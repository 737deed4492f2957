"""The kinds of objects that a function is made of, and those in which a platform tells how it is."""

from collections.abc import Mapping
from typing import Any

from pgpu.kubernetes.api import Kind
from pgpu.kubernetes.deploying.knative import API_VERSION
from pgpu.kubernetes.deploying.naming import MANAGER, MANAGER_LABEL

DEPLOYMENTS = Kind("apps/v1", "Deployment", "deployments")
SERVICES = Kind("v1", "Service", "services")
AUTOSCALERS = Kind("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
KNATIVE_SERVICES = Kind(API_VERSION, "Service", "services")
CONFIG_MAPS = Kind("v1", "ConfigMap", "configmaps")
TEMPLATES = Kind("resource.k8s.io/v1", "ResourceClaimTemplate", "resourceclaimtemplates")
MADE = (KNATIVE_SERVICES, DEPLOYMENTS, AUTOSCALERS, SERVICES, TEMPLATES, CONFIG_MAPS)
"""In the order in which they are removed: first what runs, last what it names."""

DEVICE_CLASSES = Kind("resource.k8s.io/v1", "DeviceClass", "deviceclasses", is_namespaced=False)
REPLICA_SETS = Kind("apps/v1", "ReplicaSet", "replicasets")
REVISIONS = Kind(API_VERSION, "Revision", "revisions")
PODS = Kind("v1", "Pod", "pods")

_BY_NAME = {(kind.api_version, kind.name): kind for kind in MADE}


def kind_of(manifest: Mapping[str, Any]) -> Kind:
    """Return the kind of an object that was made of a function."""
    return _BY_NAME[manifest["apiVersion"], manifest["kind"]]


def named(kind: Kind) -> str:
    """Return what people call a kind: Kubernetes and Knative both have a Service."""
    return "Knative Service" if kind == KNATIVE_SERVICES else kind.name


def is_own(found: Mapping[str, Any]) -> bool:
    """Whether pgpu made an object itself: what Knative makes of it has its labels, too, and an owner."""
    about = found["metadata"]
    return (about.get("labels") or {}).get(MANAGER_LABEL) == MANAGER and not about.get("ownerReferences")
