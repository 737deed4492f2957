"""How an antagonist goes on: launches of about the same time, always some ahead, until its time is over.

It refuses to count what a launch was tried with before.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

from pgpu.workloads.workload_run import Run

LAUNCH_SECONDS = 0.002
"""How long a launch is made to be: short beside a time slice, long beside the cost of a launch."""

_LAUNCHES_AHEAD = 4
_MOST_AT_ONCE = 1 << 30
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Done:
    """What an antagonist did."""

    amount: int
    """Of what its launches take an amount of."""

    seconds: float


def add_usual_arguments(parser: argparse.ArgumentParser, *, usual_percent: int) -> None:
    """Name what a user may choose of any of them."""
    parser.add_argument("--seconds", type=float, default=10.0, help="how long (10)")
    parser.add_argument(
        "--sms-percent", type=int, default=usual_percent, help=f"share of the multiprocessors ({usual_percent})"
    )


def take(this: Run, launch: Callable[[int], None], seconds: float, amount: int | None = None) -> Done:
    """Say that it runs, and launch until the time is over.

    Args:
        this: The program.
        launch: Has the GPU do an amount.
        seconds: How long.
        amount: Of each launch; None finds out how much takes long enough.
    """
    amount = amount or _amount_for(this, launch)
    sys.stderr.write(f"{this.workload}: running\n")
    sys.stderr.flush()
    return keep_going(this, lambda: launch(amount), seconds, amount)


def keep_going(this: Run, start: Callable[[], None], seconds: float, amount: int) -> Done:
    """Start the same work again and again; the next is always queued before the last is waited for, so that nothing stands idle.

    Args:
        this: The program.
        start: Has the GPU begin an amount.
        seconds: How long.
        amount: Of each start.
    """
    began_seconds = this.elapsed_seconds()
    done = 0
    last = None
    while this.elapsed_seconds() - began_seconds < seconds:
        for _ in range(_LAUNCHES_AHEAD):
            start()
        done += _LAUNCHES_AHEAD * amount
        mark = this.device.mark()
        if last is not None:
            this.device.wait_for(last)
        last = mark
    this.device.synchronize()
    return Done(done, this.elapsed_seconds() - began_seconds)


def _amount_for(this: Run, launch: Callable[[int], None]) -> int:
    """Return a power of two with which a launch takes at least as long as it should."""
    amount = 1
    while amount < _MOST_AT_ONCE and _shortest_seconds(this, launch, amount) < LAUNCH_SECONDS:
        amount *= 2
    return amount


def _shortest_seconds(this: Run, launch: Callable[[int], None], amount: int) -> float:
    """Return the time of the fastest of some launches: a busy host makes any single one look long."""
    return min(_seconds_of(this, launch, amount) for _ in range(_TRIES))


def _seconds_of(this: Run, launch: Callable[[int], None], amount: int) -> float:
    began_seconds = this.elapsed_seconds()
    launch(amount)
    this.device.synchronize()
    return this.elapsed_seconds() - began_seconds
