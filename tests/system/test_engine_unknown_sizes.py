"""Jobs of unknown size, on a machine of files."""

from tests.system.engine_worlds import LONG, world

from pgpu.model import JobSpec, Request, Submission
from pgpu.units import GIB


def test_two_that_come_at_once_start_in_one_round_each_with_what_is_free_on_its_gpu() -> None:
    with world((23, 14)) as machine:
        spec = JobSpec(LONG, "process", working_directory="/")
        asked = Submission(spec, Request(0, is_estimated=True))
        jobs = machine.client.submit_all([asked, asked])
        leases = [machine.until_running(job).lease for job in jobs]
        sizes = {lease.slices[0].memory_bytes for lease in leases if lease is not None}
        assert sizes == {23 * GIB, 14 * GIB}
        assert len({lease.granted_at_seconds for lease in leases if lease is not None}) == 1
