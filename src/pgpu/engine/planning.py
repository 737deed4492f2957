"""The plan of a queue that should end soonest, made by its keeper between rounds and followed by every round.

It lies in a file in the runtime directory: whoever frees memory admits in a transaction of its own, and making a plan takes
too long for one. A plan names jobs and no times, so one that is a little old is followed, too; without one the usual order
holds. It refuses to make a plan twice for the same jobs.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from pgpu.engine.admitting import Situation
from pgpu.scheduling import Candidate, Held
from pgpu.scheduling.makespan import plan_waiting
from pgpu.scheduling.planned import NO_PLAN, BatchPlan

EFFORT = 15_000
"""A quarter of a second of a core at most: so long the keeper hears nobody."""

DOUBT = 0.5
"""How far durations from history are off: the standard deviation of the logarithm. A guess: half a factor of two more or
less. `benchmarks/makespan` shows that a plan made with too much doubt still beats one made with none."""


def read_plan(path: Path) -> BatchPlan:
    """Return the plan that lies there; none if there is none that can be read."""
    try:
        order, most_at_once, holds = json.loads(path.read_bytes())
        return BatchPlan(tuple(order), most_at_once, dict(holds))
    except (OSError, ValueError, TypeError):
        return NO_PLAN


def write_plan(path: Path, plan: BatchPlan) -> None:
    """Put a plan there for every round from now on; a full disk leaves the one before."""
    part = path.with_suffix(".plan.part")
    try:
        part.write_text(json.dumps([plan.order, plan.most_at_once, dict(plan.holds)]), "utf-8")
        os.replace(part, path)  # noqa: PTH105 - Path.replace returns what nobody needs
    except OSError:
        part.unlink(missing_ok=True)


class Planning:
    """Plans one queue anew when its jobs have changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._planned_for: tuple[object, ...] | None = None

    def look(self, situation: Situation, now_seconds: float) -> None:
        """Make a plan for what waits now, unless it is the same as before."""
        jobs = _names(situation.queue, situation.held)
        if jobs != self._planned_for:
            last = read_plan(self._path)
            plan = plan_waiting(
                situation.rooms,
                situation.queue,
                now_seconds,
                held=situation.held,
                doubt=DOUBT,
                last=last,
                effort=EFFORT,
            )
            write_plan(self._path, plan)
            self._planned_for = jobs

    def end(self) -> None:
        """Have nobody follow a plan any more."""
        self._path.unlink(missing_ok=True)


def _names(queue: Sequence[Candidate], held: Sequence[Held]) -> tuple[object, ...]:
    return (*((each.job_id, each.request, each.duration_seconds) for each in queue), *(each.job_id for each in held))
