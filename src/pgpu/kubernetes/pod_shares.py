"""Which container of which pod has which slice: the kubelet's pods joined with the engine's claims.

The driver serves the result at `/pods`; `shares_at` reads it from there for the command line, which loads neither gRPC
nor an engine.
"""

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from pgpu.enforcement import SliceUse
from pgpu.errors import NodeError, PgpuError, RequestError
from pgpu.kubernetes.cdi_files import KIND
from pgpu.kubernetes.names import DRIVER
from pgpu.kubernetes.unit_ids import RESOURCE, uid_of, units_of
from pgpu.ledger import ClaimRecord
from pgpu.structs import Struct, fields

_ANSWER_SECONDS = 30.0
_LONGEST_ANSWER_BYTES = 64 * 2**20


class ClaimDevice(Struct, frozen=True):
    """One device of a ResourceClaim."""

    driver: str
    pool: str
    device: str

    share_id: str | None
    """Which share of a device that many claims have; None: one claim has the whole device."""

    cdi_ids: tuple[str, ...]
    """Fully qualified: `vendor/class=name`."""


class ContainerClaim(Struct, frozen=True):
    """A ResourceClaim that a container uses, possibly together with other containers."""

    namespace: str
    name: str
    devices: tuple[ClaimDevice, ...]


class ContainerUnits(Struct, frozen=True):
    """Devices of a device plugin that one container has."""

    resource: str
    """As in a container's limits, such as `pgpu.io/gpu-memory-gib`."""

    ids: tuple[str, ...]


class PodContainer(Struct, frozen=True):
    """One container of a pod, sidecars included; the kubelet lists no init container that ends."""

    name: str
    claims: tuple[ContainerClaim, ...]
    units: tuple[ContainerUnits, ...]


class Pod(Struct, frozen=True):
    """One pod of this node."""

    namespace: str
    name: str
    containers: tuple[PodContainer, ...]


class PodResources(Protocol):
    """Source of this node's pods. Thread-safe."""

    def pods(self) -> Sequence[Pod]:
        """Return all pods; newer kubelets leave out those that end. A kubelet that has just started returns none.

        Raises:
            KubeletAwayError: The kubelet does not answer.
        """
        ...

    def pod(self, namespace: str, name: str) -> Pod | None:
        """Return one pod; None: the kubelet has no such pod, or is too old for this call.

        Raises:
            KubeletAwayError: The kubelet does not answer.
        """
        ...


class PodShare(Struct, frozen=True):
    """One slice of one GPU in one container. Containers with the same claim share one slice, and each is listed with all of it."""

    namespace: str
    pod: str
    container: str
    """Pod and container are empty if no container is listed with the slice: a claim not used yet, or an init container's."""

    claim: str
    """Name of the ResourceClaim; empty for units of a device plugin."""

    claim_uid: str
    """UID of the ResourceClaim, or the one derived from the units."""

    job_id: str
    """Job in the node's ledger that stands for the claim."""

    gpu_uuid: str
    memory_limit_bytes: int
    compute_share: float | None
    """Of the GPU's time, above 0 to 1; None: not limited by a share."""

    memory_used_bytes: int | None = None
    memory_peak_bytes: int | None = None
    """Both None if the meter cannot be read."""

    refusals: int | None = None
    """Allocations that failed because they would have passed the limit."""

    processes: int | None = None
    """Live processes with a context on the GPU."""


def shares(
    pods: Sequence[Pod], held: Sequence[ClaimRecord], uses: Mapping[str, Sequence[SliceUse]]
) -> tuple[PodShare, ...]:
    """Join pods with claims: each slice once for each container that has it, and once without a container if none has.

    Args:
        pods: Of this node.
        held: Claims that have slices.
        uses: Meter readings of the slices, by claim uid.
    """
    found = [(uid, pod, container) for pod in pods for container in pod.containers for uid in _claim_uids(container)]
    # Claims that no listed container uses: prepared ones, and those of init containers.
    listed = {uid for uid, _, _ in found}
    holders: list[tuple[str, Pod | None, PodContainer | None]] = [*found]
    holders += [(each.claim.uid, None, None) for each in held if each.claim.uid not in listed]
    by_uid = {each.claim.uid: each for each in held}
    joined = [
        share
        for uid, pod, container in holders
        if uid in by_uid
        for share in _shares_of(by_uid[uid], uses.get(uid, ()), pod, container)
    ]
    return tuple(sorted(joined, key=lambda each: (each.namespace, each.pod, each.container, each.gpu_uuid)))


def _claim_uids(container: PodContainer) -> Iterator[str]:
    """Yield the uids in the container's CDI device names, then the one that its units stand for."""
    cdi_ids = (
        name
        for claim in container.claims
        for device in claim.devices
        if device.driver == DRIVER
        for name in device.cdi_ids
    )
    uids = [uid for kind, _, uid in (name.partition("=") for name in cdi_ids) if kind == KIND]
    for units in container.units:
        if units.resource == RESOURCE:
            try:
                uids.append(uid_of(units_of(units.ids)))
            except PgpuError:  # ids of an earlier version
                continue
    yield from dict.fromkeys(uids)


def _shares_of(
    held: ClaimRecord, uses: Sequence[SliceUse], pod: Pod | None, container: PodContainer | None
) -> Iterator[PodShare]:
    by_gpu = {each.gpu_uuid: each for each in uses}
    for part in held.claim.slices:
        use = by_gpu.get(part.gpu_uuid)
        yield PodShare(
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


class SeenShare(Struct, frozen=True):
    """A share as a driver serves it, with the name of its GPU."""

    share: PodShare
    gpu: str | None
    """Index and product name; None: the GPU is gone."""

    is_simulated: bool = False
    """Whether its kernels compute nothing."""


def shares_at(address: str) -> Sequence[SeenShare]:
    """Read the slices that a driver serves over HTTP.

    Args:
        address: HOST:PORT of its `--metrics`.

    Raises:
        RequestError: That is no address.
        NodeError: No driver answers there, or it cannot list the node's pods.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise RequestError(f"{address!r} is not HOST:PORT", hint="write it like 127.0.0.1:9410")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=_ANSWER_SECONDS)
    try:
        connection.request("GET", "/pods")
        answer = connection.getresponse()
        status, body = answer.status, answer.read(_LONGEST_ANSWER_BYTES)
    except (OSError, http.client.HTTPException) as exc:
        raise NodeError(
            f"no driver answers at {address}: {exc}",
            hint="run it in the driver's pod: kubectl exec -n pgpu-system POD -- pgpu ps --kubernetes",
        ) from exc
    finally:
        connection.close()
    try:
        document: Mapping[str, Any] = json.loads(body)
        if "error" in document:
            raise NodeError(
                f"the driver cannot list its slices: {document['error']['message']}", hint=document["error"]["hint"]
            )
        # A newer driver may serve more fields.
        names = {each.name for each in fields(PodShare)}
        return tuple(
            SeenShare(
                PodShare(**{name: value for name, value in each.items() if name in names}),
                each["gpu"],
                is_simulated=each.get("is_simulated", False),
            )
            for each in document["shares"]
        )
    except (ValueError, KeyError, TypeError) as exc:
        raise NodeError(f"what answers at {address} is no driver of pgpu: HTTP {status}") from exc
