"""Jobs on a GPU that shares the machine's memory, of which NVML reports nothing: a simulated GB10."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.system.conftest import Place

from pgpu.gpu.catalog import parse_model
from pgpu.host.atomic_file import write_atomically
from pgpu.units import GIB, KIB

Eventually = Callable[[Callable[[], Any]], Any]

HOG = ("python", "-m", "pgpu.workloads", "hog", "--seconds", "0.1")
TOTAL_BYTES = parse_model("GB10")[0].memory_bytes


@pytest.fixture
def shared(place: Place) -> Place:
    place.environment["PGPU_SIMULATE"] = "GB10"
    return place


def test_a_slice_of_the_machines_memory_binds_and_is_shown(shared: Place) -> None:
    done = shared.run("run", "--memory", "2GiB", "--", *HOG)
    assert done.returncode == 0, done.stderr
    assert 1.5 * GIB <= json.loads(done.stdout.splitlines()[-1])["held_bytes"] <= 2 * GIB
    (gpu,) = shared.json("gpus")["gpus"]
    shown = (gpu["memory_bytes"], gpu["shares_host_memory"], gpu["enforcer"], gpu["granted_bytes"])
    assert shown == (TOTAL_BYTES, True, "shim", 0)
    too_large = shared.run("run", "--memory", f"{TOTAL_BYTES // GIB + 1}GiB", "--", "true")
    assert (too_large.returncode, "ask for at most" in too_large.stderr) == (125, True)


def test_memory_that_the_hosts_programs_hold_is_granted_to_no_job(shared: Place, eventually: Eventually) -> None:
    assert shared.json("gpus")["gpus"][0]["used_bytes"] == 0
    (meminfo,) = Path(shared.environment["PGPU_RUNTIME_DIR"]).rglob("meminfo")
    idle = meminfo.read_bytes()
    busy = f"MemTotal: {TOTAL_BYTES // KIB} kB\nMemAvailable: {4 * GIB // KIB} kB\n"
    write_atomically(meminfo, busy.encode(), 0o644)
    shared.detach("waits", "8GiB", ["true"])
    assert shared.job("waits")["state"] == "waiting"
    assert shared.json("gpus")["gpus"][0]["used_bytes"] == TOTAL_BYTES - 4 * GIB
    write_atomically(meminfo, idle, 0o644)
    eventually(lambda: shared.job("waits")["state"] == "exited")
