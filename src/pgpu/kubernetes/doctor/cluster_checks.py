"""Checks of the cluster: its version, its feature gates, and what `kubectl apply -k deploy/kubernetes` installs besides pods.

A server whose feature gate is off drops fields without an error, so objects are sent as dry runs and the answers compared. Gates of the
scheduler and of kubelets cannot be read; they are assumed to be the same.
"""

import re
from collections.abc import Iterator

from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.resource_v1 import (
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    CELDeviceSelector,
    Counter,
    CounterSet,
    Device,
    DeviceCapacity,
    DeviceClassSpec,
    DeviceSelector,
    DeviceTaint,
    ResourcePool,
    ResourceSliceSpec,
)
from lightkube.resources.admissionregistration_v1 import ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding
from lightkube.resources.resource_v1 import DeviceClass, ResourceSlice

from pgpu.errors import ObjectNotFoundError, ObjectRefusedError
from pgpu.kubernetes import names
from pgpu.kubernetes.api.cluster import ClusterInspector
from pgpu.kubernetes.doctor.driver_checks import driver_pods
from pgpu.kubernetes.node_requirements import DRIVER_RIGHTS
from pgpu.model.finding import Finding, broken, fine, weak

POLICY = "pgpu-driver-own-node"

_GROUP = "resource.k8s.io/v1"
_NEEDED_KINDS = ("DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice")
_LEAST_VERSION = (1, 34)
_VERSION_WITH_GATES_ON = (1, 36)
_VERSION = re.compile(r"v?(\d+)\.(\d+)")
_DEVICE_PLUGIN = "use a newer Kubernetes, or the device plugin: kubectl apply -k deploy/kubernetes/device-plugin"

_NAME = "pgpu-doctor"
_DRIVER = "doctor.pgpu.io"
_GATES = "on kube-apiserver, kube-scheduler and every kubelet: --feature-gates={gate}=true"

_INSTALL = "kubectl apply -k deploy/kubernetes, or the Helm chart in deploy/helm/pgpu"
_CLASSES = (
    (names.SHARED_CLASS, "a slice of a GPU", broken),
    (names.WHOLE_CLASS, "a whole GPU", broken),
    (names.MPS_CLASS, "a slice under MPS", weak),
    (names.OVERSUBSCRIBED_CLASS, "a slice that may lie on the host", weak),
)
# Of deploy/kubernetes.
_DEFAULT_ACCOUNT = "system:serviceaccount:pgpu-system:pgpu-driver"


def version(cluster: ClusterInspector) -> Iterator[Finding]:
    """Compare the API server's version with those that have shared devices."""
    text = cluster.version()
    found = minor(text)
    if found is None or found >= _VERSION_WITH_GATES_ON:
        yield fine("API server", f"Kubernetes {text}")
    elif found >= _LEAST_VERSION:
        yield weak(
            "API server",
            f"Kubernetes {text}: what pgpu needs is there, and off unless feature gates turn it on",
            "see which below; they must be on in kube-apiserver, kube-scheduler and every kubelet. Or use 1.36",
        )
    else:
        yield broken("API server", f"Kubernetes {text} cannot share devices among claims: 1.34 can", _DEVICE_PLUGIN)


def minor(version_text: str) -> tuple[int, int] | None:
    """Parse the first two numbers: `v1.36.2-gke.1` is (1, 36); None: it has none."""
    read = _VERSION.match(version_text)
    return None if read is None else (int(read[1]), int(read[2]))


def resources(cluster: ClusterInspector) -> Iterator[Finding]:
    """Check for the kinds of dynamic resource allocation."""
    served = cluster.kinds_served(_GROUP)
    missing = [kind for kind in _NEEDED_KINDS if kind not in served]
    if missing:
        yield broken("API server", f"{_GROUP} serves no {', '.join(missing)}", _DEVICE_PLUGIN)
    else:
        yield fine("API server", f"{_GROUP} is served")


def shared_devices(cluster: ClusterInspector) -> Iterator[Finding]:
    """Try a device that many claims may share."""
    policy = CapacityRequestPolicy("4Gi", CapacityRequestPolicyRange("256Mi", "80Gi", "256Mi"))
    wanted = Device("gpu", allowMultipleAllocations=True, capacity={names.MEMORY: DeviceCapacity("80Gi", policy)})
    kept = (_stored_slice(cluster, devices=[wanted]).devices or [Device("")])[0]
    name = "shared devices"
    if kept.allowMultipleAllocations and "requestPolicy" in str(kept.capacity):
        yield fine(name, "many claims may share a GPU")
    else:
        finding = "the API server leaves out what lets claims share a GPU: the first claim would take all of it"
        yield broken(name, finding, _GATES.format(gate="DRAConsumableCapacity"))


def shared_counters(cluster: ClusterInspector) -> Iterator[Finding]:
    """Try a counter, which excludes slices from a GPU that is allocated whole."""
    kept = _stored_slice(cluster, sharedCounters=[CounterSet({"whole": Counter("1")}, "gpu")])
    if kept.sharedCounters:
        yield fine("shared counters", "a GPU can be had whole or in slices")
    else:
        finding = "the API server leaves out what keeps a GPU whole: none is offered whole"
        yield weak("shared counters", finding, _GATES.format(gate="DRAPartitionableDevices"))


def device_taints(cluster: ClusterInspector) -> Iterator[Finding]:
    """Try a taint, which keeps pods off a broken GPU."""
    taint = DeviceTaint("NoSchedule", "doctor.pgpu.io/tried", value="yes")
    kept = (_stored_slice(cluster, devices=[Device("gpu", taints=[taint])]).devices or [Device("")])[0]
    if kept.taints:
        yield fine("device taints", "pods can be kept off a broken GPU")
    else:
        finding = "the API server leaves out taints: pods go on to be put on a broken GPU"
        yield weak("device taints", finding, _GATES.format(gate="DRADeviceTaints"))


def extended_resources(cluster: ClusterInspector) -> Iterator[Finding]:
    """Try a class that containers can request by a number in their limits."""
    selectors = [DeviceSelector(CELDeviceSelector("true"))]
    spec = DeviceClassSpec(extendedResourceName=f"{_DRIVER}/tried", selectors=selectors)
    kept = cluster.dry_run(DeviceClass(metadata=ObjectMeta(name=_NAME), spec=spec))
    limits = f"`limits: {{{names.EXTENDED_RESOURCE}: 1}}`"
    if kept.spec and kept.spec.extendedResourceName:
        yield fine("extended resources", f"{limits} works without a claim")
    else:
        finding = f"the API server leaves out extended resources: {limits} waits for ever"
        yield weak("extended resources", finding, f"use claims, or {_GATES.format(gate='DRAExtendedResource')}")


def _stored_slice(
    cluster: ClusterInspector,
    devices: list[Device] | None = None,
    sharedCounters: list[CounterSet] | None = None,  # noqa: N803
) -> ResourceSliceSpec:
    """Return what a slice would be stored as; a refused slice counts as one without these fields."""
    pool = ResourcePool(generation=1, name=_NAME, resourceSliceCount=1)
    spec = ResourceSliceSpec(_DRIVER, pool, nodeName=_NAME, devices=devices, sharedCounters=sharedCounters)
    try:
        return cluster.dry_run(ResourceSlice(metadata=ObjectMeta(name=_NAME), spec=spec)).spec
    except ObjectRefusedError:  # what a server without the gate keeps may be no valid slice
        return ResourceSliceSpec(_DRIVER, pool)


def classes(cluster: ClusterInspector) -> Iterator[Finding]:
    """Check for the classes that claims name."""
    for name, purpose, report in _CLASSES:
        try:
            cluster.one(DeviceClass, name)
            yield fine("device classes", f"{name}: {purpose}")
        except ObjectNotFoundError:
            yield report("device classes", f"{name} is missing: no claim can ask for {purpose}", _INSTALL)


def policy(cluster: ClusterInspector) -> Iterator[Finding]:
    """Check for the policy that restricts each driver to its own node, and that it names this driver's account."""
    try:
        found = cluster.one(ValidatingAdmissionPolicy, POLICY)
        binding = cluster.one(ValidatingAdmissionPolicyBinding, POLICY)
    except ObjectNotFoundError:
        yield _without_policy(f"{POLICY} is missing")
        return
    user = _driver_account(cluster)
    # The chart installs the policy for its own service account; a copy for another account would restrict nothing
    # here.
    conditions = (found.spec.matchConditions if found.spec else None) or []
    if conditions and not any(f'"{user}"' in each.expression for each in conditions):
        yield _without_policy(f"{POLICY} is not about {user}")
    elif "Deny" not in ((binding.spec.validationActions if binding.spec else None) or ()):
        yield _without_policy(f"{POLICY} refuses nothing: its binding does not say Deny")
    else:
        yield fine("admission policy", "a driver can change the slices of its own node only")


def _without_policy(problem: str) -> Finding:
    finding = f"{problem}: an attacker with one node's driver can change every node's slices"
    return weak("admission policy", finding, _INSTALL)


def rights(cluster: ClusterInspector) -> Iterator[Finding]:
    """Check every verb that the driver's service account needs."""
    user = _driver_account(cluster)
    is_complete = True
    for right in DRIVER_RIGHTS:
        missing = [verb for verb in right.verbs if not cluster.may(user, verb, right.group, right.resource)]
        if missing:
            is_complete = False
            finding = f"{user} may not {', '.join(missing)} {right.resource}: {right.purpose}"
            yield broken("rights of the driver", finding, _INSTALL)
    if is_complete:
        yield fine("rights of the driver", f"{user} may do all that the driver does")


def _driver_account(cluster: ClusterInspector) -> str:
    for pod in driver_pods(cluster):
        if pod.metadata and pod.spec and pod.spec.serviceAccountName:
            return f"system:serviceaccount:{pod.metadata.namespace}:{pod.spec.serviceAccountName}"
    return _DEFAULT_ACCOUNT
