"""Everything that one function is on a cluster, in the order in which it is applied: what others name comes first. Pure."""

from pgpu.kubernetes.deploy.claim_template import template
from pgpu.kubernetes.deploy.deployment import autoscaler, deployment, service
from pgpu.kubernetes.deploy.knative import knative_service
from pgpu.kubernetes.deploy.object_names import Manifest, check_function_name, check_namespace
from pgpu.kubernetes.deploy.source_config_map import config_map
from pgpu.kubernetes.deploy.workload import Platform, Workload


def manifests(workload: Workload, platform: Platform) -> tuple[Manifest, ...]:
    """Return a function's objects.

    Raises:
        RequestError: It has a name that Kubernetes does not take, or a source that it cannot hold.
    """
    check_function_name(workload.name)
    if workload.namespace is not None:
        check_namespace(workload.namespace)
    own = [config_map(workload)] if workload.source else []
    claim = None if workload.share is None else template(workload, workload.share)
    name = None if claim is None else str(claim["metadata"]["name"])
    first = own if claim is None else [*own, claim]
    if platform is Platform.KNATIVE:
        return (*first, knative_service(workload, name))
    scaled = [autoscaler(workload)] if workload.scaling.is_automatic else []
    return (*first, deployment(workload, name), service(workload), *scaled)
