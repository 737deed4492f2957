"""A function as Kubernetes objects: a Deployment, its claim and its source; and their life on a cluster.

Manifests are pure values of a `Workload`, the same for a cluster, a terminal and a repository. What a function declares is translated in
`pgpu.app.kubernetes_functions`; scaling, starting and routing are the platform's.
"""

from pgpu.kubernetes.deploy.manifests import as_json, as_yaml, manifests
from pgpu.kubernetes.deploy.workload import (
    ReplicaSlice,
    Scaling,
    SourceFile,
    VolumeMount,
    Workload,
    check_function_name,
    check_namespace,
)

__all__ = [
    "ReplicaSlice",
    "Scaling",
    "SourceFile",
    "VolumeMount",
    "Workload",
    "as_json",
    "as_yaml",
    "check_function_name",
    "check_namespace",
    "manifests",
]
