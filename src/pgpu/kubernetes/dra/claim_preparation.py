"""Prepares ResourceClaims for containers and takes them back.

Preparing makes the engine's slice first and the CDI file last; unpreparing goes the other way, so that a container that starts
meanwhile never finds the file of a slice that is gone. The kubelet repeats its calls at any time and in parallel: every step is
idempotent, and a claim's steps run under the engine's lock for that claim. `hand_over` waits for room, without that lock.
"""

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pgpu.engine.claims import Claims
from pgpu.errors import CapacityError, PgpuError, RequestError
from pgpu.kubernetes.cdi_files import CdiFiles, content_of, device_id
from pgpu.kubernetes.dra.claim_allocation import NOTE, ClaimName, base_request, read_allocation
from pgpu.kubernetes.dra.claim_events import ClaimEvents
from pgpu.kubernetes.dra.container_edits import container_edits
from pgpu.kubernetes.dra.hand_over import HandOver, PodReader, RoomWait
from pgpu.model import Claim, Delivery, HeldClaim
from pgpu.structs import Struct
from pgpu.units import quoted

_log = logging.getLogger(__name__)

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}", re.ASCII)

GpuEdits = Callable[[Delivery], Mapping[str, list[Any]] | None]
"""Returns what the real GPUs of a delivery need in a container; None for simulated ones. Raises NodeError."""


class PreparedDevice(Struct, frozen=True):
    """One device of a prepared claim, as the kubelet expects it back."""

    pool: str
    device: str
    requests: tuple[str, ...]
    cdi_ids: tuple[str, ...]
    share_id: str | None


class ClaimPreparer:
    """The claims of one node. Thread-safe."""

    def __init__(
        self,
        claims: Claims,
        reader: PodReader,
        files: CdiFiles,
        *,
        node: str,
        events: ClaimEvents,
        gpu_edits: GpuEdits,
        check_node: Callable[[], None],
    ) -> None:
        """Prepare claims of one node.

        Args:
            claims: The engine's.
            reader: The cluster's claims and pods.
            files: CDI files of the held claims.
            node: Name of the node and of its pool.
            events: Reports.
            gpu_edits: Needs of real GPUs.
            check_node: Raises PgpuError while it is not known that the container runtime reads CDI files; called often.
        """
        self._claims = claims
        self._reader = reader
        self._files = files
        self._node = node
        self._events = events
        self._gpu_edits = gpu_edits
        self._check_node = check_node
        self._hand_over = HandOver(claims, reader, node, self.unprepare)

    def prepare(self, name: ClaimName, must_answer: Callable[[], bool]) -> tuple[PreparedDevice, ...]:
        """Give a claim its slices and its CDI file; a prepared claim gets the same devices again.

        Args:
            name: The claim, as the kubelet names it.
            must_answer: Whether the call cannot wait any longer; until then it waits for room that leaving pods still have.

        Raises:
            PgpuError: It cannot be prepared, or not now; what it had before stays.
        """
        uid = name.uid
        if not _UID.fullmatch(uid):
            raise RequestError(f"{quoted(uid)} is no uid of a claim")
        self._check_node()
        with self._hand_over.waiting(uid, must_answer) as wait:
            while True:
                try:
                    with self._claims.lock(uid):
                        self._hand_over.begin_attempt(wait)
                        return self._prepare(name, wait)
                except CapacityError as exc:
                    self._hand_over.wait_for_room(wait, exc)

    def _prepare(self, name: ClaimName, wait: RoomWait) -> tuple[PreparedDevice, ...]:
        uid = name.uid
        found = self._reader.claim(name.namespace, name.name)
        # The kubelet may still hold the UID of a deleted claim while a new one has its name.
        if found.uid != uid:
            raise RequestError(
                f"claim {name.namespace}/{name.name} is another one now: {quoted(found.uid)}",
                hint="the pod of the older one must go first",
            )
        # NVML is read once, here: `hold` uses the same reading.
        gpus, had = self._claims.gpus(), self._claims.records().get(uid)
        gpu_bytes = {each.gpu.uuid: each.memory_bytes for each in gpus}
        if had is not None:  # what a claim holds stays as it is, whatever is offered of the GPU now
            gpu_bytes |= {part.gpu_uuid: part.memory_bytes for part in had.claim.slices}
        allocation = read_allocation(found, self._node, gpu_bytes)
        claim = allocation.claim
        is_stale = had is not None and (
            had.is_freed or (had.claim.slices, had.claim.sharing) != (claim.slices, claim.sharing)
        )
        if is_stale:
            # An earlier allocation of the same claim, or one that a driver was freeing when it died. Processes that
            # are killed here are still counted in the reading above, so it is not used again.
            self._claims.free(uid)
            self._hand_over.note_release(uid)
        wait.gpu_uuids = frozenset(part.gpu_uuid for part in claim.slices)
        self._deliver(self._claims.hold(claim, None if is_stale else gpus))
        self._events.prepared(claim)
        if allocation.ignored:
            self._events.ignored(found, allocation.ignored)
        return tuple(
            PreparedDevice(each.pool, each.device, (base_request(each.request),), (device_id(uid),), each.share_id)
            for each in allocation.devices
        )

    def unprepare(self, uid: str) -> None:
        """Take a claim's slices back; does nothing if it has none.

        Raises:
            PgpuError: Something of it is still held; the kubelet calls again.
        """
        if not _UID.fullmatch(uid):
            return  # such a claim was never prepared
        with self._claims.lock(uid):
            self._hand_over.cancel(uid)
            # A crash between the two leaves a slice that is still held: the kubelet calls again, and it is freed
            # then.
            self._files.take(uid)
            self._claims.free(uid)
            self._hand_over.note_release(uid)
            self._events.unprepared(uid)

    def known(self) -> Sequence[Claim]:
        """Return the prepared claims, including those whose slices are gone.

        Raises:
            NodeError: The ledger cannot be read.
        """
        return [record.claim for record in self._claims.records().values() if record.claim.note == NOTE]

    def restore(self) -> None:
        """Make the slices and CDI files of all held claims again if they are gone, as after a reboot.

        Raises:
            PgpuError: The held claims cannot be read, or the file of one cannot be written; those of the others are.
        """
        errors: list[PgpuError] = []
        # One claim that fails must not keep the others without their files.
        for held in self._claims.held():
            try:
                self._restore(held)
            except PgpuError as exc:
                errors.append(exc)
        if errors:
            raise errors[0]

    def mend(self, *, is_complete: bool) -> None:
        """Write missing or changed CDI files again, and remove those of claims that are not held.

        Args:
            is_complete: Whether all held claims were restored once; until then nothing is removed.

        Raises:
            NodeError: A file cannot be written.
        """
        for change in self._files.mend(is_complete=is_complete):
            _log.warning("%s", change)

    def _restore(self, held: HeldClaim) -> None:
        uid = held.claim.uid
        with self._claims.lock(uid):
            # The claim may have been freed, and prepared again, since it was listed.
            record = self._claims.records().get(uid)
            is_still_held = record is not None and record.job_id == held.job_id and not record.is_freed
            if is_still_held and held.claim.note == NOTE:
                self._deliver(held)

    def _deliver(self, held: HeldClaim) -> None:
        uid, delivery = held.claim.uid, held.delivery
        edits = container_edits(delivery, self._files.seal_of(uid), os.uname().machine, self._gpu_edits(delivery))
        self._files.put(uid, content_of(uid, edits))
