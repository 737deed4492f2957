"""The order of a queue in figures: which rule decides a job's place, and how far the users are apart.

Computed from a round that is decided as usual and not written.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence

from pgpu.engine.admission.situation import Situation
from pgpu.engine.history.usage_records import UserShare
from pgpu.scheduling import Admission, Candidate
from pgpu.scheduling.admission import machine_of
from pgpu.scheduling.admission_round import NO_QUOTA
from pgpu.structs import Struct

PLACE_RULES = FIRST, RESERVED, LATE, PRIORITY, PLAN, SHARES, SIZE = (
    "first",
    "reserved",
    "late",
    "priority",
    "plan",
    "shares",
    "size",
)
"""Rules that decide the place of a waiting job behind the one before it."""


class PlaceRule(Struct, frozen=True):
    """Why a job stands where it does in the queue."""

    rule: str
    """One of those above."""

    seconds: float | None = None
    """With `SHARES`: how much more machine time the job's user has had, by weight, than the user of the job before."""


def place_rules(
    situation: Situation, admission: Admission, order: Sequence[str], wanted: Collection[str]
) -> dict[str, PlaceRule]:
    """Return the rules of jobs of the queue with a GPU, by id.

    Args:
        situation: Of the round.
        admission: Its outcome.
        order: Ids in the order of the queue.
        wanted: Ids of the jobs of which the rules are returned.
    """
    known = {candidate.job_id: candidate for candidate in situation.queue if candidate.request.gpu_count}
    line = [known[job_id] for job_id in order if job_id in known]
    planned = frozenset(situation.plan.order) - admission.late_ids
    found, before = {}, None
    for candidate in line:
        if candidate.job_id in wanted:
            found[candidate.job_id] = _place_rule(before, candidate, admission, planned)
        before = candidate
    return found


def _place_rule(
    before: Candidate | None, candidate: Candidate, admission: Admission, planned: frozenset[str]
) -> PlaceRule:
    if before is None:
        return PlaceRule(FIRST)
    if admission.reservation is not None and before.job_id == admission.reservation.job_id:
        return PlaceRule(RESERVED)
    if (before.job_id in admission.late_ids) != (candidate.job_id in admission.late_ids):
        return PlaceRule(LATE)
    if before.request.priority != candidate.request.priority:
        return PlaceRule(PRIORITY)
    if before.job_id in planned:
        return PlaceRule(PLAN)
    behind_seconds = admission.turns[candidate.contender] - admission.turns[before.contender]
    return PlaceRule(SIZE) if before.owner_uid == candidate.owner_uid else PlaceRule(SHARES, behind_seconds)


def user_shares(situation: Situation, admission: Admission) -> list[UserShare]:
    """Return the users that hold or wait: the next one first, then those of whom no job waits for other jobs."""
    machine = machine_of(situation.rooms)
    holds: defaultdict[int, float] = defaultdict(float)
    for each in situation.held:
        holds[each.owner_uid] += machine.rate_of(each)
    waiting = Counter(each.owner_uid for each in situation.queue if each.request.gpu_count)
    turns: dict[int, float] = {}
    for (uid, priority), is_active in admission.time.contenders.items():
        if is_active:
            turns[uid] = min(turns.get(uid, math.inf), admission.turns[uid, priority])
    least = min(turns.values(), default=0.0)
    found = [
        UserShare(
            uid,
            situation.quotas.get(uid, NO_QUOTA).weight,
            holds[uid],
            waiting[uid],
            turns[uid] - least if uid in turns else None,
        )
        for uid in {*holds, *waiting}
    ]
    return sorted(found, key=lambda each: (each.behind_seconds is None, each.behind_seconds or 0.0, each.uid))
