"""Pairs of drawn kernels on several models of GPU: the advice beforehand, and the measured speed in each mode."""

import itertools
import math
import random
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.advice.kernels import LEAST_LAUNCH_SECONDS, drawn
from benchmarks.advice.profiles import probes, profile_of
from benchmarks.advice.stage import Measured, Program, Stage, staged

from pgpu.advising.advice import GpuKind, advise
from pgpu.gpu.catalog import parse_model
from pgpu.gpu.products import GpuModel
from pgpu.model import Profile, SharingMode

SECONDS = 0.7
_FIRST_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Pair:
    """Two programs together; slowdowns are times together by times alone, in the programs' order."""

    gpu: str
    names: tuple[str, ...]
    advised: SharingMode
    faster: SharingMode
    """The mode that is faster by prediction, by any margin."""

    predicted: dict[SharingMode, tuple[float, ...]]
    measured: dict[SharingMode, tuple[float, ...]]

    def cost(self, mode: SharingMode) -> float:
        """Geometric mean of what was measured."""
        return geomean(self.measured[mode])

    @property
    def best(self) -> SharingMode:
        """The mode that was faster."""
        return min(self.measured, key=self.cost)

    def errors_in(self, mode: SharingMode) -> list[float]:
        """Return the errors of the predictions for a mode, relative to what was measured."""
        return [told / was - 1 for told, was in zip(self.predicted[mode], self.measured[mode], strict=True)]

    def record(self) -> dict[str, Any]:
        """Describe it for the results."""
        return {**asdict(self), "best": self.best}


@dataclass(frozen=True, slots=True)
class Known:
    """One program and its measurements alone."""

    program: Program
    profile: Profile
    alone: Measured


def geomean(values: "tuple[float, ...] | list[float]") -> float:
    """Return the geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def measured_pairs(models: list[str], kernels: int, pairs: int, seed: int) -> Iterator[Pair]:
    """Draw kernels for each model of GPU, measure each alone, and then so many pairs of them."""
    for word in models:
        model, _count = parse_model(word)
        with staged(model) as stage:
            known = list(known_programs(stage, kernels, seed))
            chosen = list(itertools.combinations(known, 2))
            random.Random(f"{seed}/{model.slug}").shuffle(chosen)
            for first, second in chosen[:pairs]:
                yield pair_of(stage, (first, second))


def pair_of(stage: Stage, jobs: tuple[Known, ...]) -> Pair:
    """Ask for advice, then run a pair in both modes."""
    kind = GpuKind(
        stage.model.name, None
    )  # P3 ran MPS on a GPU before Volta, which pgpu refuses; this benchmark compares speed only.
    advice = advise([job.profile for job in jobs], kind)
    return Pair(
        stage.model.slug,
        tuple(job.program.name for job in jobs),
        advice.mode,
        advice.faster_mode,
        {
            SharingMode.TIME_SLICE: tuple(each.time_slice_slowdown for each in advice.jobs),
            SharingMode.MPS: tuple(each.mps_slowdown for each in advice.jobs),
        },
        {
            SharingMode.TIME_SLICE: _together(stage, jobs, under_mps=False),
            SharingMode.MPS: _together(stage, jobs, under_mps=True),
        },
    )


def _together(stage: Stage, jobs: tuple[Known, ...], *, under_mps: bool) -> tuple[float, ...]:
    found = stage.run([job.program for job in jobs], SECONDS, under_mps=under_mps)
    return tuple(now.iteration_seconds / job.alone.iteration_seconds for now, job in zip(found, jobs, strict=True))


def known_programs(stage: Stage, count: int, seed: int) -> Iterator[Known]:
    """Draw programs and measure each alone."""
    against = probes(stage)
    made = 0
    for number in itertools.count():
        if made == count:
            return
        found = _program(stage, stage.model, number, seed)
        if found is None:
            continue
        made += 1
        profile, alone = profile_of(stage, found, against)
        print(f"{found.name}: {alone.kernel_seconds * 1000:.1f} ms, measured alone", file=sys.stderr)
        yield Known(found, profile, alone)


def _program(stage: Stage, model: GpuModel, number: int, seed: int) -> Program | None:
    kernel = drawn(model, number, seed)
    launch_seconds = stage.run([kernel.program(1.0)], _FIRST_SECONDS)[0].kernel_seconds
    return kernel.program(launch_seconds) if launch_seconds >= LEAST_LAUNCH_SECONDS else None
