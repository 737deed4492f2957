"""How the jobs on one GPU share it, and whom they let in beside them.

Two modes never meet on one GPU. Whoever comes to an idle one decides its mode, for as long as anybody is there. It refuses
to know how well jobs go together: that is `advising`'s.
"""

from dataclasses import dataclass, replace

from pgpu.model import Gpu, Request, SharingMode, SharingWish

MOST_MPS_CLIENTS = 48
"""Jobs of one process each; who has more finds the server full. Source: NVIDIA, "Multi-Process Service", section on limits."""

MOST_MPS_CLIENTS_FROM_BLACKWELL = 60
_BLACKWELL = (10, 0)

FIRST_WITH_MPS = (7, 0)
"""Compute capability of Volta. Before it clients share one address space, so that nothing keeps one out of another's memory: same
document."""


@dataclass(frozen=True, slots=True)
class Tenancy:
    """Who is on one GPU."""

    mode: SharingMode | None = None
    """None where nobody is."""

    owner_uid: int | None = None
    """Whose jobs they are, under MPS; None in the other modes."""

    jobs: int = 0

    def admits(self, mode: SharingMode, owner_uid: int, most_clients: int = MOST_MPS_CLIENTS) -> bool:
        """Whether a job of this user may join in this mode. Under MPS a fault of one ends all: only one user's are together."""
        if self.mode is None:
            return True
        if self.mode is not mode or mode is SharingMode.EXCLUSIVE:
            return False
        return mode is not SharingMode.MPS or (self.owner_uid == owner_uid and self.jobs < most_clients)

    def joined(self, mode: SharingMode, owner_uid: int) -> "Tenancy":
        """Return the same with one job more."""
        return Tenancy(mode, owner_uid if mode is SharingMode.MPS else None, self.jobs + 1)

    def left(self) -> "Tenancy":
        """Return the same with one job less."""
        return replace(self, jobs=self.jobs - 1) if self.jobs > 1 else IDLE


IDLE = Tenancy()


def mode_of(wish: SharingWish) -> SharingMode:
    """Return the mode in which a job starts that wishes this, where nothing is measured of it."""
    return _MODES[wish]


_MODES = {wish: SharingMode.TIME_SLICE if wish is SharingWish.AUTO else SharingMode(wish.value) for wish in SharingWish}


def supports_mode(gpu: Gpu, request: Request) -> bool:
    """Whether a GPU can be in the mode that a request starts in; one that does not tell its generation is believed to.

    Before Volta only measurements run under MPS: what a command could hurt there is an antagonist of pgpu.
    """
    return mode_of(request.sharing) is not SharingMode.MPS or has_mps(gpu) or request.measures


def has_mps(gpu: Gpu) -> bool:
    """Whether anybody's jobs may share a GPU under MPS; one that does not tell its generation is believed to be new enough."""
    return gpu.compute_capability is None or gpu.compute_capability >= FIRST_WITH_MPS


def most_clients(gpu: Gpu) -> int:
    """Return how many jobs may share a GPU by MPS."""
    is_new = gpu.compute_capability is not None and gpu.compute_capability >= _BLACKWELL
    return MOST_MPS_CLIENTS_FROM_BLACKWELL if is_new else MOST_MPS_CLIENTS
