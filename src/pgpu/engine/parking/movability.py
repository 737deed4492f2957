"""Whether all that a job holds of its GPU can go to the host: asked before anybody is suspended for it, and before it leaves.

The driver is asked once; of a job it is known only once it was tried, and remembered.
"""

from pathlib import Path

from pgpu.enforcement.checkpoints import Checkpoints
from pgpu.engine.parking.parking_state import load_parking
from pgpu.model import Job, SharingMode


def can_leave(job: Job, checkpoints: Checkpoints | None, path: Path) -> bool:
    """Whether a job with a lease may leave its GPU whole, as far as anybody knows.

    Of jobs that oversubscribe the driver moves pages by itself, and nothing else; under MPS there is no leaving.

    Args:
        job: Any.
        checkpoints: Of its driver; None where there are none.
        path: Where it is written down how its leaving stands.
    """
    lease = job.lease
    if lease is None or len(lease.slices) != 1 or lease.sharing is not SharingMode.TIME_SLICE:
        return False
    if job.request.oversubscribes or checkpoints is None or not checkpoints.are_offered():
        return False
    parking = load_parking(path)
    return parking is None or not parking.reason
