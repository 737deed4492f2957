"""Jobs that share GPUs in every way while everybody is killed at random; benchmarks/sharing_storm is the long form."""

import pytest
from tests.soak.sharing_kinds import KINDS
from tests.soak.sharing_storm import opened_sharing_storm

pytestmark = pytest.mark.userns


@pytest.mark.soak
def test_a_storm_over_jobs_that_share_gpus_harms_nobody_who_was_not_hit() -> None:
    kinds = {name: KINDS[name] for name in ("fair", "many", "mps", "paged", "low", "urgent")}
    with opened_sharing_storm(11, kinds) as storm:
        storm.rage(kills=8)
