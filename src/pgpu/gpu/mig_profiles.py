"""MIG profiles of NVIDIA's products, as data.

Memory and multiprocessors as `nvidia-smi mig -lgip` prints them in NVIDIA's MIG User Guide. Media profiles (`+me`) are left out,
since they differ in nothing that is simulated. A division is checked by its number of slices, not by their placement.
"""

from collections.abc import Mapping

from pgpu.errors import RequestError
from pgpu.structs import Struct
from pgpu.units import MIB

# Of every GPU with MIG.
COMPUTE_SLICES = 7

MEMORY_SLICES = 8


class MigProfile(Struct, frozen=True):
    """One kind of instance."""

    name: str
    """NVIDIA's name: compute slices, and memory in rounded gigabytes."""

    memory_slices: int
    """Of 8."""

    memory_bytes: int
    sm_count: int

    @property
    def compute_slices(self) -> int:
        """Of 7: the number at the beginning of the name."""
        return int(self.name.partition("g")[0])


def _profiles(*rows: tuple[str, int, int, int]) -> Mapping[str, MigProfile]:
    return {name: MigProfile(name, slices, mebibytes * MIB, sm_count) for name, slices, mebibytes, sm_count in rows}


# By the model's slug, then by the profile's name.
PROFILES: Mapping[str, Mapping[str, MigProfile]] = {
    "a100-40": _profiles(
        ("1g.5gb", 1, 4_864, 14),
        ("1g.10gb", 2, 9_856, 14),
        ("2g.10gb", 2, 9_856, 28),
        ("3g.20gb", 4, 19_968, 42),
        ("4g.20gb", 4, 19_968, 56),
        ("7g.40gb", 8, 40_192, 98),
    ),
    "a100-80": _profiles(
        ("1g.10gb", 1, 9_728, 14),
        ("1g.20gb", 2, 19_968, 14),
        ("2g.20gb", 2, 19_968, 28),
        ("3g.40gb", 4, 40_192, 42),
        ("4g.40gb", 4, 40_192, 56),
        ("7g.80gb", 8, 80_640, 98),
    ),
    "h100": _profiles(
        ("1g.10gb", 1, 9_984, 16),
        ("1g.20gb", 2, 20_096, 26),
        ("2g.20gb", 2, 20_096, 32),
        ("3g.40gb", 4, 40_448, 60),
        ("4g.40gb", 4, 40_448, 64),
        ("7g.80gb", 8, 81_008, 132),  # the table's 79.12 GiB, cut to what the whole GPU lets programs use
    ),
    "h200": _profiles(
        ("1g.18gb", 1, 16_384, 16),
        ("1g.35gb", 2, 33_280, 26),  # typical, as the next
        ("2g.35gb", 2, 33_280, 32),
        ("3g.71gb", 4, 71_424, 60),  # 69.75 GiB, which frameworks print
        ("4g.71gb", 4, 71_424, 64),
        ("7g.141gb", 8, 143_104, 132),
    ),
}


def parse_division(slug: str, text: str) -> tuple[MigProfile, ...]:
    """Parse the instances of one GPU, such as `1g.10gb+2g.20gb+3g.40gb`, in that order.

    Raises:
        RequestError: This model has no MIG or no such instance, or they do not fit on it together.
    """
    known = PROFILES.get(slug)
    if known is None:
        raise RequestError(f"{slug} cannot be divided by MIG", hint=f"these can: {', '.join(PROFILES)}")
    names = [name.strip().casefold() for name in text.split("+")]
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise RequestError(f"{slug} has no MIG instance {unknown!r}", hint=f"it has {', '.join(known)}")
    found = tuple(known[name] for name in names)
    compute = sum(instance.compute_slices for instance in found)
    memory = sum(instance.memory_slices for instance in found)
    if compute > COMPUTE_SLICES or memory > MEMORY_SLICES:
        raise RequestError(
            f"these instances need {compute} compute and {memory} memory slices of one {slug}",
            hint=f"it has {COMPUTE_SLICES} and {MEMORY_SLICES}",
        )
    return found
