"""Which container of which pod has which slice, and what of it: what the kubelet says, joined with what the engine holds. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pgpu.enforcement import SliceUse
from pgpu.errors import PgpuError
from pgpu.kubernetes.device_plugin.unit_ids import RESOURCE, uid_of, units_of
from pgpu.kubernetes.dra.cdi_files import KIND
from pgpu.kubernetes.names import DRIVER
from pgpu.kubernetes.node_pods import Container, ContainerUnits, Pod
from pgpu.ledger import ClaimRecord
from pgpu.model import Slice


@dataclass(frozen=True, slots=True)
class Share:
    """One slice of one GPU as one container has it. Containers that use one claim have one slice, and each is told with all of it."""

    namespace: str
    pod: str
    container: str
    """Pod and container are empty where the kubelet shows nobody: a claim that is prepared, or an init container's."""

    claim: str
    """Name of the ResourceClaim; empty for units of a device plugin."""

    claim_uid: str
    """Of the ResourceClaim, or of what units stand for."""

    job_id: str
    """As which the node's ledger knows it."""

    gpu_uuid: str
    memory_limit_bytes: int
    compute_share: float | None
    """Of the GPU's time, above 0 to 1; None where none was asked for."""

    memory_used_bytes: int | None = None
    memory_peak_bytes: int | None = None
    """Both None where it cannot be read now."""

    refusals: int | None = None
    """Allocations refused because they would have passed the limit."""

    processes: int | None = None
    """Living ones with a context on the GPU."""


def shares(
    pods: Sequence[Pod], held: Sequence[ClaimRecord], uses: Mapping[str, Sequence[SliceUse]]
) -> tuple[Share, ...]:
    """Return every slice once for each container that has it, and once without a container where none has.

    Args:
        pods: Of this node.
        held: Claims that have slices.
        uses: What is in the slices, by uid.
    """
    by_uid = {each.claim.uid: each for each in held}
    found = [(uid, pod, container) for pod in pods for container in pod.containers for uid in _uids(container)]
    told = [
        share
        for uid, pod, container in found
        if uid in by_uid
        for share in _of(by_uid[uid], uses.get(uid, ()), pod, container)
    ]
    shown = {uid for uid, _, _ in found}
    rest = [share for uid, each in by_uid.items() if uid not in shown for share in _of(each, uses.get(uid, ()))]
    return tuple(sorted([*told, *rest], key=lambda each: (each.namespace, each.pod, each.container, each.gpu_uuid)))


def _uids(container: Container) -> Iterator[str]:
    cdi_ids = (
        name
        for claim in container.claims
        for device in claim.devices
        if device.driver == DRIVER
        for name in device.cdi_ids
    )
    claimed = (uid for kind, _, uid in (name.partition("=") for name in cdi_ids) if kind == KIND)
    units = (_uid_of(each) for each in container.units if each.resource == RESOURCE)
    yield from dict.fromkeys([*claimed, *filter(None, units)])


def _uid_of(units: ContainerUnits) -> str | None:
    try:
        return uid_of(units_of(units.ids))
    except PgpuError:
        return None  # an earlier kind of ids


def _of(
    held: ClaimRecord, uses: Sequence[SliceUse], pod: Pod | None = None, container: Container | None = None
) -> Iterator[Share]:
    by_gpu = {each.gpu_uuid: each for each in uses}
    for part in held.claim.slices:
        yield _share(held, part, by_gpu.get(part.gpu_uuid), pod, container)


def _share(held: ClaimRecord, part: Slice, use: SliceUse | None, pod: Pod | None, container: Container | None) -> Share:
    return Share(
        namespace=held.claim.namespace if pod is None else pod.namespace,
        pod="" if pod is None else pod.name,
        container="" if container is None else container.name,
        claim=held.claim.name,
        claim_uid=held.claim.uid,
        job_id=held.job_id,
        gpu_uuid=part.gpu_uuid,
        memory_limit_bytes=part.memory_bytes,
        compute_share=part.compute_share,
        memory_used_bytes=None if use is None else use.used_bytes,
        memory_peak_bytes=None if use is None else use.peak_bytes,
        refusals=None if use is None else use.refusals,
        processes=None if use is None else use.processes,
    )
