"""The slices of containers that asked for units: made when the kubelet allocates, freed when it surely gave them up.

Nobody tells of a release. What is known: at any time a unit is at most one running container's. The kubelet gives one to
two containers only where they follow each other: an init container and its pod's others, or somebody new, whose predecessor is
gone. So at most one slice has a unit: who allocates it or starts with it next takes it over, and each start of a container
makes its slice again where it had to go meanwhile. Besides, what podresources does not show for a while is free; it shows no
init containers, and nothing at all after a start of the kubelet, so this module refuses to free a slice with a process in it.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pgpu.enforcement import SliceUse
from pgpu.engine.claims import Claims
from pgpu.kubernetes.device_plugin.slice_delivery import SliceDelivery
from pgpu.kubernetes.device_plugin.unit_ids import Unit, claim_of, is_ours, uid_of, units_in, units_of
from pgpu.model import HeldClaim
from pgpu.runtimes.claimed import Viewers

GRACE_SECONDS = 30.0
"""How long units must be missing among those of pods before their slice goes: a kubelet may be busy, but not for so long."""


def _has_viewers(held: HeldClaim) -> bool:
    return any(True for _ in Viewers(held.delivery.slice_directory).members())


@dataclass(slots=True)
class _Standing:
    """What is known of one slice."""

    held: HeldClaim
    units: frozenset[Unit]
    is_started: bool
    """Whether a container may have been started in it."""

    missing_since: float | None = None
    """Since when the kubelet shows nobody who has its units; None where it does, or where nobody looked."""


@dataclass(slots=True)
class UnitSlices:
    """All slices that units were given for. Safe for many threads."""

    claims: Claims
    delivering: SliceDelivery
    say: Callable[[str], None]
    """Takes one line for the operator."""

    has_processes: Callable[[HeldClaim], bool] = _has_viewers
    """Whether any process, with or without a context, is in a container that has the slice."""

    grace_seconds: float = GRACE_SECONDS
    now_seconds: Callable[[], float] = time.monotonic
    _standing: dict[str, _Standing] = field(default_factory=dict)
    _asked: frozenset[Unit] = frozenset()
    """Units of the slice that is being made: the engine may count it before we know of it."""

    _guard: threading.Lock = field(default_factory=threading.Lock)

    def take_over(self) -> Sequence[HeldClaim]:
        """Take charge of the slices that an earlier process of this driver made: the kubelet may have started anything in them.

        Raises:
            NodeError: The ledger cannot be used.
        """
        with self._guard:
            for held in self.claims.held():
                if is_ours(held.claim):
                    self.delivering.put(held)
                    self._standing[held.claim.uid] = _Standing(held, units_in(held.claim), is_started=True)
            return [each.held for each in self._standing.values()]

    def in_use(self) -> frozenset[Unit]:
        """Return the units that slices were made for, or are being made."""
        asked, known = self._asked, list(self._standing.values())
        return asked.union(*(each.units for each in known))

    def allocate(self, ids: Iterable[str]) -> HeldClaim:
        """Make the slice of one container; the same units again, before it was started, get the same one.

        Raises:
            RequestError: These are no units of this node, or too few for a CUDA context.
            CapacityError: They are of several GPUs, or the GPU is fuller than the kubelet knows.
            NodeError: The GPU is gone, or the limit cannot be enforced.
        """
        units = units_of(ids)
        with self._guard:
            return self._hold(units, self._overlapping(units) + self._predecessors(units), is_started=False)

    def start(self, ids: Iterable[str]) -> HeldClaim:
        """Make sure of a container's slice before each of its starts, also the tenth.

        Raises:
            RequestError: These are no units of this node.
            CapacityError: The slice is gone, and there is no room for it any more.
            NodeError: The slice is gone and cannot be made again.
        """
        units = units_of(ids)
        with self._guard:
            return self._hold(units, self._overlapping(units), is_started=True)

    def _hold(self, units: Sequence[Unit], over: Sequence[_Standing], *, is_started: bool) -> HeldClaim:
        self._clear(over)
        self._asked = frozenset(units)
        try:
            held = self.claims.hold(claim_of(units))
            before = self._standing.get(held.claim.uid)
            was_started = before is not None and before.is_started
            self._standing[held.claim.uid] = _Standing(held, frozenset(units), is_started or was_started)
        finally:
            self._asked = frozenset()
        self.delivering.put(held)
        return held

    def _overlapping(self, units: Sequence[Unit]) -> list[_Standing]:
        mine = uid_of(units)
        return [each for uid, each in self._standing.items() if uid != mine and not each.units.isdisjoint(units)]

    def _predecessors(self, units: Sequence[Unit]) -> list[_Standing]:
        """Return the slice that had just these units, if it was used: somebody new gets counters that begin at nothing."""
        before = self._standing.get(uid_of(units))
        return [before] if before is not None and before.is_started else []

    def _clear(self, over: Sequence[_Standing]) -> None:
        """Free what the kubelet gave to somebody else; what is still in use stays, and counts."""
        uses = self.claims.uses() if over else {}
        for each in over:
            if self._is_busy(each, uses):
                self.say(f"{_told(each)} is given away by the kubelet while it is still in use: it stays until then")
            else:
                self._free(each)

    def _free(self, standing: _Standing) -> None:
        uid = standing.held.claim.uid
        self.delivering.take(uid)
        self.claims.free(uid)
        del self._standing[uid]

    def look(self, shown: Collection[str]) -> Sequence[str]:
        """Free what is shown no more, and return the uids.

        Args:
            shown: The ids that containers of pods have, as podresources tells them now.

        Raises:
            NodeError: The use of slices cannot be read, or somebody holds memory of one still: nothing is forgotten.
        """
        with self._guard:
            over = [each for each in self._standing.values() if self._is_over(each, shown)]
            uses = self.claims.uses() if over else {}
            gone = [each for each in over if not self._is_busy(each, uses)]
            for each in gone:
                self._free(each)
            return [each.held.claim.uid for each in gone]

    def _is_over(self, standing: _Standing, shown: Collection[str]) -> bool:
        if any(unit.id in shown for unit in standing.units):
            standing.missing_since = None
            return False
        if standing.missing_since is None:
            standing.missing_since = self.now_seconds()
            return False  # it may have been allocated after the kubelet was asked
        return self.now_seconds() - standing.missing_since >= self.grace_seconds

    def _is_busy(self, standing: _Standing, uses: Mapping[str, Sequence[SliceUse]]) -> bool:
        used = uses.get(standing.held.claim.uid, ())
        return any(each.processes or each.used_bytes for each in used) or self.has_processes(standing.held)


def _told(standing: _Standing) -> str:
    return f"the slice of {len(standing.units)} GiB of GPU {standing.held.claim.slices[0].gpu_uuid}"
