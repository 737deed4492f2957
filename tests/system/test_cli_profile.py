"""The real `pgpu profile` on a simulated GPU: what a program is told to take is what its profile says."""

import itertools
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.system.conftest import Place

from pgpu.units import GIB, MIB

_TEN_JOBS_SECONDS = 300
"""A deadline for so many jobs one after the other, on a machine that does other things too."""

SPIN = ("python", "-m", "pgpu.workloads", "spin", "--kernel-ms", "2", "--launches", "20")
TWO_GPUS = """
import ctypes
from cuda.bindings import driver as cuda
cuda.cuInit(0)
ptx = b'''
// pgpu.cost slow fixed_ns=20000000
.version 7.0
.target sm_50
.address_size 64
.visible .entry slow() { ret; }
'''
for ordinal in (0, 1):
    context = cuda.cuDevicePrimaryCtxRetain(ordinal)[1]
    cuda.cuCtxSetCurrent(context)
    cuda.cuMemAlloc((1 + ordinal) << 28)
    module = cuda.cuModuleLoadData(ptx)[1]
    slow = cuda.cuModuleGetFunction(module, b"slow")[1]
    for _ in range(1 + ordinal):
        cuda.cuLaunchKernel(slow, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0)
    cuda.cuCtxSynchronize()
"""


def profile(place: Place, *words: str, command: Sequence[str] = SPIN) -> dict[str, Any]:
    done = place.run("profile", "--json", "--memory", "2GiB", *words, "--", *command)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["profile"]
    return found


def test_durations_are_those_that_the_kernels_were_given(either_place: Place) -> None:
    told = profile(either_place)
    [spin] = [each for each in told["kernels"] if each["name"] == "spin"]
    assert spin["launches"] == 20
    assert spin["shortest_ns"] == pytest.approx(2_000_000, rel=0.05)  # a busy machine makes others longer
    assert 20 * spin["shortest_ns"] <= spin["total_ns"] <= 20 * spin["longest_ns"]
    assert told["busy_fraction"] * told["duration_seconds"] * 1e9 == pytest.approx(spin["total_ns"], rel=0.05)
    assert told["duration_seconds"] >= 0.04
    assert told["is_simulated"]
    assert told["gpus"][0]["peak_bytes_by_kind"] == {"context": 254 * MIB, "linear": 2 * MIB}
    assert told["peak_bytes"] == 256 * MIB
    assert told["overhead"]["commands"] > 20
    again = either_place.run("profile", "--json", "--show", told["job_id"])
    assert json.loads(again.stdout)["profile"] == told


def test_a_job_that_was_not_profiled_has_nothing_to_show(either_place: Place) -> None:
    done = either_place.run("run", "-d", "--memory", "1GiB", "--", "true")
    job_id = done.stdout.strip()
    either_place.run("wait", job_id)
    shown = either_place.run("profile", "--show", job_id)
    assert shown.returncode == 125
    assert "was not profiled" in shown.stderr
    assert "hint:" in shown.stderr


def test_a_failing_command_is_told_and_not_remembered(place: Place) -> None:
    code = "import os, sys; from pgpu.workloads.__main__ import main; main(); os._exit(9)"
    command = ("python", "-c", f"import sys; sys.argv[1:] = {list(SPIN[3:])!r}; {code}")
    done = place.run("profile", "--json", "--memory", "2GiB", "--", *command)
    assert done.returncode == 9
    told = json.loads(done.stdout)["profile"]
    assert [each["launches"] for each in told["kernels"] if each["name"] == "spin"] == [20]
    advice = place.run("advise", told["job_id"], told["job_id"])
    assert advice.returncode == 125


def test_each_gpu_of_a_job_is_measured_for_itself(place: Place) -> None:
    place.environment["PGPU_SIMULATE"] = "RTX 3090x2"
    told = profile(place, "--gpus", "2", command=("python", "-c", TWO_GPUS))
    first, second = told["gpus"]
    assert (first["index"], second["index"]) == (0, 1)
    assert second["busy_fraction"] == pytest.approx(2 * first["busy_fraction"], rel=0.2)
    assert told["busy_fraction"] == second["busy_fraction"]
    assert second["peak_bytes_by_kind"]["linear"] == GIB // 2


@pytest.mark.soak
def test_a_program_that_lives_on_its_caches_loses_with_them(place: Place) -> None:
    """Its kernel's costs say so; P3 calls it cache sensitive."""
    program = ("python", "-m", "pgpu.workloads")
    words = ("--sensitivity", "--runs", "1", "--json", "--memory", "2GiB")
    started = place.start("profile", *words, "--", *program, "matvec", "--iterations", "100")
    output, errors = started.communicate(timeout=_TEN_JOBS_SECONDS)
    assert started.returncode == 0, errors
    sensitive = json.loads(output)["profile"]
    assert sensitive["sensitivity"]["cache"] > 0.2
    met = {each["antagonist"] for each in sensitive["contests"]}
    missed = {note.split()[0] for note in sensitive["not_measured"]}
    assert met | missed >= {"l2", "l2-bandwidth", "dram", "compute", "room"}, (
        "a busy machine may keep an antagonist from launching, and that is said"
    )
    lost = {each["antagonist"]: each["slowdown"] for each in sensitive["contests"]}
    assert all(slowdown > 1 for antagonist, slowdown in lost.items() if antagonist in {"l2", "l2-bandwidth", "dram"})
    assert lost.get("compute", 1.0) < 1.2, "it computes little"


def test_a_page_and_a_trace_of_the_real_thing(place: Place, tmp_path: Path) -> None:
    page, trace = tmp_path / "page.html", tmp_path / "trace.json"
    profile(place, "--html", str(page), "--trace", str(trace))
    events = json.loads(trace.read_text("utf-8"))["traceEvents"]
    spins = [event for event in events if event["name"] == "spin"]
    assert len(spins) == 20
    assert statistics.median(event["dur"] for event in spins) == pytest.approx(2000, rel=0.05)
    assert all(left["ts"] + left["dur"] <= right["ts"] + 1 for left, right in itertools.pairwise(spins))
    assert page.read_text("utf-8").count("<svg") == 2


def test_a_program_is_counted_in_its_slice_by_what_is_called_ncu(place: Place) -> None:
    fakes = Path(__file__).parent.parent / "fakes"
    place.environment["PATH"] = f"{fakes}:{place.environment['PATH']}"
    told = profile(place, "--ncu")
    assert {(each["name"], tuple(each["grid"]), each["launches"]) for each in told["counters"]} == {
        ("spin", (80, 1, 1), 2),
        ("spin", (40, 2, 1), 1),
    }
    assert not told["not_measured"]
    again = json.loads(place.run("profile", "--json", "--show", told["job_id"]).stdout)["profile"]
    assert [each for each in again["demands"] if each["evidence"] == "counters"]
    refused = profile(place, "--ncu", "--env", "PGPU_FAKE_NCU=forbidden")
    assert not refused["counters"]
    assert "administrators" in refused["not_measured"][0]
