"""GiB of GPU memory as devices of a kubelet: their ids, which of them fit together, and the claim that they make. Pure."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pgpu.errors import CapacityError, RequestError
from pgpu.model import Claim, Slice
from pgpu.units import GIB

RESOURCE = "pgpu.io/gpu-memory-gib"
"""What a container's limits name; an amount of 30 is 30 GiB of one GPU."""

UNIT_BYTES = GIB

_BETWEEN = "::"
"""Between GPU and number, as NVIDIA's own plugin writes replicas of a GPU: exporters know how to cut them."""

_UID_PREFIX = "dp-"
_UID_DIGITS = 40


@dataclass(frozen=True, slots=True, order=True)
class Unit:
    """One GiB of one GPU."""

    gpu_uuid: str
    number: int

    @property
    def id(self) -> str:
        """As the kubelet knows it: `GPU-8f2…::17`."""
        return f"{self.gpu_uuid}{_BETWEEN}{self.number}"


def unit_of(text: str) -> Unit:
    """Read an id.

    Raises:
        RequestError: It is none of ours.
    """
    gpu_uuid, between, number = text.rpartition(_BETWEEN)
    if not (gpu_uuid and between and number.isdecimal() and number.isascii()):
        raise RequestError(f"{text!r} is no GiB of a GPU of this node")
    return Unit(gpu_uuid, int(number))


def units_of(ids: Iterable[str]) -> tuple[Unit, ...]:
    """Read the ids that one container gets: distinct, in order, of one GPU.

    Raises:
        RequestError: None, one twice, or one that is not ours.
        CapacityError: They are of several GPUs: no GPU has as much free.
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


_SPAN_HINT = "a node's free GiB are counted together; ask for less, or use a cluster with DRA (docs/kubernetes.md, Older clusters)"


def preferred(available: Iterable[str], must_include: Iterable[str], count: int) -> list[str]:
    """Choose the units for one container: all of one GPU, of the one with the least free that has enough.

    Args:
        available: Ids that are free, those that must be included among them.
        must_include: Ids that an init container of the same pod has already.
        count: How many, in all.

    Raises:
        RequestError: An id is not ours, or more must be included than are asked for.
        CapacityError: No GPU has as many.
    """
    wanted = {unit_of(each) for each in must_include}
    free = {unit_of(each) for each in available} | wanted
    if count < 1 or len(wanted) > count:
        raise RequestError(f"{count} GiB cannot hold the {len(wanted)} that are asked for by name")
    by_gpu: dict[str, list[Unit]] = {}
    for unit in sorted(free):
        by_gpu.setdefault(unit.gpu_uuid, []).append(unit)
    fitting = [units for units in by_gpu.values() if len(units) >= count and wanted.issubset(units)]
    if not fitting:
        raise _nowhere(count, by_gpu, wanted)
    chosen = min(fitting, key=lambda units: (len(units), units[0].gpu_uuid))
    rest = [unit for unit in chosen if unit not in wanted]
    return [unit.id for unit in sorted([*wanted, *rest[: count - len(wanted)]])]


def _nowhere(count: int, by_gpu: dict[str, list[Unit]], wanted: set[Unit]) -> CapacityError:
    most = max(map(len, by_gpu.values()), default=0)
    total = sum(map(len, by_gpu.values()))
    if wanted:
        why = "the GPU of the pod's init container has fewer free"
    else:
        why = f"the node has {total} GiB free on {len(by_gpu)} GPUs, and at most {most} of them on one"
    return CapacityError(f"{count} GiB of one GPU are asked for: {why}", hint=_SPAN_HINT)


def uid_of(units: Iterable[Unit]) -> str:
    """Return whose slice these units are: the same units, the same uid, whoever asks and in whatever order."""
    words = "\n".join(each.id for each in sorted(units))
    return _UID_PREFIX + hashlib.sha256(words.encode()).hexdigest()[:_UID_DIGITS]


def claim_of(units: Sequence[Unit]) -> Claim:
    """Return the claim that units of one GPU make. The kubelet tells neither pod nor namespace."""
    note = json.dumps({"units": [each.number for each in sorted(units)]}, separators=(",", ":"))
    part = Slice(units[0].gpu_uuid, len(units) * UNIT_BYTES)
    return Claim(uid_of(units), "", "", (part,), note=note)


def is_ours(claim: Claim) -> bool:
    """Whether units of this resource made a claim, and no ResourceClaim."""
    return claim.uid.startswith(_UID_PREFIX)


def units_in(claim: Claim) -> frozenset[Unit]:
    """Return the units that a claim of ours was made of."""
    numbers: list[int] = json.loads(claim.note)["units"]
    return frozenset(Unit(claim.slices[0].gpu_uuid, number) for number in numbers)
