"""Jobs on MIG instances, from the command line to the simulated driver and back."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.system.conftest import Place

from pgpu.units import GIB, MIB

Eventually = Callable[[Callable[[], Any]], Any]

SMALL_BYTES, LARGE_BYTES = 9_984 * MIB, 20_096 * MIB
HOG = ("python", "-m", "pgpu.workloads", "hog", "--seconds")


@pytest.fixture
def mig(place: Place) -> Place:
    place.environment["PGPU_SIMULATE"] = "H100 mig 1g.10gb+2g.20gb"
    return place


def test_jobs_get_instances_of_their_own_and_the_third_waits(mig: Place, eventually: Eventually) -> None:
    mig.detach("small", "2GiB", [*HOG, "60"])
    mig.detach("large", "12GiB", [*HOG, "60"])
    mig.detach("waits", "1GiB", ["true"])
    eventually(lambda: mig.job("large")["state"] == mig.job("small")["state"] == "running")
    gpus = mig.json("gpus")["gpus"]
    assert [(gpu["memory_bytes"], gpu["enforcer"], gpu["mig_index"]) for gpu in gpus] == [
        (SMALL_BYTES, "mig", 0),
        (LARGE_BYTES, "mig", 1),
    ]
    slices = [mig.job(name)["lease"]["slices"][0] for name in ("small", "large")]
    assert [part["gpu_uuid"] for part in slices] == [gpu["uuid"] for gpu in gpus]
    assert [gpu["granted_bytes"] for gpu in gpus] == [SMALL_BYTES, LARGE_BYTES]
    assert mig.job("waits")["reason"].startswith("waits for 1 GiB on one GPU: at most 0 B free")
    assert mig.run("stop", "--time", "0", "small").returncode == 0
    assert mig.run("wait", "waits").returncode == 0
    assert mig.job("waits")["lease"]["slices"][0]["gpu_uuid"] == gpus[0]["uuid"]


def test_the_request_binds_inside_the_instance_and_may_grow_to_all_of_it(mig: Place, eventually: Eventually) -> None:
    done = mig.run("run", "--memory", "2GiB", "--", *HOG, "0.2")
    assert done.returncode == 0, done.stderr
    assert 1.5 * GIB <= json.loads(done.stdout.splitlines()[-1])["held_bytes"] <= 2 * GIB
    mig.detach("grows", "2GiB", ["sleep", "60"])
    eventually(lambda: mig.job("grows")["state"] == "running")
    assert mig.run("resize", "grows", "--memory", f"{SMALL_BYTES // MIB + 1}MiB").returncode != 0
    done = mig.run("resize", "grows", "--memory", f"{SMALL_BYTES // MIB}MiB")
    assert done.returncode == 0, done.stderr


def test_a_job_sees_the_slice_as_one_gpu_in_cuda_and_in_nvml(mig: Place) -> None:
    code = (
        "from cuda.bindings import driver as d; import pynvml as n; d.cuInit(0); n.nvmlInit();"
        "h = n.nvmlDeviceGetHandleByIndex(0); i = n.nvmlDeviceGetMigDeviceHandleByIndex(h, 1);"
        "print(int(d.cuDeviceGetCount()[1]), int(d.cuDeviceTotalMem(0)[1]), n.nvmlDeviceGetCount(),"
        " n.nvmlDeviceGetMemoryInfo(h).total, n.nvmlDeviceGetMemoryInfo(i).total, n.nvmlDeviceGetName(i))"
    )
    done = mig.run("run", "--memory", "12GiB", "--", "python", "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"1 {12 * GIB} 1 {12 * GIB} {12 * GIB} NVIDIA H100 80GB HBM3 MIG 2g.20gb\n"


def test_what_no_instance_covers_and_jobs_on_two_gpus_are_refused_at_once(mig: Place) -> None:
    most_mib = LARGE_BYTES // MIB
    too_large = mig.run("run", "--memory", f"{most_mib + 1}MiB", "--", "true")
    assert (too_large.returncode, f"ask for at most {most_mib}MiB" in too_large.stderr) == (125, True)
    on_two = mig.run("run", "--memory", "1GiB", "--gpus", "2", "--", "true")
    assert (on_two.returncode, "a process can use only one MIG instance" in on_two.stderr) == (125, True)
