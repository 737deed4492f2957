"""The profile of a program alone, measured as `pgpu profile --sensitivity` does, beside its antagonists: no counter, no notes.

Its kernels' time and how much of its time they run; how many of the GPU's block slots they fill, from their grid and the
driver's occupancy; their time with the smallest L1 cache instead of the largest; and their time beside antagonists under MPS,
with what the antagonists lost.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.advice.stage import Measured, Program, Stage

from pgpu.cli.profile_runs import Neighbour, fraction_of, neighbours_for
from pgpu.model import Contest, Demand, Evidence, KernelUse, Profile, Resource, Sensitivity
from pgpu.workloads import programs
from pgpu.workloads.programs.antagonists import BLOCK_THREADS, CROWD, DRAM_STREAM, FMA_CHAINS, L2_SWEEP, blocks_for

SECONDS = 0.4
_LAUNCHES = 8
_LAUNCH_SECONDS = 0.003
_L2_SPEED = 3
"""About so many times faster than memory is L2."""

_QUAD_BYTES = 16
_NOWHERE = 0
"""The address of a word that no kernel writes."""


@dataclass(frozen=True, slots=True)
class Probe:
    """An antagonist on one GPU, with how fast it is alone."""

    neighbour: Neighbour
    program: Program
    fraction: float | None
    """Of its resource, alone."""

    rate: float | None
    """Bytes a second, of the memory's bandwidth."""

    alone: Measured


def probes(stage: Stage) -> list[Probe]:
    """Measure the antagonists alone, once for each GPU: those of `pgpu profile --sensitivity`."""
    return [_probe(stage, neighbour) for neighbour in neighbours_for(stage.model.l2_bytes)]


def _probe(stage: Stage, neighbour: Neighbour) -> Probe:
    run, launch_bytes = _TAKING[neighbour.workload](stage, neighbour)
    alone = stage.run([run], SECONDS, under_mps=True)[0]
    could = stage.model.bandwidth_bytes_per_second
    rate = _LAUNCHES * launch_bytes / alone.kernel_seconds / could if launch_bytes else None
    return Probe(neighbour, run, fraction_of(neighbour, stage.model.l2_bytes, rate), rate, alone)


def _sweeping(stage: Stage, neighbour: Neighbour) -> tuple[Program, int]:
    """Return the program, and what a launch of it reads."""
    antagonist = L2_SWEEP if neighbour.workload == L2_SWEEP.kernel else DRAM_STREAM
    faster = _L2_SPEED if antagonist is L2_SWEEP else 1
    size_bytes = neighbour.swept_bytes
    sweeps = max(1, round(faster * stage.model.bandwidth_bytes_per_second * _LAUNCH_SECONDS / size_bytes))
    blocks = blocks_for(stage.model.sm_count, neighbour.sm_percent)
    words = (size_bytes // _QUAD_BYTES, sweeps, _NOWHERE)
    run = _program(neighbour, "antagonists", blocks, antagonist.block_threads, words)
    return replace(run, buffers_bytes=(size_bytes,)), sweeps * size_bytes


def _multiplying(stage: Stage, neighbour: Neighbour) -> tuple[Program, int]:
    """As many rounds of 16 operations as a lane does in the time, with four threads for each lane."""
    rounds = round(2 * stage.model.sm_clock_mhz * 1e6 * _LAUNCH_SECONDS / 4 / 16)
    return _program(neighbour, "occupants", stage.model.sm_count, BLOCK_THREADS, (rounds, _NOWHERE)), 0


def _crowding(stage: Stage, neighbour: Neighbour) -> tuple[Program, int]:
    blocks = stage.model.sm_count * (stage.model.capability.threads_per_sm // BLOCK_THREADS)
    return _program(neighbour, "occupants", blocks, BLOCK_THREADS, (round(_LAUNCH_SECONDS * 1e9),)), 0


_TAKING = {
    "l2_sweep": _sweeping,
    "dram_stream": _sweeping,
    FMA_CHAINS.kernel: _multiplying,
    CROWD.kernel: _crowding,
}


def _program(neighbour: Neighbour, source: str, blocks: int, threads: int, words: tuple[int, ...]) -> Program:
    ptx = (Path(programs.__file__).parent / f"{source}.ptx").read_text("ascii")
    return Program(neighbour.description, ptx, neighbour.workload, blocks, threads, words, _LAUNCHES, 0.0)


def profile_of(stage: Stage, job: Program, against: list[Probe]) -> tuple[Profile, Measured]:
    """Measure a program; returns its run alone, too."""
    alone = stage.run([job], SECONDS)[0]
    large, small = (stage.run([job], SECONDS, carveout_percent=percent)[0] for percent in (0, 100))
    contests = tuple(_contest(stage, job, alone, probe) for probe in against)
    slots = stage.model.sm_count * max(1, alone.facts["blocks_per_sm"])
    kernel_ns = round(alone.kernel_seconds / job.launches * 1e9)
    use = KernelUse(
        "kernel", (job.blocks, 1, 1), (job.threads, 1, 1), job.launches, kernel_ns * job.launches, kernel_ns, kernel_ns
    )
    profile = Profile(
        signature=job.name,
        gpu_name=stage.model.name,
        owner_uid=0,
        measured_at_seconds=0.0,
        duration_seconds=SECONDS,
        peak_bytes=0,
        context_bytes=0,
        busy_fraction=min(1.0, alone.kernel_seconds / alone.iteration_seconds),
        demands=(Demand(Resource.SM, min(1.0, job.blocks / slots), Evidence.LAUNCHES),),
        gpu_l2_bytes=alone.facts["l2_bytes"],
        gpu_sm_count=alone.facts["sm_count"],
        sensitivity=Sensitivity(cache=small.kernel_seconds / large.kernel_seconds - 1),
        contests=contests,
        kernels=(use,),
        is_simulated=True,
    )
    return profile, alone


def _contest(stage: Stage, job: Program, alone: Measured, probe: Probe) -> Contest:
    """Pauses are left out, so that the antagonist always meets a kernel of the job."""
    busy = Program(**{**{name: getattr(job, name) for name in job.__slots__}, "pause_seconds": 0.0})
    mine, its = stage.run([busy, probe.program], SECONDS, under_mps=True)
    return Contest(
        probe.neighbour.kind,
        probe.neighbour.swept_bytes,
        probe.neighbour.sm_percent / 100,
        mine.kernel_seconds / alone.kernel_seconds,
        its.kernel_seconds / probe.alone.kernel_seconds,
        probe.fraction,
        probe.rate,
    )
