"""The driver's enforcer: NVML's call recorded, with everything around it real; and chosen by itself on the simulated driver."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.contract.runtime_worlds import pipes
from tests.system.conftest import Place
from tests.system.slice_stage import MIB, SLICE_BYTES, Stage, opened_stage

from pgpu.app.throwaway_jobs import run_throwaway
from pgpu.enforcement import limit_file
from pgpu.enforcement.driver import DriverEnforcer, UnaidedDriver
from pgpu.enforcement.enforcer_selector import EnforcerCandidate, EnforcerSelector
from pgpu.enforcement.self_test import SelfTest
from pgpu.errors import EnforcementError, RuntimeUnavailableError
from pgpu.ledger import Ledger
from pgpu.runtimes.cgroups import enter_leaf, remove_leaf
from pgpu.runtimes.process_runtime import ProcessRuntime


@dataclass
class RecordedLimits:
    """Stands where NVML would, and looks at the control group as NVML's caller finds it."""

    calls: list[tuple[str, Path, int]] = field(default_factory=list)
    members: list[str] = field(default_factory=list)

    def set_limit(self, gpu_uuid: str, cgroup: Path, limit_bytes: int) -> None:
        self.calls.append((gpu_uuid, cgroup, limit_bytes))
        self.members.append((cgroup / "cgroup.procs").read_text(encoding="ascii").strip())


@pytest.fixture
def stage() -> Iterator[Stage]:
    with opened_stage() as made:
        yield made


@pytest.fixture(autouse=True)
def _needs_control_groups() -> None:
    try:
        leaf = enter_leaf(os.getpid(), "probe") if os.geteuid() == 0 else None
    except RuntimeUnavailableError as error:
        pytest.skip(f"no control group can be made here: {error}")
    if leaf is None:
        pytest.skip("only root may limit control groups")
    (leaf.parent / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
    remove_leaf(leaf)


def test_the_limit_is_set_on_the_jobs_own_group_before_its_first_instruction(stage: Stage) -> None:
    nvml = RecordedLimits()
    enforcer = DriverEnforcer(stage.enforcer, nvml.set_limit)
    job, streams = stage.job(["cat"], wants_stdin=True), pipes()
    assert job.lease is not None
    delivery = enforcer.prepare(job, stage.gpus)
    runtime = ProcessRuntime(limit_cgroup=enforcer.limit_cgroup)
    running = runtime.start(job, delivery, streams.job_side, lambda _: None)
    streams.close_job_side()
    cgroup = nvml.calls[0][1]
    assert nvml.calls == [(stage.gpus[0].uuid, cgroup, SLICE_BYTES)]
    assert nvml.members == [str(running.holder.pid)], "the group holds the job, and the job alone"
    enforcer.resize(job.lease, 2 * SLICE_BYTES)
    assert nvml.calls[1:] == [(stage.gpus[0].uuid, cgroup, 2 * SLICE_BYTES)]
    assert limit_file.read_limit(delivery.slice_directory / "limit").gpus[0].limit_bytes == 2 * SLICE_BYTES
    running.kill()
    running.close()
    streams.close()
    assert not cgroup.exists()
    enforcer.release(job.lease)


def test_a_lease_that_needs_the_driver_is_not_started_where_nothing_can_set_it(stage: Stage) -> None:
    enforcer = DriverEnforcer(stage.enforcer, RecordedLimits().set_limit)
    job, streams = stage.job(["echo", "ran"]), pipes()
    assert job.lease is not None
    delivery = enforcer.prepare(job, stage.gpus)
    with pytest.raises(EnforcementError):
        ProcessRuntime().start(job, delivery, streams.job_side, lambda _: None)
    streams.close_job_side()
    assert streams.read_to_end() == b""
    streams.close()
    enforcer.release(job.lease)


def test_a_driver_that_does_not_bind_is_caught_although_the_shim_would(stage: Stage, tmp_path: Path) -> None:
    nvml = RecordedLimits()
    driver, unaided = (kind(stage.enforcer, nvml.set_limit) for kind in (DriverEnforcer, UnaidedDriver))
    runtime = ProcessRuntime(limit_cgroup=driver.limit_cgroup)
    self_test = SelfTest(
        Ledger(tmp_path / "ledger.db").facts,
        lambda job, delivery: run_throwaway(runtime, job, delivery),
        lambda _job: "",
    )
    selector = EnforcerSelector([EnforcerCandidate(driver, lambda _: True, unaided)], lambda: stage.gpus, self_test)
    with pytest.raises(EnforcementError, match="the driver enforcer does not bind"):
        selector.prepare(stage.job(["true"], memory_bytes=SLICE_BYTES + MIB), stage.gpus)
    assert nvml.calls, "the driver was asked"


PAST_THE_SHIM = """
import ctypes
cuda, context, address = ctypes.CDLL("/.pgpu/driver/libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
count = 0
while (error := cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(64 << 20))) == 0:
    count += 1
print(count * 64, error)
"""
"""Fills the device through the driver itself, as code does that the shim does not catch."""

_OUT_OF_MEMORY = 2


@pytest.fixture
def limiting(place: Place) -> Place:
    place.environment["PGPU_SIMULATE"] = "RTX 3090 cgroup"
    return place


def test_the_driver_is_chosen_where_it_limits_and_binds_code_that_gets_past_the_shim(limiting: Place) -> None:
    assert [gpu["enforcer"] for gpu in limiting.json("gpus")["gpus"]] == ["driver"]
    done = limiting.run("run", "--memory", "2GiB", "--name", "past", "--", sys.executable, "-c", PAST_THE_SHIM)
    assert done.returncode == 0, done.stderr
    held_mib, error = map(int, done.stdout.split())
    assert error == _OUT_OF_MEMORY
    assert 1024 <= held_mib < 2048
    assert limiting.job("past")["lease"]["enforcer"] == "driver"


def test_without_such_a_driver_the_same_code_gets_past(place: Place) -> None:
    """What the test before would show if nothing bound: it can fail."""
    done = place.run("run", "--memory", "2GiB", "--", sys.executable, "-c", PAST_THE_SHIM)
    assert int(done.stdout.split()[0]) > 10_000


def test_a_slice_that_the_driver_keeps_grows_live(
    limiting: Place, eventually: Callable[[Callable[[], Any]], Any]
) -> None:
    waits = PAST_THE_SHIM.replace("count = 0", "input()\ncount = 0")
    process = limiting.start(
        "run", "-i", "--memory", "2GiB", "--name", "grows", "--", sys.executable, "-c", waits, stdin=subprocess.PIPE
    )
    eventually(lambda: (limiting.job("grows") or {}).get("state") == "running")
    assert limiting.run("resize", "grows", "--memory", "4GiB").returncode == 0
    held, _ = process.communicate("\n")
    assert 3072 <= int(held.split()[0]) < 4096
