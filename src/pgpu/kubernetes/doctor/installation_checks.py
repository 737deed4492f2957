"""What `kubectl apply -k deploy/kubernetes` leaves in a cluster besides pods: classes, the policy, the driver's rights."""

from collections.abc import Iterator

from lightkube.resources.admissionregistration_v1 import ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding
from lightkube.resources.resource_v1 import DeviceClass

from pgpu.errors import ObjectNotFoundError
from pgpu.kubernetes import names
from pgpu.kubernetes.api.cluster import ClusterInspector
from pgpu.kubernetes.doctor.driver_checks import driver_pods
from pgpu.kubernetes.node_requirements import DRIVER_RIGHTS
from pgpu.model.finding import Finding, broken, fine, weak

POLICY = "pgpu-driver-own-node"
INSTALL = "kubectl apply -k deploy/kubernetes, or the Helm chart in deploy/helm/pgpu"
_CLASSES = (
    (names.SHARED_CLASS, "a slice of a GPU", broken),
    (names.WHOLE_CLASS, "a whole GPU", broken),
    (names.MPS_CLASS, "a slice under MPS", weak),
    (names.OVERSUBSCRIBED_CLASS, "a slice that may lie on the host", weak),
)
_ACCOUNT = ("pgpu-system", "pgpu-driver")


def classes(cluster: ClusterInspector) -> Iterator[Finding]:
    """Look for the classes that claims name."""
    for name, purpose, report in _CLASSES:
        try:
            cluster.one(DeviceClass, name)
            yield fine("device classes", f"{name}: {purpose}")
        except ObjectNotFoundError:
            yield report("device classes", f"{name} is missing: no claim can ask for {purpose}", INSTALL)


def policy(cluster: ClusterInspector) -> Iterator[Finding]:
    """Look for the policy that keeps each driver to its own node, and whether it means this driver's account."""
    try:
        found = cluster.one(ValidatingAdmissionPolicy, POLICY)
        binding = cluster.one(ValidatingAdmissionPolicyBinding, POLICY)
    except ObjectNotFoundError:
        yield _unbound(f"{POLICY} is missing")
        return
    user = _account(cluster)
    conditions = (found.spec.matchConditions if found.spec else None) or []
    if conditions and not any(f'"{user}"' in each.expression for each in conditions):
        yield _unbound(f"{POLICY} is not about {user}")
    elif "Deny" not in ((binding.spec.validationActions if binding.spec else None) or ()):
        yield _unbound(f"{POLICY} refuses nothing: its binding does not say Deny")
    else:
        yield fine("admission policy", "a driver can change the slices of its own node only")


def _unbound(what: str) -> Finding:
    finding = f"{what}: whoever takes over one node's driver can change every node's slices"
    return weak("admission policy", finding, INSTALL)


def rights(cluster: ClusterInspector) -> Iterator[Finding]:
    """Ask for every verb that the driver's service account needs."""
    user = _account(cluster)
    is_complete = True
    for right in DRIVER_RIGHTS:
        missing = [verb for verb in right.verbs if not cluster.may(user, verb, right.group, right.resource)]
        if missing:
            is_complete = False
            finding = f"{user} may not {', '.join(missing)} {right.resource}: {right.purpose}"
            yield broken("rights of the driver", finding, INSTALL)
    if is_complete:
        yield fine("rights of the driver", f"{user} may do all that the driver does")


def _account(cluster: ClusterInspector) -> str:
    """Return the user that the driver's pods are; where there is none yet, that of deploy/kubernetes."""
    for pod in driver_pods(cluster):
        if pod.metadata and pod.spec and pod.spec.serviceAccountName:
            return f"system:serviceaccount:{pod.metadata.namespace}:{pod.spec.serviceAccountName}"
    namespace, name = _ACCOUNT
    return f"system:serviceaccount:{namespace}:{name}"
