"""Least-squares fit of a GPU's constants to pairs of known workloads measured alone, in turns and under MPS.

There are few constants and predictions change smoothly with each, so each is searched alone within its bounds, in several rounds
(coordinate descent with golden sections), without a numerical library.
"""

import json
import math
from collections.abc import Sequence

from pgpu.advising.advice import predict
from pgpu.advising.contention import Constants
from pgpu.model import Profile, SharingMode
from pgpu.structs import Struct, fields, replace, to_builtins

# Fitted constants and their bounds.
BOUNDS = {
    "switch_overhead": (0.0, 0.5),
    "crowd_overhead": (0.0, 0.5),
    "l1_weight": (0.0, 2.0),
    "l2_weight": (0.1, 3.0),
}

_ROUNDS = 4
_SECTIONS = 24
_GOLDEN = (math.sqrt(5) - 1) / 2


class ColocatedRun(Struct, frozen=True):
    """Jobs measured together in one mode."""

    profiles: tuple[Profile, ...]
    mode: SharingMode
    slowdowns: tuple[float, ...]
    """Of each job, against alone."""


class Errors(Struct, frozen=True):
    """Relative errors of predictions."""

    mean: float
    worst: float


def fit(measured: Sequence[ColocatedRun], start: Constants) -> Constants:
    """Return the constants with the least squared relative error of predictions."""
    constants = replace(start, is_calibrated=True)
    for _ in range(_ROUNDS):
        for name in BOUNDS:
            constants = _fit_one(measured, constants, name)
    return constants


def _fit_one(measured: Sequence[ColocatedRun], constants: Constants, name: str) -> Constants:
    """Return the constants with one of them at its minimum, by golden-section search."""

    def with_value(value: float) -> Constants:
        return Constants(**{**to_builtins(constants), name: value})

    def loss(value: float) -> float:
        tried = with_value(value)
        return sum(error * error for each in measured for error in _relative(each, tried))

    # Each section keeps the part in which the minimum lies, 0.618 of it: 24 of them leave 1e-5 of the interval.
    low, high = BOUNDS[name]
    for _ in range(_SECTIONS):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        if loss(left) <= loss(right):
            high = right
        else:
            low = left
    return with_value((low + high) / 2)


def errors(measured: Sequence[ColocatedRun], constants: Constants) -> Errors:
    """Compare predictions with measurements; both errors are 0 without measurements."""
    found = [abs(error) for each in measured for error in _relative(each, constants)]
    return Errors(sum(found) / len(found), max(found)) if found else Errors(0.0, 0.0)


def key_of(gpu_name: str, driver_version: str) -> str:
    """Return the key of a GPU model's constants in the ledger's facts."""
    return f"advice-constants/{gpu_name}/{driver_version}"


def text_of(constants: Constants) -> str:
    """Serialise constants as JSON."""
    return json.dumps(to_builtins(constants))


def constants_of(text: str) -> Constants:
    """Parse the text of `text_of`; unknown fields are ignored."""
    known = {field.name for field in fields(Constants)}
    return Constants(**{name: value for name, value in json.loads(text).items() if name in known})


def _relative(each: ColocatedRun, constants: Constants) -> list[float]:
    predicted = predict(each.profiles, each.mode, constants)
    return [found / measured - 1 for found, measured in zip(predicted, each.slowdowns, strict=True)]
