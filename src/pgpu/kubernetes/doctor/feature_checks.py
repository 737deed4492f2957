"""What the API server keeps of what pgpu publishes: a server whose gate is off leaves fields out without a word.

So objects are tried as dry runs and what comes back is read. Gates of the scheduler and of kubelets cannot be seen from here:
they are to be the same.
"""

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
from lightkube.resources.resource_v1 import DeviceClass, ResourceSlice

from pgpu.errors import ObjectRefusedError
from pgpu.kubernetes import names
from pgpu.kubernetes.api.cluster import ClusterInspector
from pgpu.model.finding import Finding, broken, fine, weak

_NAME = "pgpu-doctor"
_DRIVER = "doctor.pgpu.io"
_GATES = "on kube-apiserver, kube-scheduler and every kubelet: --feature-gates={gate}=true"


def shared_devices(cluster: ClusterInspector) -> Iterator[Finding]:
    """Try a device that many claims may share."""
    policy = CapacityRequestPolicy("4Gi", CapacityRequestPolicyRange("256Mi", "80Gi", "256Mi"))
    wanted = Device("gpu", allowMultipleAllocations=True, capacity={names.MEMORY: DeviceCapacity("80Gi", policy)})
    kept = (_tried(cluster, devices=[wanted]).devices or [Device("")])[0]
    name = "shared devices"
    if kept.allowMultipleAllocations and "requestPolicy" in str(kept.capacity):
        yield fine(name, "many claims may share a GPU")
    else:
        finding = "the API server leaves out what lets claims share a GPU: the first claim would take all of it"
        yield broken(name, finding, _GATES.format(gate="DRAConsumableCapacity"))


def shared_counters(cluster: ClusterInspector) -> Iterator[Finding]:
    """Try a counter, which keeps slices off a GPU that somebody has whole."""
    kept = _tried(cluster, sharedCounters=[CounterSet({"whole": Counter("1")}, "gpu")])
    if kept.sharedCounters:
        yield fine("shared counters", "a GPU can be had whole or in slices")
    else:
        finding = "the API server leaves out what keeps a GPU whole: none is offered whole"
        yield weak("shared counters", finding, _GATES.format(gate="DRAPartitionableDevices"))


def device_taints(cluster: ClusterInspector) -> Iterator[Finding]:
    """Try a taint, by which a broken GPU is told."""
    taint = DeviceTaint("NoSchedule", "doctor.pgpu.io/tried", value="yes")
    kept = (_tried(cluster, devices=[Device("gpu", taints=[taint])]).devices or [Device("")])[0]
    if kept.taints:
        yield fine("device taints", "pods can be kept off a broken GPU")
    else:
        finding = "the API server leaves out taints: pods go on to be put on a broken GPU"
        yield weak("device taints", finding, _GATES.format(gate="DRADeviceTaints"))


def extended_resources(cluster: ClusterInspector) -> Iterator[Finding]:
    """Try a class that containers can ask for by a number in their limits."""
    spec = DeviceClassSpec(extendedResourceName=f"{_DRIVER}/tried", selectors=[_selector("true")])
    kept = cluster.dry_run(DeviceClass(metadata=ObjectMeta(name=_NAME), spec=spec))
    if kept.spec and kept.spec.extendedResourceName:
        yield fine("extended resources", f"`limits: {{{names.EXTENDED_RESOURCE}: 1}}` works without a claim")
    else:
        finding = (
            f"the API server leaves out extended resources: `limits: {{{names.EXTENDED_RESOURCE}: 1}}` waits for ever"
        )
        yield weak("extended resources", finding, f"use claims, or {_GATES.format(gate='DRAExtendedResource')}")


def _tried(
    cluster: ClusterInspector,
    devices: list[Device] | None = None,
    sharedCounters: list[CounterSet] | None = None,  # noqa: N803
) -> ResourceSliceSpec:
    """Return what a slice would be stored as; where it is refused, as if nothing of it were kept."""
    pool = ResourcePool(generation=1, name=_NAME, resourceSliceCount=1)
    spec = ResourceSliceSpec(_DRIVER, pool, nodeName=_NAME, devices=devices, sharedCounters=sharedCounters)
    try:
        return cluster.dry_run(ResourceSlice(metadata=ObjectMeta(name=_NAME), spec=spec)).spec
    except ObjectRefusedError:
        # Where a gate is off, what is left may be no valid slice any more.
        return ResourceSliceSpec(_DRIVER, pool)


def _selector(expression: str) -> DeviceSelector:
    return DeviceSelector(CELDeviceSelector(expression))
