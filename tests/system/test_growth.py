"""Jobs whose size pgpu chose get what they need while there is room, wait for more, and give back what they do not use."""

import fcntl
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import IO, Any

import pytest
from tests.system.conftest import Place, opened_place

from pgpu.units import GIB, MIB

Eventually = Callable[[Callable[[], Any]], Any]

STEPS = """
import ctypes, fcntl, os, sys
from cuda.bindings import driver as cuda
print("attempt", os.environ["PGPU_ATTEMPT"], flush=True)
cuda.cuInit(0)
cuda.cuCtxSetCurrent(cuda.cuDevicePrimaryCtxRetain(0)[1])
for step in sys.argv[1:]:
    if step.isdigit():
        error = int(cuda.cuMemAlloc(int(step) << 20)[0])
        print(step, error, flush=True)
        if error:
            sys.exit(9)
    else:
        fcntl.flock(open(step, "a"), fcntl.LOCK_SH)
"""
"""Each word is an amount in MiB to allocate, or a file that must not be locked before it goes on; ends with 9 where it is refused."""

LIAR = """
import mmap, os, struct, sys
from cuda.bindings import driver as cuda
cuda.cuInit(0)
cuda.cuCtxSetCurrent(cuda.cuDevicePrimaryCtxRetain(0)[1])
with open("/.pgpu/usage", "r+b") as file:
    for sequence in range(1, 10 ** 6):
        os.pwrite(file.fileno(), struct.pack("<Q", sequence << 40 | (1 << 40) - 1), 64 + 56)
        os.pwrite(file.fileno(), b"12345678", 16)
        if os.path.exists("enough"):
            break
"""
"""Wishes for four PiB as often as it can."""


@pytest.fixture
def place() -> Iterator[Place]:
    with opened_place() as made:
        made.environment["PGPU_STABLE_TIME"] = "0.5s"
        (made.path / "steps.py").write_text(STEPS)
        (made.path / "liar.py").write_text(LIAR)
        yield made


def locked(place: Place, name: str) -> IO[str]:
    file = (place.path / name).open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


def memory_bytes(place: Place, name: str) -> int:
    job = place.job(name)
    return 0 if job is None or job["lease"] is None else job["lease"]["slices"][0]["memory_bytes"]


def is_small(place: Place, name: str) -> bool:
    return 0 < memory_bytes(place, name) < 5 * GIB


def has_ended(place: Place, name: str) -> bool:
    return bool(place.job(name)["state"] == "exited")


def has_printed(place: Place, name: str, text: str) -> bool:
    return text in place.run("logs", name).stdout


def submit(place: Place, name: str, *steps: str, options: tuple[str, ...] = ()) -> None:
    done = place.run("submit", "--name", name, *options, "--", "python", "steps.py", *steps)
    assert done.returncode == 0, done.stderr


def test_a_job_that_grows_after_its_slice_was_shrunk_gets_what_it_needs_on_every_run(
    place: Place, eventually: Eventually
) -> None:
    for name in ("late0", "late1", "late2", "late3"):
        with locked(place, "go"):
            submit(place, name, "4096", "go", "3072")
            eventually(partial(has_printed, place, name, "4096 0"))
            if name != "late3":  # three runs have shown what it needs later: it keeps that
                eventually(partial(is_small, place, name))
        eventually(partial(has_ended, place, name))
        assert (place.job(name)["exit_code"], place.job(name)["attempt"]) == (0, 1)
    assert "\n4096 0\n3072 0\n" in place.run("logs", "late3").stdout


def test_a_job_grows_into_the_part_of_a_gpu_that_starts_leave_free(place: Place, eventually: Eventually) -> None:
    with locked(place, "go"):
        submit(place, "grows", "3000", "go", "500")
        eventually(lambda: is_small(place, "grows"))
        room = place.json("gpus")["gpus"][0]
        free_mib = (room["capacity_bytes"] - room["granted_bytes"]) // MIB
        refused = place.run("run", "--memory", f"{free_mib}MiB", "--no-wait", "--", "true")
        assert refused.returncode == 124, "a part is kept for growth"
        pool_mib = 24 * 1024 * 5 // 100
        place.detach("beside", f"{free_mib - pool_mib}MiB", ("sleep", "600"))
        eventually(lambda: place.job("beside")["state"] == "running")
    eventually(lambda: place.job("grows")["state"] == "exited")
    assert (place.job("grows")["exit_code"], place.job("grows")["attempt"]) == (0, 1)


@contextmanager
def waiting_to_grow(place: Place, eventually: Eventually) -> Iterator[None]:
    """Have the job `grows` wait for memory of the job `blocks`, which ends after the block."""
    with locked(place, "end"):
        with locked(place, "go"):
            submit(place, "grows", "3000", "go", "8000")
            eventually(lambda: is_small(place, "grows"))
            place.detach("blocks", "14GiB", ("python", "steps.py", "100", "end"))
            eventually(lambda: has_printed(place, "blocks", "100 0"))
            age_by_clock(place, "grows")
        eventually(lambda: (place.job("grows")["reason"] or "").startswith("waits for "))
        yield


def test_a_job_waits_for_memory_and_gets_it_when_another_one_ends(place: Place, eventually: Eventually) -> None:
    with waiting_to_grow(place, eventually):
        assert place.job("grows")["state"] == "running"
        assert "waiting for" in place.run("logs", "grows").stderr
    eventually(lambda: place.job("grows")["state"] == "exited")
    assert (place.job("grows")["exit_code"], place.job("grows")["attempt"], place.job("grows")["reason"]) == (
        0,
        1,
        None,
    )


def test_while_a_job_waits_to_grow_the_agent_may_be_replaced(place: Place, eventually: Eventually) -> None:
    with waiting_to_grow(place, eventually):
        os.kill(agent_of(place, "grows"), signal.SIGKILL)
    eventually(lambda: place.job("grows")["state"] == "exited")
    assert (place.job("grows")["exit_code"], place.job("grows")["attempt"]) == (0, 1)


def test_a_submitted_job_that_cannot_grow_is_queued_again_with_what_it_attempted(
    place: Place, eventually: Eventually
) -> None:
    place.environment["PGPU_CHECKPOINTS"] = "off"
    with locked(place, "go"):
        submit(place, "grows", "3000", "go", "9000")
        eventually(lambda: is_small(place, "grows"))
        place.detach("blocks", "14GiB", ("sleep", "600"))
        eventually(lambda: place.job("blocks")["state"] == "running")
    eventually(lambda: place.job("grows")["attempt"] == 2)
    job = place.job("grows")
    assert job["state"] == "waiting"
    assert job["request"]["memory_bytes"] > 1.1 * 12000 * MIB
    assert "queued again with 13" in job["warning"]
    assert "(attempt 2 of 3)" in job["warning"]
    place.run("stop", "--time", "0", "blocks")
    eventually(lambda: place.job("grows")["state"] == "exited")
    assert place.job("grows")["exit_code"] == 0
    assert "attempt 2\n3000 0\n9000 0\n" in place.run("logs", "grows").stdout
    assert "not free" in place.run("logs", "grows").stderr
    assert f"pgpu: {job['warning']}\n" in place.run("logs", "grows").stderr


def test_a_job_that_cannot_grow_leaves_its_gpu_until_it_can(place: Place, eventually: Eventually) -> None:
    with locked(place, "go"):
        submit(place, "grows", "3000", "go", "9000")
        eventually(lambda: is_small(place, "grows"))
        place.detach("blocks", "14GiB", ("sleep", "600"))
        eventually(lambda: place.job("blocks")["state"] == "running")
    eventually(lambda: place.job("grows")["parked_at_seconds"] is not None)
    granted_bytes = place.json("gpus")["gpus"][0]["granted_bytes"]
    assert granted_bytes == 14 * GIB
    place.detach("beside", "8GiB", ("python", "steps.py", "7000"))
    eventually(lambda: has_ended(place, "beside"))
    os.kill(agent_of(place, "grows"), signal.SIGKILL)
    place.run("stop", "--time", "0", "blocks")
    eventually(lambda: has_ended(place, "grows"))
    assert (place.job("grows")["exit_code"], place.job("grows")["attempt"]) == (0, 1)
    assert "attempt 1\n3000 0\n9000 0\n" in place.run("logs", "grows").stdout


@pytest.mark.parametrize("verb", ["run", "submit"])
def test_an_attempt_is_not_repeated_unless_it_was_submitted_and_may_be(
    place: Place, eventually: Eventually, verb: str
) -> None:
    place.environment["PGPU_CHECKPOINTS"] = "off"
    place.detach("blocks", "14GiB", ("sleep", "600"))
    eventually(lambda: place.job("blocks")["state"] == "running")
    options = ("--no-retry",) if verb == "submit" else ("--memory", "auto")
    process = place.start(verb, "--name", "grows", *options, "--", "python", "steps.py", "3000", "9000")
    assert process.wait() == (9 if verb == "run" else 0)
    eventually(lambda: place.job("grows")["state"] == "exited")
    assert (place.job("grows")["exit_code"], place.job("grows")["attempt"]) == (9, 1)


def test_a_job_that_waits_to_grow_ends_at_once_when_it_is_stopped(place: Place, eventually: Eventually) -> None:
    with locked(place, "go"):
        submit(place, "grows", "3000", "go", "9000", "never")
        eventually(lambda: is_small(place, "grows"))
        place.detach("blocks", "14GiB", ("sleep", "600"))
        eventually(lambda: place.job("blocks")["state"] == "running")
        age_by_clock(place, "grows")
    eventually(lambda: (place.job("grows")["reason"] or "").startswith("waits for "))
    assert place.run("stop", "--time", "600", "grows").returncode == 0
    eventually(lambda: place.job("grows")["state"] == "exited")


def test_a_job_that_lies_gets_no_more_than_there_is_and_costs_others_nothing(
    place: Place, eventually: Eventually
) -> None:
    done = place.run("submit", "--name", "lies", "--", "python", "liar.py")
    assert done.returncode == 0, done.stderr
    eventually(lambda: place.job("lies")["state"] == "running")
    eventually(lambda: 0 < memory_bytes(place, "lies") < 5 * GIB or place.job("lies")["state"] == "exited")
    place.detach("explicit", "12GiB", ("python", "steps.py", "11000"))
    eventually(lambda: place.job("explicit")["state"] == "exited")
    assert place.job("explicit")["exit_code"] == 0
    room = place.json("gpus")["gpus"][0]
    assert room["granted_bytes"] <= room["capacity_bytes"]
    (place.path / "enough").touch()
    eventually(lambda: place.job("lies")["state"] == "exited")


def agent_of(place: Place, name: str) -> int:
    """Return the PID of the agent that supervises a job."""
    with closing(sqlite3.connect(place.path / "state" / "ledger.db")) as ledger:
        question = "SELECT json_extract(supervisor, '$.pid') FROM jobs WHERE name = ?"
        return int(ledger.execute(question, (name,)).fetchone()[0])


def age_by_clock(place: Place, name: str) -> None:
    """Have a job have run for an hour already: it may wait for as long as it has run."""
    with closing(sqlite3.connect(place.path / "state" / "ledger.db", isolation_level=None, timeout=60)) as ledger:
        ledger.execute("UPDATE jobs SET started_at = started_at - 3600 WHERE name = ?", (name,))
    (place.path / "state" / "ledger.db").touch()
