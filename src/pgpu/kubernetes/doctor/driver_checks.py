"""Checks of the driver on each node: its pods, its container runtime, and the slices that it publishes."""

from collections import defaultdict
from collections.abc import Iterator

from lightkube.models.core_v1 import PodStatus
from lightkube.models.resource_v1 import Device, ResourceSliceSpec
from lightkube.resources.core_v1 import Node, Pod
from lightkube.resources.resource_v1 import ResourceSlice

from pgpu.errors import NodeError
from pgpu.kubernetes import names
from pgpu.kubernetes.api.cluster import ClusterInspector
from pgpu.kubernetes.node_requirements import check_runtime
from pgpu.model.finding import Finding, broken, fine, weak

LABELS = "app.kubernetes.io/name=pgpu,app.kubernetes.io/component=driver"
_MOST_NAMED = 3
_INSTALL = "kubectl apply -k deploy/kubernetes; without GPUs: deploy/kubernetes/simulated"


def driver_pods(cluster: ClusterInspector) -> tuple[Pod, ...]:
    """Return the driver's pods, in any namespace."""
    return cluster.all(Pod, parameters={"labelSelector": LABELS})


def pods(cluster: ClusterInspector) -> Iterator[Finding]:
    """Check that the driver runs."""
    found = driver_pods(cluster)
    if not found and _published(cluster):
        finding = "no pod of it, and yet GPUs are published: it runs beside the cluster, or did until a moment ago"
        yield weak("driver", finding, _INSTALL)
    elif not found:
        yield broken(
            "driver", "no pod of it: either it is not installed, or no node has a GPU that it knows of", _INSTALL
        )
    for pod in sorted(found, key=_node):
        reason = _why_not_ready(pod.status or PodStatus())
        name = f"{_namespace(pod)}/{_name(pod)}"
        if reason is None:
            yield fine("driver", f"{name} is ready on {_node(pod)}")
        else:
            remedy = f"kubectl -n {_namespace(pod)} describe pod {_name(pod)}; kubectl -n {_namespace(pod)} logs {_name(pod)}"
            yield broken("driver", f"{name} on {_node(pod) or 'no node'} is not ready: {reason}", remedy)


def runtimes(cluster: ClusterInspector) -> Iterator[Finding]:
    """Check that the container runtimes of the driver's nodes read CDI files."""
    ours = {_node(pod) for pod in driver_pods(cluster)}
    by_runtime = defaultdict(list)
    for node in cluster.all(Node, namespace=None):
        name = (node.metadata and node.metadata.name) or ""
        info = node.status.nodeInfo if node.status else None
        if name in ours or not ours:
            by_runtime[info.containerRuntimeVersion if info else ""].append(name)
    for runtime, nodes in sorted(by_runtime.items()):
        where = ", ".join(sorted(nodes)[:_MOST_NAMED])
        where += f" and {len(nodes) - _MOST_NAMED} more" if len(nodes) > _MOST_NAMED else ""
        try:
            warning = check_runtime(runtime)
        except NodeError as exc:
            yield broken("container runtimes", f"{where}: {exc}", exc.hint)
            continue
        if warning is not None:
            yield weak("container runtimes", f"{where}: {warning}", "see docs/kubernetes.md")
        else:
            yield fine("container runtimes", f"{where}: {runtime} reads CDI files")


def slices(cluster: ClusterInspector) -> Iterator[Finding]:
    """Check that each driver's node publishes GPUs that can be shared."""
    published: dict[str, list[ResourceSliceSpec]] = defaultdict(list)
    for each in _published(cluster):
        published[each.spec.nodeName or ""].append(each.spec)
    for node in sorted({_node(pod) for pod in driver_pods(cluster)} | set(published)):
        yield _of_node(node, published.get(node, []))


def _published(cluster: ClusterInspector) -> tuple[ResourceSlice, ...]:
    return cluster.all(ResourceSlice, namespace=None, parameters={"fieldSelector": f"spec.driver={names.DRIVER}"})


def _of_node(node: str, found: list[ResourceSliceSpec]) -> Finding:
    # Slices of older generations are being replaced, and the scheduler ignores them.
    newest = max((each.pool.generation for each in found), default=0)
    current = [each for each in found if each.pool.generation == newest]
    devices = [device for each in current for device in each.devices or []]
    logs = f"see what its driver says: kubectl -n pgpu-system logs -l {LABELS} --prefix"
    if not current or len(current) < current[0].pool.resourceSliceCount:
        return broken("slices", f"{node} has none, or not all of them: no pod gets a GPU there", logs)
    # One device stands for its GPU: those of the other kinds exclude it.
    shared = [
        device
        for device in devices
        if device.allowMultipleAllocations and names.kind_of(device.name) is names.DeviceKind.TIME_SLICE
    ]
    if not shared:
        return broken("slices", f"{node} publishes no GPU that can be shared", logs)
    closed = [device for device in shared if device.taints]
    if closed:
        return weak("slices", f"{node}: GPUs that are closed: {', '.join(map(_described, closed))}", logs)
    return fine("slices", f"{node}: {', '.join(map(_described, shared))}")


def _described(device: Device) -> str:
    memory = (device.capacity or {}).get(names.MEMORY)
    value = memory.get("value", "?") if isinstance(memory, dict) else getattr(memory, "value", "?")
    return f"{device.name} of {value}"


def _why_not_ready(status: PodStatus) -> str | None:
    for container in status.containerStatuses or ():
        state = container.state
        if state and state.waiting:
            return f"{state.waiting.reason}: {state.waiting.message or 'no more is said'}"
        if state and state.terminated:
            return f"it ended with {state.terminated.exitCode}"
    conditions = {each.type: each for each in status.conditions or ()}
    ready = conditions.get("Ready")
    if ready is not None and ready.status == "True":
        return None
    messages = [each.message for each in conditions.values() if each.status != "True" and each.message]
    return messages[0] if messages else f"it is {status.phase or 'unknown'}"


def _node(pod: Pod) -> str:
    return (pod.spec and pod.spec.nodeName) or ""


def _name(pod: Pod) -> str:
    return (pod.metadata and pod.metadata.name) or ""


def _namespace(pod: Pod) -> str:
    return (pod.metadata and pod.metadata.namespace) or ""
