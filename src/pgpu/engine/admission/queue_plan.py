"""The plan of a queue that should end soonest, made by its keeper between rounds and followed by every round.

It lies in a file in the runtime directory: whoever frees memory admits in a transaction of its own, and making a plan takes
too long for one. A plan names jobs and no times, so one that is a little old is followed, too; without one the usual order
holds. It refuses to make a plan twice for the same jobs while they last as long as they should.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pgpu.engine.admission.rounds import Situation
from pgpu.engine.history.run_history import history_names
from pgpu.host.atomic_file import write_atomically
from pgpu.ledger import Call, View
from pgpu.model import Gpu
from pgpu.scheduling import Candidate, GpuRoom, Held
from pgpu.scheduling.cpu_queue import split_queue
from pgpu.scheduling.durations import SlowdownCurve, fit_slowdown_curve
from pgpu.scheduling.makespan import plan_waiting
from pgpu.scheduling.order import NO_PLAN, BatchPlan, OrderRules

EFFORT = 15_000
"""A quarter of a second of a core, as much again where durations are doubtful, and with the first orders of two hundred jobs
up to a second: so long the keeper hears nobody."""

DOUBT = 0.5
"""How far durations are off where no history tells: the standard deviation of the logarithm. A guess: a factor of 1.6 more or
less. `benchmarks/makespan` plays what the engine plans with it, and with the doubt that runs leave."""

STRETCH_RUNS = 2_000
"""How many of a call's newest runs are looked at to tell what companions cost it."""


class Stretches:
    """What the history tells of each call beside companions, read once for each run that ends."""

    def __init__(self) -> None:
        self._gpu_names: tuple[str, ...] = ()
        self._known: dict[Call, SlowdownCurve | None] = {}
        self._as_of = 0

    def of(self, view: View, gpu_model: str | None, gpus: Sequence[Gpu]) -> dict[str, SlowdownCurve]:
        """Return, by job id, what is known of those that wait or hold memory.

        Args:
            view: Of the ledger.
            gpu_model: Of the queue.
            gpus: Every GPU of it; none while they cannot be read: as of those that were named last.
        """
        names = history_names(gpus) or self._gpu_names
        if names != self._gpu_names:
            self._gpu_names, self._known = names, {}
        self._as_of, changed = view.history.since(self._as_of)
        for call in changed:
            self._known.pop(call, None)
        jobs = [(each.job_id, (each.signature, each.owner_uid)) for each in view.waiting(gpu_model)]
        holding = (entry.job for entry in view.holding() if entry.job.gpu_model == gpu_model)
        jobs += [(job.id, (job.signature, job.owner_uid)) for job in holding]
        found = ((job_id, self._of_call(view, call)) for job_id, call in jobs if call[0])
        return {job_id: stretch for job_id, stretch in found if stretch is not None}

    def _of_call(self, view: View, call: Call) -> SlowdownCurve | None:
        if call not in self._known:
            self._known[call] = known_of(view.history.company(call, self._gpu_names, STRETCH_RUNS))
        return self._known[call]


def known_of(runs: Iterable[tuple[float, float]]) -> SlowdownCurve | None:
    """Return what a call's runs tell, as of `stretch_of`."""
    return fit_slowdown_curve(runs, DOUBT)


def plan_of(
    rooms: Sequence[GpuRoom],
    queue: Sequence[Candidate],
    now_seconds: float,
    *,
    held: Sequence[Held],
    stretches: Mapping[str, SlowdownCurve],
    last: BatchPlan,
) -> BatchPlan:
    """Plan what waits as every keeper does; arguments as of `plan_waiting`."""
    return plan_waiting(
        rooms, queue, now_seconds, held=held, stretches=stretches, doubt=DOUBT, last=last, effort=EFFORT
    )


def read_plan(path: Path) -> BatchPlan:
    """Return the plan that lies there; none if there is none that can be read."""
    try:
        order, most_at_once, holds = json.loads(path.read_bytes())
        return BatchPlan(tuple(order), most_at_once, dict(holds))
    except (OSError, ValueError, TypeError):
        return NO_PLAN


def write_plan(path: Path, plan: BatchPlan) -> None:
    """Put a plan there for every round from now on; a full disk leaves the one before."""
    with suppress(OSError):
        write_atomically(path, json.dumps([plan.order, plan.most_at_once, dict(plan.holds)]).encode(), 0o644)


class QueuePlanner:
    """Plans one queue anew when its jobs have changed, or when one runs longer than was believed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._planned_for: tuple[object, ...] | None = None

    def look(self, situation: Situation, stretches: Mapping[str, SlowdownCurve], now_seconds: float) -> None:
        """Make a plan for what waits now, unless it is the same as before.

        Args:
            situation: Of this round.
            stretches: By job id, as of `plan_waiting`.
            now_seconds: Seconds since the epoch.
        """
        line, held = split_queue(situation.queue)[0], [each for each in situation.held if each.slices]
        jobs = _names(line, held, now_seconds)
        if jobs != self._planned_for:
            last = read_plan(self._path)
            plan = plan_of(situation.rooms, line, now_seconds, held=held, stretches=stretches, last=last)
            write_plan(self._path, plan)
            self._planned_for = jobs

    def end(self) -> None:
        """Have nobody follow a plan any more."""
        self._path.unlink(missing_ok=True)


def _names(queue: Sequence[Candidate], held: Sequence[Held], now_seconds: float) -> tuple[object, ...]:
    waiting = ((each.job_id, each.request, each.duration_seconds) for each in queue)
    return (*waiting, *((each.job_id, _times_outlived(each, now_seconds)) for each in held))


def _times_outlived(held: Held, now_seconds: float) -> int:
    """Count how often more has come to be expected of a job: at its expected end, then each time it ran twice as long.

    The plan was made for an end that did not come; made anew in every round it would keep the keeper from all else.
    """
    expected_seconds = held.duration_seconds
    if expected_seconds is None:
        expected_seconds = OrderRules().default_duration_seconds
    return int((now_seconds - held.granted_at_seconds) / max(1.0, expected_seconds)).bit_length()
