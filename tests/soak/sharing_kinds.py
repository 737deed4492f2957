"""The ways of sharing of which the storm over shared GPUs makes jobs, and how often each; and whom it kills."""

from dataclasses import dataclass
from pathlib import Path

from pgpu.model import Demand, Evidence, Request, Resource, SharingWish
from pgpu.units import GIB, MIB


@dataclass(frozen=True)
class Kind:
    """A way of sharing."""

    request: Request
    seconds: int = 6
    """How long it works. Programs that do the same are called the same, and `auto` knows them by that."""

    children: int = 0
    image: str | None = None
    verb: str | None = None
    """Of the command that asks for it and stays; None where it is asked for by submission."""

    @property
    def size_mib(self) -> int:
        """What each of its processes allocates."""
        return (self.request.memory_bytes // MIB - 1024) // (1 + self.children)


KINDS = {
    "plain": Kind(Request(2 * GIB)),
    "fair": Kind(Request(3 * GIB, compute_share=0.3)),
    "strict": Kind(Request(3 * GIB, compute_share=0.2, is_strict=True)),
    "many": Kind(Request(6 * GIB, compute_share=0.2), children=2),
    "low": Kind(Request(13 * GIB, priority=-50), seconds=8),
    "urgent": Kind(Request(18 * GIB, priority=50, preempts=True), seconds=3),
    "paged": Kind(Request(12 * GIB, oversubscribes=True), seconds=7),
    "mps": Kind(Request(4 * GIB, sharing=SharingWish.MPS)),
    "mps-part": Kind(Request(4 * GIB, sharing=SharingWish.MPS, compute_share=0.4)),
    "auto": Kind(Request(3 * GIB, sharing=SharingWish.AUTO), seconds=9),
    "container": Kind(Request(2 * GIB, compute_share=0.2), image="pgpu-test:latest"),
    "run": Kind(Request(2 * GIB), seconds=4, verb="run"),
    "profile": Kind(Request(2 * GIB), seconds=3, verb="profile"),
}

WEIGHTS = {
    "plain": 1, "fair": 3, "strict": 2, "many": 2, "low": 3, "urgent": 3, "paged": 4, "container": 1, "run": 1, "profile": 1,
}  # fmt: skip
SEASONS = ({"mps": 3, "mps-part": 3}, {"auto": 12})
"""Who asked for MPS by name is never held, so jobs that `auto` brings together are by themselves every other time."""

VICTIMS = {
    "job": 4, "child": 2, "agent": 6, "guard": 1, "daemon": 2, "mps server": 2, "helper": 3,
    "server": 1, "client": 1, "container": 1,
}  # fmt: skip

LIGHT = (Demand(Resource.SM, 0.2, Evidence.COUNTERS), Demand(Resource.DRAM, 0.1, Evidence.COUNTERS))
"""What `auto` knows of its jobs: they suit each other under MPS."""

WORKER = Path(__file__).with_name("sharing_worker.py")
WORKER_IN_CONTAINER = "/storm/worker.py"
