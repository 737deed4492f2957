"""The plan of a queue with `objective = makespan`: made by its agent between rounds, applied by every round.

The plan is a file in the runtime directory, since any process that frees memory runs a round in its own transaction, and
planning takes too long for one. It names jobs and no times, so an outdated plan is still valid; without one the usual order
applies.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pgpu.engine.history.run_history import history_names
from pgpu.host.atomic_file import write_atomically
from pgpu.ledger import Call, LedgerView
from pgpu.model import Gpu
from pgpu.scheduling import Candidate, GpuRoom, Held, OrderRules
from pgpu.scheduling.order import NO_PLAN, BatchPlan
from pgpu.scheduling.quota_usage import split_queue
from pgpu.scheduling.run_times import SlowdownCurve, fit_slowdown_curve

if TYPE_CHECKING:
    from pgpu.engine.admission.situation import Situation

EFFORT = 15_000
"""Steps of the search: 0.25 s of a core, twice that where durations are uncertain, up to 1 s with 200 jobs. The agent
answers no message meanwhile."""

DOUBT = 0.5
"""Standard deviation of the logarithm of durations without history, a factor of 1.6: a guess. `benchmarks/makespan` measures
plans made with it."""

STRETCH_RUNS = 2_000
"""How many of a call's newest runs are read for its slowdown beside other jobs."""


class SlowdownCurves:
    """How much each call slows down beside other jobs, read from the history once for each run that ends."""

    def __init__(self) -> None:
        self._gpu_names: tuple[str, ...] = ()
        self._known: dict[Call, SlowdownCurve | None] = {}
        self._as_of = 0

    def of(self, view: LedgerView, gpu_model: str | None, gpus: Sequence[Gpu]) -> dict[str, SlowdownCurve]:
        """Return the known curves of waiting and running jobs, by job id.

        Args:
            view: Of the ledger.
            gpu_model: Of the queue.
            gpus: Every GPU of it; empty while they cannot be read: those of the last call are used.
        """
        names = history_names(gpus) or self._gpu_names
        if names != self._gpu_names:
            # Another model of GPU has a history of its own.
            self._gpu_names, self._known = names, {}
        self._as_of, changed = view.history.since(self._as_of)
        for call in changed:
            self._known.pop(call, None)
        jobs = [(each.job_id, (each.signature, each.owner_uid)) for each in view.waiting(gpu_model)]
        holding = (entry.job for entry in view.holding() if entry.job.gpu_model == gpu_model)
        jobs += [(job.id, (job.signature, job.owner_uid)) for job in holding]
        found = {}
        for job_id, call in jobs:
            if not call[0]:
                continue
            if call not in self._known:
                self._known[call] = fit_curve(view.history.colocated_runs(call, names, STRETCH_RUNS))
            if (curve := self._known[call]) is not None:
                found[job_id] = curve
        return found


def fit_curve(runs: Iterable[tuple[float, float]]) -> SlowdownCurve | None:
    """Fit a curve to a call's runs; see `fit_slowdown_curve`."""
    return fit_slowdown_curve(runs, DOUBT)


def plan_queue(
    rooms: Sequence[GpuRoom],
    queue: Sequence[Candidate],
    now_seconds: float,
    *,
    held: Sequence[Held],
    curves: Mapping[str, SlowdownCurve],
    last: BatchPlan,
) -> BatchPlan:
    """Plan a queue with an agent's effort; arguments as of `plan_waiting`."""
    from pgpu.scheduling.makespan import plan_waiting  # noqa: PLC0415 - with `objective = makespan` only

    return plan_waiting(rooms, queue, now_seconds, held=held, curves=curves, doubt=DOUBT, last=last, effort=EFFORT)


def read_plan(path: Path) -> BatchPlan:
    """Return the plan in a file; an empty one if it cannot be read."""
    try:
        order, most_at_once, holds = json.loads(path.read_bytes())
        return BatchPlan(tuple(order), most_at_once, dict(holds))
    except (OSError, ValueError, TypeError):
        return NO_PLAN


class QueuePlanner:
    """Plans one queue again when its jobs have changed, or when one runs longer than expected."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._planned_for: tuple[object, ...] | None = None

    def plan_if_changed(self, situation: "Situation", curves: Mapping[str, SlowdownCurve], now_seconds: float) -> None:
        """Write a plan for the jobs of a situation, unless the last plan was made for the same ones.

        Args:
            situation: Of this round.
            curves: By job id, as of `plan_waiting`.
            now_seconds: Seconds since the epoch.
        """
        queue, held = split_queue(situation.queue)[0], [each for each in situation.held if each.slices]
        jobs = (
            *((each.job_id, each.request, each.duration_seconds) for each in queue),
            *((each.job_id, _times_overdue(each, now_seconds)) for each in held),
        )
        if jobs == self._planned_for:
            return
        last = read_plan(self._path)
        plan = plan_queue(situation.rooms, queue, now_seconds, held=held, curves=curves, last=last)
        with suppress(OSError):  # a full disk keeps the last plan
            fields = [plan.order, plan.most_at_once, dict(plan.holds)]
            write_atomically(self._path, json.dumps(fields).encode(), 0o644)
        # Set even if the file could not be written: a full disk must not make each round plan again.
        self._planned_for = jobs

    def end(self) -> None:
        """Remove the plan."""
        self._path.unlink(missing_ok=True)


def _times_overdue(held: Held, now_seconds: float) -> int:
    # Grows at a job's expected end and then each time its run time has doubled. A plan counts on the expected end, and
    # planning again in every round of an overdue job would keep the agent busy.
    expected_seconds = held.duration_seconds
    if expected_seconds is None:
        expected_seconds = OrderRules().default_duration_seconds
    return int((now_seconds - held.granted_at_seconds) / max(1.0, expected_seconds)).bit_length()
