"""A function as objects of Kubernetes: a Deployment or a Knative Service, its claim, its source, and what applies them.

What is made of a `Workload` is a pure value, the same for a cluster, for a terminal and for a repository that somebody
else applies. It refuses to know what a function declares (`app` translates), to scale, and to start anything: that is
the platform's.
"""

from pgpu.kubernetes.deploy.manifest_text import as_json, as_yaml
from pgpu.kubernetes.deploy.manifests import manifests
from pgpu.kubernetes.deploy.object_names import check_function_name, check_namespace
from pgpu.kubernetes.deploy.workload import Platform, Scaling, Share, SourceFile, Workload

__all__ = [
    "Platform",
    "Scaling",
    "Share",
    "SourceFile",
    "Workload",
    "as_json",
    "as_yaml",
    "check_function_name",
    "check_namespace",
    "manifests",
]
