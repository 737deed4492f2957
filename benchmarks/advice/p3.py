"""P3's table: a cache-sensitive program with another of its kind, or with one that no cache matters to, at four sizes.

The programs are `pgpu.workloads`' own, launched as they launch; the GPU is the simulated GTX 980 Ti, P3's. Advice is asked
before any pair has run, from each program alone.
"""

from collections.abc import Iterator
from pathlib import Path

from benchmarks.advice.pairs import Known, Pair, pair_of
from benchmarks.advice.profiles import Probe, probes, profile_of
from benchmarks.advice.stage import Program, Stage, staged

import pgpu.workloads.programs
from pgpu.gpu.catalog import parse_model
from pgpu.model import SharingMode

SIZES = (5_120, 10_240, 20_480, 40_960)
PAPER = {
    ("CS", 5_120): SharingMode.MPS,
    ("CS", 10_240): SharingMode.MPS,
    ("CS", 20_480): SharingMode.TIME_SLICE,
    ("CS", 40_960): SharingMode.TIME_SLICE,
    ("CI", 5_120): SharingMode.MPS,
    ("CI", 10_240): SharingMode.MPS,
    ("CI", 20_480): SharingMode.MPS,
    ("CI", 40_960): SharingMode.MPS,
}
"""Which mode was faster, by what the cache-sensitive program ran with. Source: P3's table."""

_PROGRAMS = Path(pgpu.workloads.programs.__file__).parent
_COLUMNS = 4096
_THREADS = 256
_BYTES = 4
_ITERATION_SECONDS = 0.02
_FIRST_SECONDS = 0.1


def measured_cells() -> Iterator[tuple[str, int, Pair]]:
    """Yield the companion of the cache-sensitive program, the size, and the outcome."""
    model, _count = parse_model("GTX 980 Ti")
    with staged(model) as stage:
        against = probes(stage)
        for size in SIZES:
            sensitive = _known(stage, _matvec(size), against)
            insensitive = _known(stage, _nbody(size), against)
            yield "CS", size, pair_of(stage, (sensitive, sensitive))
            yield "CI", size, pair_of(stage, (sensitive, insensitive))


def _known(stage: Stage, program: Program, against: list[Probe]) -> Known:
    """Set the launches in an iteration so that iterations of all programs take equally long."""
    launch_seconds = stage.run([program], _FIRST_SECONDS)[0].kernel_seconds
    launches = max(1, round(_ITERATION_SECONDS / launch_seconds))
    whole = Program(**{**{name: getattr(program, name) for name in program.__slots__}, "launches": launches})
    profile, alone = profile_of(stage, whole, against)
    return Known(whole, profile, alone)


def _matvec(rows: int) -> Program:
    buffers = (rows * _COLUMNS * _BYTES, _COLUMNS * _BYTES, rows * _BYTES)
    return _program("matvec", "matrices", rows, buffers, (rows, _COLUMNS))


def _nbody(particles: int) -> Program:
    return _program("nbody", "particles", particles, (16 * particles, 16 * particles), (particles,))


def _program(entry: str, module: str, threads: int, buffers: tuple[int, ...], sizes: tuple[int, ...]) -> Program:
    ptx = (_PROGRAMS / f"{module}.ptx").read_text("utf-8")
    return Program(
        name=f"{entry} {threads}",
        ptx=ptx,
        entry=entry,
        blocks=-(-threads // _THREADS),
        threads=_THREADS,
        arguments=sizes,
        launches=1,
        pause_seconds=0.0,
        buffers_bytes=buffers,
    )
