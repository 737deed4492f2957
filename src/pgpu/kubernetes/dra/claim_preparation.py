"""Prepares claims for containers and takes them back: the slice first, then the CDI file; backwards the other way round.

Everything may be asked again at any time, in any order, by several at once. It refuses a claim that the API server knows
otherwise than the kubelet does, and leaves no half of one that it refused.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pgpu.engine.claims import Claims
from pgpu.engine.claims.keyed_locks import KeyedLocks
from pgpu.errors import PgpuError, RequestError
from pgpu.kubernetes.api import AllocatedDevice, ResourceClaim
from pgpu.kubernetes.dra.cdi_files import CdiFiles, content_of, device_id
from pgpu.kubernetes.dra.claim_allocation import NOTE, Allocation, base_request, read_allocation
from pgpu.kubernetes.dra.container_edits import container_edits
from pgpu.model import Claim, Delivery, HeldClaim
from pgpu.units import quoted

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}", re.ASCII)

GpuEdits = Callable[[Delivery], Mapping[str, list[Any]] | None]
"""What the real GPUs of a delivery need in a container; None for simulated ones. Raises NodeError."""


@dataclass(frozen=True, slots=True)
class ClaimName:
    """What the kubelet says of a claim."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One device of a prepared claim, as the kubelet wants it back."""

    pool: str
    device: str
    requests: tuple[str, ...]
    cdi_ids: tuple[str, ...]
    share_id: str | None


class ClaimReader(Protocol):
    """Who knows claims: the API server."""

    def claim(self, namespace: str, name: str) -> ResourceClaim:
        """Return a claim as it is now.

        Raises:
            PgpuError: There is none, or nobody answers.
        """
        ...


class ClaimObserver(Protocol):
    """Who is told what happens to a claim."""

    def prepared(self, claim: Claim) -> None:
        """It has its slices."""
        ...

    def unprepared(self, uid: str) -> None:
        """Nothing of it is left."""
        ...

    def ignored(self, found: ResourceClaim, fields: Sequence[str]) -> None:
        """It set parameters that only a DeviceClass may set."""
        ...

    def mended(self, what: str) -> None:
        """Something that was gone is there again."""
        ...


class ClaimPreparer:
    """The claims of one node. Safe for many threads."""

    def __init__(
        self,
        claims: Claims,
        reader: ClaimReader,
        files: CdiFiles,
        *,
        node: str,
        teller: ClaimObserver,
        gpu_edits: GpuEdits,
    ) -> None:
        self._claims = claims
        self._reader = reader
        self._files = files
        self._node = node
        self._teller = teller
        self._gpu_edits = gpu_edits
        self._locks = KeyedLocks()

    def prepare(self, name: ClaimName) -> tuple[PreparedDevice, ...]:
        """Give a claim its slices, and containers a way to them; again the same, where it has them.

        Raises:
            PgpuError: It cannot be, or not now; whatever it had before it still has.
        """
        _check_uid(name.uid)
        with self._locks.held(name.uid):
            found = self._reader.claim(name.namespace, name.name)
            if found.uid != name.uid:
                raise RequestError(
                    f"claim {name.namespace}/{name.name} is another one now: {quoted(found.uid)}",
                    hint="the pod of the older one must go first",
                )
            allocation = read_allocation(found, self._node, self._gpu_bytes(name.uid))
            self._free_what_it_had(allocation.claim)
            self._deliver(self._claims.hold(allocation.claim))
            self._tell(found, allocation)
        return tuple(_prepared(device, name.uid) for device in allocation.devices)

    def unprepare(self, uid: str) -> None:
        """Take a claim's slices back; nothing where it has none. No new container finds it from the first step on.

        Raises:
            PgpuError: Something of it is still held; it is asked for again.
        """
        if not _UID.fullmatch(uid):
            return  # never prepared
        with self._locks.held(uid):
            self._files.take(uid)
            self._claims.free(uid)
            self._teller.unprepared(uid)

    def known(self) -> Sequence[Claim]:
        """Return the claims that are prepared, also where their slices are gone.

        Raises:
            NodeError: The ledger cannot be read.
        """
        return [record.claim for record in self._claims.records().values() if record.claim.note == NOTE]

    def restore(self) -> None:
        """Make slices and CDI files of all held claims again where they are gone, as after a reboot.

        Raises:
            PgpuError: It is not known which claims are held, or the file of one cannot be written; those of the others are.
        """
        wrong: list[PgpuError] = []
        for held in self._claims.held():
            try:
                self._restore(held)
            except PgpuError as exc:
                wrong.append(exc)
        if wrong:
            raise wrong[0]

    def mend(self, *, is_complete: bool) -> None:
        """Make CDI files again that are gone, and remove those of claims that nobody holds.

        Args:
            is_complete: Whether all held claims were restored once; until then nothing is removed.

        Raises:
            NodeError: One cannot be written.
        """
        for what in self._files.mend(is_complete=is_complete):
            self._teller.mended(what)

    def _restore(self, held: HeldClaim) -> None:
        uid = held.claim.uid
        with self._locks.held(uid):
            record = self._claims.records().get(uid)
            is_still_held = record is not None and record.job_id == held.job_id and not record.is_freed
            if is_still_held and held.claim.note == NOTE:
                self._deliver(held)

    def _deliver(self, held: HeldClaim) -> None:
        uid, delivery = held.claim.uid, held.delivery
        edits = container_edits(delivery, self._files.seal_of(uid), os.uname().machine, self._gpu_edits(delivery))
        self._files.put(uid, content_of(uid, edits))

    def _free_what_it_had(self, claim: Claim) -> None:
        """Free what an earlier allocation of the same claim had, and what a driver that died was about to free."""
        had = self._claims.records().get(claim.uid)
        if had is None:
            return
        if had.is_freed or (had.claim.slices, had.claim.sharing) != (claim.slices, claim.sharing):
            self._claims.free(claim.uid)

    def _gpu_bytes(self, uid: str) -> dict[str, int]:
        """Return what a claim may have of each GPU: what it has already stays as it is."""
        offered = {offer.gpu.uuid: offer.memory_bytes for offer in self._claims.gpus()}
        had = self._claims.records().get(uid)
        return offered if had is None else offered | {part.gpu_uuid: part.memory_bytes for part in had.claim.slices}

    def _tell(self, found: ResourceClaim, allocation: Allocation) -> None:
        self._teller.prepared(allocation.claim)
        if allocation.ignored:
            self._teller.ignored(found, allocation.ignored)


def _check_uid(uid: str) -> None:
    if not _UID.fullmatch(uid):
        raise RequestError(f"{quoted(uid)} is no uid of a claim")


def _prepared(device: AllocatedDevice, uid: str) -> PreparedDevice:
    return PreparedDevice(
        device.pool, device.device, (base_request(device.request),), (device_id(uid),), device.share_id
    )
