"""A share of a GPU's time from the command line to the driver: what jobs got is read from the simulated driver's own account."""

import sys
import time
from pathlib import Path

import pytest
from tests.system.conftest import Place, served_place
from tests.waiting import until

from pgpu.app.client_factory import open_client
from pgpu.app.settings import Settings
from pgpu.client import Client, GpuTime
from pgpu.client.address import parse_host
from pgpu.gpu.simulated_activity import read_device_times
from pgpu.model import Job, JobState, SharingMode

GOES_ON = (sys.executable, "-m", "pgpu.workloads", "spin", "--kernel-ms", "5", "--launches", "100000")
ENOUGH_NS = 2_000_000_000


def client_of(place: Place) -> Client:
    """Return what asks as the command line does, without a new process for each look."""
    state, runtime = Path(place.environment["PGPU_STATE_DIR"]), Path(place.environment["PGPU_RUNTIME_DIR"])
    host = parse_host(place.environment["PGPU_HOST"])
    return open_client(Settings(state_dir=state, runtime_dir=runtime, simulate="RTX 3090", host=host))


def consumed_ns(place: Place) -> dict[int, int]:
    """Return the GPU time that each process got, by its slot of the driver's."""
    [directory] = (place.path / "run").glob("*/simulated/*")
    return {each.slot: each.consumed_ns for each in read_device_times(directory, 0)}


def submits(place: Place, name: str, *words: str) -> None:
    done = place.run("submit", "--name", name, "--memory", "2GiB", *words)
    assert done.returncode == 0, done.stderr


def spins(place: Place, client: Client, name: str, *words: str, beside: tuple[int, ...] = ()) -> int:
    """Start a job that uses the GPU without an end, and return its slot: the one that grows and is none of the others."""
    submits(place, name, *words, "--", *GOES_ON)
    until(lambda: client.job(name).time)
    before = consumed_ns(place)

    def newcomers() -> list[int]:
        now = consumed_ns(place)
        return [slot for slot in now if slot not in beside and now[slot] > before.get(slot, 0)]

    return until(newcomers)[0]


def shares(place: Place, *slots: int) -> list[float]:
    """Return which share of the GPU's time processes get from now on, over at least two seconds."""
    before, began_ns = consumed_ns(place), time.monotonic_ns()
    until(lambda: time.monotonic_ns() - began_ns >= ENOUGH_NS)
    after, elapsed_ns = consumed_ns(place), time.monotonic_ns() - began_ns
    return [(after[slot] - before[slot]) / elapsed_ns for slot in slots]


def time_of(client: Client, name: str) -> GpuTime:
    [told] = client.job(name).time
    return told


def job(client: Client, name: str) -> Job:
    return client.job(name).job


@pytest.mark.soak
def test_a_strict_share_of_30_gets_less_than_one_of_70_and_never_more_than_it_asked_for(place: Place) -> None:
    client = client_of(place)
    low = spins(place, client, "low", "--compute", "30%", "--strict")
    high = spins(place, client, "high", "--compute", "0.7", beside=(low,))
    low_share, high_share = shares(place, low, high)
    assert low_share < 0.34
    assert high_share > low_share
    assert (time_of(client, "low").got_over_10_seconds or 1.0) < 0.36
    assert time_of(client, "low").waited_seconds > 0
    top = place.run("top").stdout
    assert "30% strict" in top
    assert "70%" in top


def test_a_strict_share_leaves_an_idle_gpu_idle_until_it_is_made_larger_or_fair(place: Place) -> None:
    client = client_of(place)
    slot = spins(place, client, "alone", "--compute", "20%", "--strict")
    assert shares(place, slot)[0] < 0.24
    assert place.run("resize", "alone", "--compute", "40%").returncode == 0
    assert 0.24 < shares(place, slot)[0] < 0.44
    assert place.run("resize", "alone", "--fair").returncode == 0
    until(lambda: (time_of(client, "alone").got_over_1_second or 0.0) > 0.5)
    assert job(client, "alone").request.compute_share == 0.4


def test_through_a_server_no_more_than_the_whole_is_granted_and_who_waits_says_for_what() -> None:
    with served_place() as place:
        client = client_of(place)
        for name, share in (("most", "90%"), ("rest", "10%"), ("late", "5%")):
            submits(place, name, "--compute", share, "--", "sleep", "600")
        until(lambda: job(client, "rest").state is JobState.RUNNING)
        waits = "waits for 5% of a GPU's time: 0% are free"
        until(lambda: (job(client, "late").reason or "").startswith(waits))
        refused = place.run("resize", "rest", "--compute", "20%")
        assert refused.returncode == 125
        assert "10% more of a GPU's time do not fit" in refused.stderr
        assert place.run("resize", "most", "--compute", "80%").returncode == 0
        until(lambda: job(client, "late").state is JobState.RUNNING)
        [gpu] = client.gpus()
        assert (gpu.sharing, round(gpu.granted_compute, 6)) == (SharingMode.TIME_SLICE, 0.95)
