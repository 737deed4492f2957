"""A recovery step left out of every supervisor: who has left the GPU never comes back. A storm that does not notice is worth nothing.

Python runs this where the folder is on PYTHONPATH (`python -m benchmarks.sharing_storm --control`).
"""

import sys

if "pgpu.app" in sys.orig_argv:
    from pgpu.engine.leases.departure import Departure
    from pgpu.engine.leases.parking_state import is_travelling
    from pgpu.model import Job

    _comes_back = Departure.come_back

    def _stays_away(self: Departure, job: Job) -> bool:
        is_away = is_travelling(self.context.places(job.id).parking)
        return not is_away and _comes_back(self, job)

    Departure.come_back = _stays_away  # type: ignore[method-assign]
