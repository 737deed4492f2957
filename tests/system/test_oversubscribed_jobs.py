"""`--oversubscribe` as its users meet it: CUDA programs on a simulated GPU that hold more than it has take turns, and say so."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.system.conftest import Place, opened_place
from tests.waiting import until

MEMORY = "4128MiB"
"""Three quarters of the card."""

WORKS = (sys.executable, "-m", "pgpu.workloads", "hotspot3d", "--memory", "4GiB", "--seconds", "120")


@pytest.fixture
def paging() -> Iterator[Place]:
    with opened_place() as made:
        made.environment["PGPU_SIMULATE"] = "GTX 980 Ti paging"
        yield made


def submit(place: Place, name: str) -> str:
    done = place.run("submit", "--name", name, "--memory", MEMORY, "--oversubscribe", "--", *WORKS)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def running(place: Place) -> list[Any]:
    return [job for job in place.json("ps")["jobs"] if job["state"] == "running" and job["time"]]


def time_of(job: Any) -> Any:
    return job["time"][0]


def holder_and_other(place: Place) -> tuple[Any, Any] | None:
    """The job whose turn it is, and the one that waits for its own; None until it is so."""
    jobs = running(place)
    has = [job for job in jobs if time_of(job)["turn_until_seconds"] is not None]
    waits = [job for job in jobs if time_of(job)["is_held"]]
    return (has[0], waits[0]) if len(has) == 1 and len(waits) == 1 else None


def test_programs_that_hold_more_than_the_gpu_take_turns_and_say_whose_it_is(paging: Place) -> None:
    for name in ("left", "right"):
        submit(paging, name)
    until(lambda: holder_and_other(paging))
    table = paging.run("ps", COLUMNS="300").stdout
    assert "TURN" in table
    assert "waits" in table
    found = until(lambda: holder_and_other(paging))
    assert found is not None
    holder, other = found
    assert {holder["name"], other["name"]} == {"left", "right"}
    part = other["lease"]["slices"][0]
    assert part["memory_bytes"] / 1.51 < part["resident_bytes"] < part["memory_bytes"] / 1.49

    done = paging.run("stop", "--time", "0", holder["id"])
    assert done.returncode == 0, done.stderr
    launches = time_of(other)["launches"]
    until(lambda: any(not time_of(job)["is_held"] and time_of(job)["launches"] > launches for job in running(paging)))


def test_a_gpu_that_cannot_page_is_refused_before_anything_is_stored(paging: Place) -> None:
    paging.environment["PGPU_SIMULATE"] = "GTX 980 Ti"
    done = paging.run("run", "--memory", "1GiB", "--oversubscribe", "--", "true")
    assert done.returncode == 125
    assert "cannot move memory to the host while kernels run" in done.stderr
    assert paging.json("ps", "--all")["jobs"] == []
