"""The slices of containers with units: made when the kubelet allocates, freed when it has certainly given the units up.

The device plugin API has no call for a release. At any time a unit belongs to at most one running container: the kubelet gives one
unit to two containers only in sequence, such as an init container and its pod's others, or a new pod after an old one ended. So
at most one slice has a unit. A new allocation or a start takes units over from the slice that had them, and each start of a
container makes its slice again if it was freed meanwhile.

Besides, units that podresources has not listed for some time are free. That list has no init containers, and nothing at all
just after the kubelet started, so a slice with a process in it is never freed.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from pgpu.enforcement import SliceUse
from pgpu.engine.claims import Claims
from pgpu.kubernetes.device_plugin.slice_delivery import SliceDelivery
from pgpu.kubernetes.unit_ids import Unit, claim_of, is_ours, uid_of, units_in, units_of
from pgpu.model import HeldClaim
from pgpu.runtimes.claim_runtime import Viewers
from pgpu.structs import Struct, field

_log = logging.getLogger(__name__)

GRACE_SECONDS = 30.0
"""How long units must be missing from all pods: longer than a busy kubelet takes to list a new pod."""


def _has_viewers(held: HeldClaim) -> bool:
    return any(True for _ in Viewers(held.delivery.slice_directory).members())


class _UnitSlice(Struct):
    held: HeldClaim
    units: frozenset[Unit]
    was_started: bool
    """Whether a container may have been started in it."""

    missing_since: float | None = None
    """Since when no pod is listed with its units; None: one is, or the pods were not read yet."""


class UnitSlices(Struct):
    """All slices of units. Thread-safe."""

    claims: Claims
    delivery: SliceDelivery
    has_processes: Callable[[HeldClaim], bool] = _has_viewers
    """Whether any process, with or without a CUDA context, is in a container that has the slice."""

    grace_seconds: float = GRACE_SECONDS
    now_seconds: Callable[[], float] = time.monotonic
    # By uid; changed under the lock.
    _slices: dict[str, _UnitSlice] = field(default_factory=dict)

    # Units of the slice that is being made: the engine may count it before it is in the table.
    _requested: frozenset[Unit] = frozenset()

    _guard: threading.Lock = field(default_factory=threading.Lock)

    def take_over(self) -> Sequence[HeldClaim]:
        """Take over the slices of an earlier driver process; containers may have been started in all of them.

        Raises:
            NodeError: The ledger cannot be used.
        """
        with self._guard:
            for held in self.claims.held():
                if is_ours(held.claim):
                    self.delivery.put(held)
                    self._slices[held.claim.uid] = _UnitSlice(held, units_in(held.claim), was_started=True)
            return [each.held for each in self._slices.values()]

    def in_use(self) -> frozenset[Unit]:
        """Return the units of all slices, including the one that is being made. Takes no lock: an allocation may last 40 s."""
        requested, known = self._requested, list(self._slices.values())
        return requested.union(*(each.units for each in known))

    def allocate(self, ids: Iterable[str]) -> HeldClaim:
        """Make the slice of one container; the same units again, before its start, return the same slice.

        Raises:
            RequestError: These are no units of this node, or too few for a CUDA context.
            CapacityError: They are of several GPUs, or the GPU has less room than the kubelet has counted.
            NodeError: The GPU is gone, or the limit cannot be enforced.
        """
        units = units_of(ids)
        with self._guard:
            former = self._slices.get(uid_of(units))
            # A slice of the same units that was used belongs to an earlier container: the new one gets fresh counters.
            used = [former] if former is not None and former.was_started else []
            return self._hold(units, [*self._overlapping(units), *used], is_start=False)

    def start(self, ids: Iterable[str]) -> HeldClaim:
        """Ensure that a container's slice is there before each of its starts.

        Raises:
            RequestError: These are no units of this node.
            CapacityError: The slice is gone, and there is no room for it any more.
            NodeError: The slice is gone and cannot be made again.
        """
        units = units_of(ids)
        with self._guard:
            return self._hold(units, self._overlapping(units), is_start=True)

    def _hold(self, units: Sequence[Unit], former: Sequence[_UnitSlice], *, is_start: bool) -> HeldClaim:
        uses = self.claims.uses() if former else {}
        for each in former:
            if self._is_busy(each, uses):
                gpu_uuid = each.held.claim.slices[0].gpu_uuid
                _log.warning(
                    "the slice of %d GiB of GPU %s is given away by the kubelet while it is still in use: it stays until then",
                    *(len(each.units), gpu_uuid),
                )
            else:
                self._free(each)
        # Visible to `in_use` before the engine counts the slice, so that the inventory never sees it as lost room.
        self._requested = frozenset(units)
        try:
            held = self.claims.hold(claim_of(units))
            before = self._slices.get(held.claim.uid)
            was_started = before is not None and before.was_started
            self._slices[held.claim.uid] = _UnitSlice(held, frozenset(units), is_start or was_started)
        finally:
            self._requested = frozenset()
        self.delivery.put(held)
        return held

    def _overlapping(self, units: Sequence[Unit]) -> list[_UnitSlice]:
        mine = uid_of(units)
        return [each for uid, each in self._slices.items() if uid != mine and not each.units.isdisjoint(units)]

    def _free(self, unit_slice: _UnitSlice) -> None:
        uid = unit_slice.held.claim.uid
        # Delivery first: no container may start with a slice that is being freed.
        self.delivery.take(uid)
        self.claims.free(uid)
        del self._slices[uid]

    def free_unlisted(self, listed: Collection[str]) -> Sequence[str]:
        """Free the slices whose units are missing from all pods for longer than the grace period; returns their uids.

        Args:
            listed: Ids that containers of pods have, as podresources lists them now.

        Raises:
            NodeError: The use of slices cannot be read, or memory of one is still held; it is tried again next time.
        """
        with self._guard:
            over = [each for each in self._slices.values() if self._is_over(each, listed)]
            # Read after the list of pods: a process that has just started is seen.
            uses = self.claims.uses() if over else {}
            unused = [each for each in over if not self._is_busy(each, uses)]
            for each in unused:
                self._free(each)
            return [each.held.claim.uid for each in unused]

    def _is_over(self, unit_slice: _UnitSlice, listed: Collection[str]) -> bool:
        if any(unit.id in listed for unit in unit_slice.units):
            unit_slice.missing_since = None
            return False
        if unit_slice.missing_since is None:
            # At least one more poll: the slice may have been allocated after the pods were listed.
            unit_slice.missing_since = self.now_seconds()
            return False
        return self.now_seconds() - unit_slice.missing_since >= self.grace_seconds

    def _is_busy(self, unit_slice: _UnitSlice, uses: Mapping[str, Sequence[SliceUse]]) -> bool:
        used = uses.get(unit_slice.held.claim.uid, ())
        return any(each.processes or each.used_bytes for each in used) or self.has_processes(unit_slice.held)
