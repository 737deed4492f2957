"""A server under load in which everybody is killed at random; benchmarks/kill_storm is the long form."""

from tests.system.server_storm import opened_storm


def test_a_storm_over_server_jobs_and_clients_loses_no_job_starts_none_twice_and_tells_no_lie() -> None:
    with opened_storm(seed=5) as storm:
        storm.rage(kills=20)
