"""GiB of GPU memory as devices of the kubelet: ids, the choice of units for a container, and the claim that units make. Pure."""

import hashlib
import json
from collections.abc import Iterable, Sequence

from pgpu.errors import CapacityError, RequestError
from pgpu.model import Claim, Slice
from pgpu.structs import Struct
from pgpu.units import GIB

RESOURCE = "pgpu.io/gpu-memory-gib"
"""Resource name in a container's limits; an amount of 30 is 30 GiB of one GPU."""

UNIT_BYTES = GIB

# Between GPU and number. NVIDIA's plugin writes replicas of a GPU in this way, and exporters parse it.
_BETWEEN = "::"

_UID_PREFIX = "dp-"
_UID_DIGITS = 40
_SPAN_HINT = "a node's free GiB are counted together; ask for less, or use a cluster with DRA (docs/kubernetes.md, Older clusters)"


class Unit(Struct, frozen=True, order=True):
    """One GiB of one GPU."""

    gpu_uuid: str
    number: int

    @property
    def id(self) -> str:
        """The kubelet's device id: `GPU-8f2…::17`."""
        return f"{self.gpu_uuid}{_BETWEEN}{self.number}"


def unit_of(text: str) -> Unit:
    """Parse an id.

    Raises:
        RequestError: It is no id of a unit.
    """
    gpu_uuid, between, number = text.rpartition(_BETWEEN)
    if not (gpu_uuid and between and number.isdecimal() and number.isascii()):
        raise RequestError(f"{text!r} is no GiB of a GPU of this node")
    return Unit(gpu_uuid, int(number))


def units_of(ids: Iterable[str]) -> tuple[Unit, ...]:
    """Parse the ids of one container: distinct, sorted, of one GPU.

    Raises:
        RequestError: No id, a repeated one, or one that is no unit.
        CapacityError: They are of several GPUs: no single GPU has as much free.
    """
    units = tuple(sorted(unit_of(each) for each in ids))
    if not units or len(set(units)) != len(units):
        raise RequestError("a container needs one or more GiB of a GPU, each of them once")
    gpus = {each.gpu_uuid for each in units}
    if len(gpus) > 1:
        raise CapacityError(
            f"{len(units)} GiB would lie on {len(gpus)} GPUs: no GPU of this node has {len(units)} GiB free",
            hint=_SPAN_HINT,
        )
    return units


def preferred(available: Iterable[str], must_include: Iterable[str], count: int) -> list[str]:
    """Choose the units for one container, all of one GPU: the one with the least free units that has enough.

    Args:
        available: Ids of free units, including those that must be included.
        must_include: Ids that an init container of the same pod has already.
        count: Number of units, including those.

    Raises:
        RequestError: An id is no unit, or more must be included than requested.
        CapacityError: No GPU has as many.
    """
    required = {unit_of(each) for each in must_include}
    free = {unit_of(each) for each in available} | required
    if count < 1 or len(required) > count:
        raise RequestError(f"{count} GiB cannot hold the {len(required)} that are requested by name")
    by_gpu: dict[str, list[Unit]] = {}
    for unit in sorted(free):
        by_gpu.setdefault(unit.gpu_uuid, []).append(unit)
    fitting = [units for units in by_gpu.values() if len(units) >= count and required.issubset(units)]
    if not fitting:
        most = max(map(len, by_gpu.values()), default=0)
        why = f"the node has {len(free)} GiB free on {len(by_gpu)} GPUs, and at most {most} of them on one"
        if required:
            why = "the GPU of the pod's init container has fewer free"
        raise CapacityError(f"{count} GiB of one GPU are asked for: {why}", hint=_SPAN_HINT)
    # Best fit: larger gaps stay for larger containers. The UUID makes ties deterministic.
    chosen = min(fitting, key=lambda units: (len(units), units[0].gpu_uuid))
    rest = [unit for unit in chosen if unit not in required]
    return [unit.id for unit in sorted([*required, *rest[: count - len(required)]])]


def uid_of(units: Iterable[Unit]) -> str:
    """Return the claim uid of a set of units; its order does not matter."""
    # Derived, not stored: the same units have the same uid after a restart of the driver.
    text = "\n".join(each.id for each in sorted(units))
    return _UID_PREFIX + hashlib.sha256(text.encode()).hexdigest()[:_UID_DIGITS]


def claim_of(units: Sequence[Unit]) -> Claim:
    """Return the claim that units of one GPU make. It has no name: the kubelet passes neither pod nor namespace."""
    note = json.dumps({"units": [each.number for each in sorted(units)]}, separators=(",", ":"))
    part = Slice(units[0].gpu_uuid, len(units) * UNIT_BYTES)
    return Claim(uid_of(units), "", "", (part,), note=note)


def is_ours(claim: Claim) -> bool:
    """Whether a claim was made of units, and not of a ResourceClaim."""
    return claim.uid.startswith(_UID_PREFIX)


def units_in(claim: Claim) -> frozenset[Unit]:
    """Return the units that a claim was made of."""
    numbers: list[int] = json.loads(claim.note)["units"]
    return frozenset(Unit(claim.slices[0].gpu_uuid, number) for number in numbers)
