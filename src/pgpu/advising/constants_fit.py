"""Constants of one GPU, fitted by least squares on pairs of known workloads that were run alone, in turns and under MPS.

A constant moves predictions smoothly and there are few of them, so that each is searched on its own, round by round, between
the bounds in which it makes sense (coordinate descent with golden sections): a few lines instead of a library. It refuses to
run anything: its caller measured.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pgpu.advising.advice import predict
from pgpu.advising.contention import Constants
from pgpu.model import Profile, SharingMode

BOUNDS = {
    "switch_overhead": (0.0, 0.5),
    "crowd_overhead": (0.0, 0.5),
    "l1_weight": (0.0, 2.0),
    "l2_weight": (0.1, 3.0),
}
"""Which constants are fitted, and between what."""

_ROUNDS = 4
_SECTIONS = 24
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True)
class ColocatedRun:
    """Jobs that were measured together in one mode."""

    profiles: tuple[Profile, ...]
    mode: SharingMode
    slowdowns: tuple[float, ...]
    """Of each, against alone."""


@dataclass(frozen=True, slots=True)
class Errors:
    """How far predictions are from what was measured, as fractions of what was measured."""

    mean: float
    worst: float


def fit(measured: Sequence[ColocatedRun], start: Constants) -> Constants:
    """Return the constants whose predictions have the least squared relative error."""
    constants = replace(start, is_calibrated=True)
    for _ in range(_ROUNDS):
        for name in BOUNDS:
            constants = _fitted(measured, constants, name)
    return constants


def _fitted(measured: Sequence[ColocatedRun], constants: Constants, name: str) -> Constants:
    def changed(value: float) -> Constants:
        return Constants(**{**dataclasses.asdict(constants), name: value})

    return changed(_least(lambda value: _loss(measured, changed(value)), BOUNDS[name]))


def errors(measured: Sequence[ColocatedRun], constants: Constants) -> Errors:
    """Compare predictions with what was measured; nothing measured has no error."""
    found = [abs(error) for each in measured for error in _relative(each, constants)]
    return Errors(sum(found) / len(found), max(found)) if found else Errors(0.0, 0.0)


def key_of(gpu_name: str, driver_version: str) -> str:
    """Return the key under which the constants of a kind of GPU are kept."""
    return f"advice-constants/{gpu_name}/{driver_version}"


def text_of(constants: Constants) -> str:
    """Return constants as text that is kept."""
    return json.dumps(dataclasses.asdict(constants))


def constants_of(text: str) -> Constants:
    """Read what `text_of` wrote; what is not known here is skipped."""
    known = {field.name for field in dataclasses.fields(Constants)}
    return Constants(**{name: value for name, value in json.loads(text).items() if name in known})


def _relative(each: ColocatedRun, constants: Constants) -> list[float]:
    predicted = predict(each.profiles, each.mode, constants)
    return [told / was - 1 for told, was in zip(predicted, each.slowdowns, strict=True)]


def _loss(measured: Sequence[ColocatedRun], constants: Constants) -> float:
    return sum(error * error for each in measured for error in _relative(each, constants))


def _least(loss: Callable[[float], float], bounds: tuple[float, float]) -> float:
    low, high = bounds
    for _ in range(_SECTIONS):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if loss(left) <= loss(right):
            high = right
        else:
            low = left
    return (low + high) / 2
