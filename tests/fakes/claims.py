"""The claims of a node in memory, for tests of a node agent that need no enforced slice.

The contract tests run on this class and on the engine's.
"""

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from pgpu.enforcement import SliceUse
from pgpu.engine.claims import ClaimableGpu, check_words
from pgpu.engine.claims.engine_claims import KeyedLocks
from pgpu.errors import CapacityError, NodeError, RequestError
from pgpu.ledger import ClaimRecord
from pgpu.model import Claim, Delivery, Gpu, HeldClaim, SharingWish
from pgpu.structs import replace
from pgpu.units import GIB


def gpu(index: int = 0, memory_bytes: int = 80 * GIB) -> Gpu:
    """Return a GPU without a claim."""
    return Gpu(
        uuid=f"GPU-00000000-0000-0000-0000-{index:012d}",
        name="NVIDIA H100 80GB HBM3",
        index=index,
        memory_bytes=memory_bytes,
        driver_version="580.65.06",
        is_simulated=True,
        compute_capability=(9, 0),
    )


class FakeClaims:
    """`Claims` with empty directories as slices."""

    def __init__(self, directory: Path, gpus: Sequence[Gpu] | None = None) -> None:
        self.present = list(gpus or [gpu()])
        """Tests may change it: a GPU that is removed here has disappeared."""

        self.outsiders_bytes: dict[str, int] = {}
        self.refusal: Exception | None = None
        """Exception that the next `hold` raises."""

        self.not_made: set[str] = set()
        """Uids of claims with slices that cannot be restored: they are recorded, and `held` leaves them out."""

        self.processes: dict[str, int] = {}
        """By uid: how many processes of a claim have a context on the GPU; none if it is not listed."""

        self._directory = directory
        self._held: dict[str, HeldClaim] = {}
        self._guard = threading.Lock()
        self._locks = KeyedLocks()

    def gpus(self) -> Sequence[ClaimableGpu]:
        """See `Claims.gpus`."""
        with self._guard:
            return [self._offer(each) for each in self.present]

    def lock(self, uid: str) -> AbstractContextManager[None]:
        """See `Claims.lock`."""
        return self._locks.hold(uid)

    def hold(self, claim: Claim, gpus: Sequence[ClaimableGpu] | None = None) -> HeldClaim:
        """See `Claims.hold`."""
        check_words(claim)
        with self._locks.hold(claim.uid), self._guard:
            if self.refusal is not None:
                refusal, self.refusal = self.refusal, None
                raise refusal
            found = self._held.get(claim.uid)
            if found is not None:
                if (found.claim.slices, found.claim.sharing) != (claim.slices, claim.sharing):
                    raise RequestError(f"claim {claim.uid} is held with other slices")
                found = replace(found, claim=claim)
            else:
                self._check_room(claim)
                found = HeldClaim(claim, f"{len(self._held):012x}", self._delivery(claim))
                self._held[claim.uid] = found
            found.delivery.slice_directory.mkdir(parents=True, exist_ok=True)
            return found

    def free(self, uid: str) -> None:
        """See `Claims.free`."""
        with self._locks.hold(uid), self._guard:
            self._held.pop(uid, None)

    def held(self) -> Sequence[HeldClaim]:
        """See `Claims.held`."""
        with self._guard:
            known = [each.claim for uid, each in self._held.items() if uid not in self.not_made]
        found = []
        for claim in known:
            with self._locks.hold(claim.uid):
                if claim.uid in self._held:  # else freed since
                    found.append(self.hold(claim))
        return found

    def records(self) -> Mapping[str, ClaimRecord]:
        """See `Claims.records`."""
        with self._guard:
            return {uid: ClaimRecord(each.claim, each.job_id, is_freed=False) for uid, each in self._held.items()}

    def uses(self) -> Mapping[str, Sequence[SliceUse]]:
        """See `Claims.uses`."""
        with self._guard:
            return {
                uid: [
                    SliceUse(part.gpu_uuid, 0, 0, 0, processes=self.processes.get(uid, 0)) for part in each.claim.slices
                ]
                for uid, each in self._held.items()
            }

    def close(self) -> None:
        """See `Claims.close`."""

    def _check_room(self, claim: Claim) -> None:
        for part in claim.slices:
            offers = [self._offer(each) for each in self.present if each.uuid == part.gpu_uuid]
            if not offers:
                raise NodeError(f"GPU {part.gpu_uuid} is not on this node now")
            modes = {each.claim.sharing for each in self._held.values() if part.gpu_uuid in _uuids(each.claim)}
            is_alone = SharingWish.EXCLUSIVE in {claim.sharing, *modes}
            if part.memory_bytes > offers[0].memory_bytes:
                raise RequestError(f"{part.memory_bytes} bytes can never be granted on one GPU")
            if part.memory_bytes > offers[0].memory_bytes - offers[0].held_bytes or (modes and is_alone):
                raise CapacityError(f"{part.memory_bytes} bytes do not fit on GPU {part.gpu_uuid} now")

    def _offer(self, each: Gpu) -> ClaimableGpu:
        held_bytes = sum(
            part.memory_bytes
            for held in self._held.values()
            for part in held.claim.slices
            if part.gpu_uuid == each.uuid
        )
        return ClaimableGpu(
            each, each.memory_bytes - self.outsiders_bytes.get(each.uuid, 0), held_bytes, is_closed=False
        )

    def _delivery(self, claim: Claim) -> Delivery:
        home = self._directory / claim.uid
        return Delivery(
            slice_directory=home / "view",
            usage_path=home / "usage",
            gpu_uuids=tuple(_uuids(claim)),
            simulated_state_directory=self._directory / "simulated",
            environment=(("CUDA_VISIBLE_DEVICES", ",".join(_uuids(claim))),),
            time_path=home / "time",
            board_directory=self._directory / "board",
        )


def _uuids(claim: Claim) -> list[str]:
    return [part.gpu_uuid for part in claim.slices]
