"""A server under load in which everybody is killed at random; benchmarks/kill_storm is the long form."""

import signal
from collections.abc import Callable
from typing import Any

import pytest
from tests.served import serving
from tests.soak.server_storm import opened_storm
from tests.system.conftest import Place, opened_place


@pytest.mark.soak
def test_a_storm_over_server_jobs_and_clients_loses_no_job_starts_none_twice_and_tells_no_lie() -> None:
    with opened_storm(seed=5) as storm:
        storm.rage(kills=20)


COUNTS = 'echo begin >>"$0-$PGPU_ARRAY_INDEX"; sleep 1; echo end >>"$0-$PGPU_ARRAY_INDEX"'
JOBS = 16


def ended(place: Place) -> int:
    """How many jobs of the array wrote their last word."""
    return sum("end" in path.read_text() for path in place.path.glob("counts-*"))


@pytest.mark.soak
def test_a_server_that_is_stopped_under_load_hands_everything_over_to_the_next_one(
    eventually: Callable[[Callable[[], Any]], Any],
) -> None:
    with opened_place() as place, serving(place.path / "run", state_dir=place.path / "state") as server:
        place.environment["PGPU_HOST"] = server.host
        array = place.run("submit", "--array", f"1-{JOBS}", "--memory", "4GiB", "--", "sh", "-c", COUNTS, "counts")
        assert array.returncode == 0, array.stderr
        script = "for i in $(seq 20); do echo $i; sleep 0.1; done; exit 6"
        attached = [place.start("run", "--memory", "1GiB", "--", "sh", "-c", script) for _ in range(2)]
        for asker in attached:
            assert asker.stdout is not None
            assert asker.stdout.readline() == "1\n"
        for _ in range(2):
            assert server.end(signal.SIGTERM) == 0
            assert "Traceback" not in server.said()
            server.start()
        for asker in attached:
            assert asker.stdout is not None
            assert asker.stderr is not None
            rest, said = asker.stdout.read(), asker.stderr.read()
            assert (rest.split(), asker.wait()) == ([str(line) for line in range(2, 21)], 6), said
        assert server.end(signal.SIGTERM) == 0
        eventually(lambda: ended(place) == JOBS)  # with no server at all
        server.start()
        assert place.run("wait", array.stdout.strip()).stdout.split() == ["0"] * JOBS
        said_by_all = [path.read_text() for path in place.path.glob("counts-*")]
        assert said_by_all == ["begin\nend\n"] * JOBS
        eventually(lambda: place.json("gpus")["gpus"][0]["granted_bytes"] == 0)
