"""`--preempt` where memory cannot page: a suspended job's memory moves to the host, and comes back, whoever is killed."""

import fcntl
import json
import os
import signal
import sys

import pytest
from tests.system import storm_victims
from tests.system.conftest import Place
from tests.waiting import until

from pgpu.ledger import Entry, Ledger
from pgpu.model import ProcessHolder

pytestmark = pytest.mark.userns

WORKS = """
import ctypes, fcntl, pathlib, sys, time
cuda, context, memory = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
kind, count, progress = sys.argv[1], int(sys.argv[2]) << 20, pathlib.Path(sys.argv[3])
if kind == "late":
    fcntl.flock(progress.with_name("now").open("a"), fcntl.LOCK_SH)  # until nobody holds it back
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == cuda.cuCtxSetCurrent(context) == 0
if kind == "allocated":
    assert cuda.cuMemAllocManaged(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(4096), 1) == 0
if kind == "declared":
    text = b".version 6.0\\n.target sm_50\\n.address_size 64\\n.visible .global .attribute(.managed) .align 4 .u32 shared;\\n"
    module = ctypes.c_void_p()
    assert cuda.cuModuleLoadData(ctypes.byref(module), text) == 0
    assert cuda.cuModuleGetGlobal_v2(ctypes.byref(ctypes.c_uint64()), None, module, b"shared") == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(count)) == 0, "no memory"
seen = ctypes.c_ubyte(7)
assert cuda.cuMemsetD8_v2(memory, 7, ctypes.c_size_t(4096)) == 0
for turn in range(1, 1 << 30):
    assert cuda.cuMemcpyDtoH_v2(ctypes.byref(seen), memory, ctypes.c_size_t(1)) == 0
    assert seen.value == (turn + 6) % 256, "its memory changed"
    assert cuda.cuMemsetD8_v2(memory, (turn + 7) % 256, ctypes.c_size_t(4096)) == 0
    progress.write_text(str(turn))
    time.sleep(0.02)
"""
"""Checks what it wrote into its memory last, writes something else, and tells how often."""


def submit(place: Place, name: str, *options: str, managed: str = "nothing") -> str:
    command = (sys.executable, "-c", WORKS, managed, "10240", str(place.path / name))
    done = place.run("submit", "--name", name, "--memory", "13GiB", *options, "--", *command)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def turns(place: Place, name: str) -> int:
    path = place.path / name
    return int((path.read_text() if path.exists() else "") or 0)


def until_it_works(place: Place, name: str) -> None:
    before = turns(place, name)
    until(lambda: turns(place, name) > before, lambda: place.run("logs", name))


def entry(place: Place, job_id: str) -> Entry:
    ledger = Ledger(place.path / "state" / "ledger.db")
    try:
        return ledger.entry(job_id)
    finally:
        ledger.close()


def kill(holder: object) -> None:
    assert isinstance(holder, ProcessHolder)
    storm_victims.kill(holder)  # or it has ended: a guard ends an agent that was silent for 10 s


def supervised(place: Place, job_id: str) -> int:
    seen = entry(place, job_id).supervisor
    assert seen is not None
    return seen.pid


def parking(place: Place, job_id: str) -> dict[str, object]:
    found = [dict(json.loads(path.read_text())) for path in place.path.glob(f"run/*/jobs/{job_id}/parking")]
    return found[0] if found else {}


def two_jobs(place: Place) -> tuple[str, str]:
    """One that works and is then suspended, and the one for which it is."""
    low = submit(place, "low")
    until_it_works(place, "low")
    high = submit(place, "high", "--priority", "high", "--preempt")
    until_it_works(place, "high")
    return low, high


def test_a_job_whose_memory_cannot_page_leaves_the_gpu_and_comes_back_with_what_it_had(place: Place) -> None:
    low, high = two_jobs(place)
    assert parking(place, low)["stage"] == "away"
    assert place.job("low")["suspended_by"] == high
    before = turns(place, "low")
    until_it_works(place, "high")
    assert turns(place, "low") == before
    assert place.job("low")["lease"]["slices"][0]["used_bytes"] > 10 << 30
    assert place.run("stop", "--time", "0", "high").returncode == 0
    until_it_works(place, "low")
    until(lambda: not parking(place, low))
    until(lambda: entry(place, low).job.suspended_by is None)


def test_who_is_killed_meanwhile_costs_the_victim_nothing(place: Place) -> None:
    low, high = two_jobs(place)
    first = entry(place, low).supervisor
    kill(first)
    place.run("ps")
    until(lambda: entry(place, low).supervisor not in {None, first})
    until_it_works(place, "high")
    assert parking(place, low)["stage"] == "away"
    waits = submit(place, "late")
    seen = entry(place, high)
    kill(seen.supervisor)
    kill(seen.job.holder)
    place.run("ps")
    until_it_works(place, "low")
    assert place.job(waits)["state"] == "waiting"


def test_a_job_that_cannot_leave_goes_on_and_who_wanted_its_place_waits_again(place: Place) -> None:
    low = submit(place, "low", managed="declared")  # which only the driver knows
    until_it_works(place, "low")
    high = submit(place, "high", "--priority", "high", "--preempt")
    until(lambda: parking(place, low).get("reason"))
    until(lambda: entry(place, high).job.state == "waiting")
    until_it_works(place, "low")
    assert entry(place, low).job.suspended_by is None
    assert turns(place, "high") == 0
    assert place.run("stop", "--time", "0", "low").returncode == 0
    until_it_works(place, "high")


def test_who_allocates_managed_memory_is_never_asked_to_leave(place: Place) -> None:
    low = submit(place, "low", managed="allocated")
    until_it_works(place, "low")
    until(lambda: parking(place, low).get("reason"))
    high = submit(place, "high", "--priority", "high", "--preempt")
    until(lambda: "free of" in str(place.job(high)["reason"]))
    assert entry(place, low).job.resumed_at_seconds is None
    until_it_works(place, "low")


def test_who_has_not_begun_to_use_the_gpu_when_it_is_suspended_does_so_afterwards(place: Place) -> None:
    with (place.path / "now").open("w") as now:
        fcntl.flock(now, fcntl.LOCK_EX)
        low = submit(place, "low", managed="late")
        until(lambda: entry(place, low).job.state == "running")
        high = submit(place, "high", "--priority", "high", "--preempt")
        until(lambda: parking(place, low).get("stage") == "away")
    until_it_works(place, "high")
    until(lambda: turns(place, "high") > 50)
    assert (turns(place, "low"), entry(place, low).job.state) == (0, "running")
    assert place.run("stop", "--time", "0", "high").returncode == 0
    until_it_works(place, "low")
    assert entry(place, high).job.warning is None


def with_a_child(place: Place) -> str:
    """A job whose work is done by a child of its main process."""
    words = (sys.executable, "-c", WORKS, "nothing", "10240", str(place.path / "low"))
    done = place.run("submit", "--name", "low", "--memory", "13GiB", "--", "sh", "-c", '"$@" & wait', "sh", *words)
    until_it_works(place, "low")
    return done.stdout.strip()


def test_what_a_killed_job_leaves_behind_goes_on_once_its_place_is_its_own_again(place: Place) -> None:
    low = with_a_child(place)
    submit(place, "high", "--priority", "high", "--preempt")
    until_it_works(place, "high")
    kill(entry(place, low).job.holder)
    until(lambda: entry(place, low).job.state == "exited")
    assert place.run("stop", "--time", "0", "high").returncode == 0
    until_it_works(place, "low")
    assert place.run("stop", "--time", "0", "low").returncode == 0
    until(lambda: not entry(place, low).is_lease_held)


@pytest.mark.soak
def test_what_a_job_leaves_behind_that_was_killed_with_its_supervisor_leaves_before_the_other_starts(
    place: Place,
) -> None:
    low = with_a_child(place)
    os.kill(supervised(place, low), signal.SIGSTOP)
    high = submit(place, "high", "--priority", "high", "--preempt")
    until(lambda: entry(place, low).job.suspended_by == high)
    seen = entry(place, low)
    kill(seen.job.holder)
    kill(seen.supervisor)
    place.run("ps")
    until_it_works(place, "high")
    assert parking(place, low)["travellers"]
    assert place.run("stop", "--time", "0", "high").returncode == 0
    until_it_works(place, "low")
    assert place.run("stop", "--time", "0", "low").returncode == 0
    until(lambda: not entry(place, low).is_lease_held)
