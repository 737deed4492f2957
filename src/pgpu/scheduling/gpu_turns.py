"""Turns of oversubscribing jobs on a GPU that cannot hold all of their working sets at once.

While the working sets of all active jobs fit, every job runs. Otherwise demand paging would move memory all the time and
compute nothing, so jobs run in turns; each turn is long enough that swapping its memory in and out is a small part of it.
Jobs that fit together share a turn. The caller measures the jobs and pauses those without the turn.

Source: nvshare (Alexopoulos and Mitropoulos 2023) for turns with early release; the quantum from the cost of a swap, weights and
joint turns are ours.
"""

from collections.abc import Iterable, Mapping, Sequence

from pgpu.structs import Struct, field, replace
from pgpu.units import GIB

_PRIORITY_THAT_DOUBLES = 50


class TurnRules(Struct, frozen=True):
    """Durations in seconds."""

    bytes_per_second: float = 12 * GIB
    """Bandwidth between host and device, if neither `pgpu calibrate` nor the driver reports it. Source: PCIe 3 x16 reaches 12
    to 13 GB/s in many measurements."""

    overhead: float = 0.05
    """Fraction of a turn that may go into moving memory, above 0 to 1."""

    least_seconds: float = 2.0
    most_seconds: float = 120.0

    active_seconds: float = 10.0
    """A job counts as active this long after its last launch."""

    idle_seconds: float = 0.2
    """A job that has launched nothing for this long, and for as long as its swap takes, gives its turn back."""

    drain_seconds: float = 10.0
    """Longest wait for kernels of the last turn that do not end; then the next turn starts beside them."""

    burst_seconds: float = 2.0
    """After a turn this short a job may go first once in a round."""

    most_wait_seconds: float = 600.0
    """A job that has waited longer goes before all others."""


class Contender(Struct, frozen=True):
    """An oversubscribing job on one GPU, now. Times are in seconds of a monotonic clock."""

    job_id: str
    set_bytes: int
    """Working set: all memory it holds that could be moved to the host."""

    has_work: bool
    """Whether it has something to launch, or in flight."""

    wanted_at_seconds: float | None
    """When it last had; None for never."""

    is_quiet: bool = True
    """Whether it has nothing in flight."""

    priority: int = 0

    @property
    def weight(self) -> float:
        """Relative share of the time: 50 more of priority double it."""
        return float(2 ** (self.priority / _PRIORITY_THAT_DOUBLES))

    def is_active(self, now_seconds: float, rules: TurnRules) -> bool:
        """Whether it launched anything lately."""
        return self.has_work or self._idle_seconds(now_seconds) < rules.active_seconds

    def is_idle(self, now_seconds: float, most_seconds: float) -> bool:
        """Whether it has had nothing to launch for this long."""
        return not self.has_work and self.is_quiet and self._idle_seconds(now_seconds) >= most_seconds

    def _idle_seconds(self, now_seconds: float) -> float:
        return float("inf") if self.wanted_at_seconds is None else now_seconds - self.wanted_at_seconds


class TurnState(Struct, frozen=True):
    """State of the turns on one GPU between two calls of `advance`."""

    is_on: bool = False
    """False if every job may run."""

    holders: tuple[str, ...] = ()
    """Jobs that have the turn; empty while the jobs of the last turn drain."""

    since_seconds: float = 0.0
    until_seconds: float = 0.0
    """End of the turn if another job waits for one."""

    coming: tuple[str, ...] = ()
    """Jobs that get the next turn once no job is leaving."""

    leaving: Mapping[str, float] = field(default_factory=dict)
    """Jobs that may launch no more and still have work in flight, and since when."""

    served_seconds: Mapping[str, float] = field(default_factory=dict)
    """Time that each job had, divided by its weight: the smallest is next."""

    waiting_since_seconds: Mapping[str, float] = field(default_factory=dict)
    brief: frozenset[str] = frozenset()
    """Jobs with a last turn that ended within a burst."""

    went_first: frozenset[str] = frozenset()
    """Those of them that went before others in this round."""

    had_turn: frozenset[str] = frozenset()
    """Jobs that have had a turn in this round."""

    def may_run(self, job_id: str) -> bool:
        """Whether a job may launch."""
        return not self.is_on or job_id in self.holders


# Every job may run.
NO_TURNS = TurnState()


def advance(
    turns: TurnState, contenders: Sequence[Contender], room_bytes: int, now_seconds: float, rules: TurnRules
) -> TurnState:
    """Return the state of the turns now.

    Pure: the same arguments always give the same result. Called periodically, more often than a burst lasts.

    Args:
        turns: Result of the last call.
        contenders: Every job that oversubscribes this GPU, oldest first; only these are ever paused.
        room_bytes: Memory that they may fill together: the GPU's capacity, less slices of other jobs and what cannot be moved.
        now_seconds: On the contenders' clock.
        rules: Durations.
    """
    return _Round(turns, contenders, room_bytes, now_seconds, rules).next_state()


def quantum_seconds(moved_bytes: int, rules: TurnRules) -> float:
    """Return the length of a turn that begins with moving so much memory: swap time / `overhead`, within the bounds."""
    return min(max(moved_bytes / rules.bytes_per_second / rules.overhead, rules.least_seconds), rules.most_seconds)


class _Round:
    """One call of `advance`."""

    def __init__(
        self, turns: TurnState, contenders: Sequence[Contender], room_bytes: int, now_seconds: float, rules: TurnRules
    ) -> None:
        self._contenders = contenders
        self._known = {each.job_id: each for each in contenders}
        self._room_bytes = room_bytes
        self._now_seconds = now_seconds
        self._rules = rules
        self._active = [each.job_id for each in contenders if each.is_active(now_seconds, rules)]
        self._working = [each for each in self._active if not self._is_idle(each)]
        self._turns = self._note_waiting(self._drop_ended(turns))

    def next_state(self) -> TurnState:
        """Start turns, continue them, or end them where the working sets of all active jobs fit."""
        if self._set_bytes(self._active) <= self._room_bytes:
            return NO_TURNS
        turns = self._turns
        if not turns.is_on:
            running = tuple(each.job_id for each in self._contenders if not each.is_quiet)
            return self._start_turn(self._end_turn(replace(turns, is_on=True), running))
        if turns.coming or turns.leaving:
            return self._start_turn(turns)
        if not turns.holders or self._has_ended():
            return self._start_turn(self._end_turn(turns, turns.holders))
        return self._adjust_turn(turns)

    def _drop_ended(self, turns: TurnState) -> TurnState:
        def drop_ids(ids: Iterable[str]) -> tuple[str, ...]:
            return tuple(each for each in ids if each in self._known)

        def drop_keys(values: Mapping[str, float]) -> dict[str, float]:
            return {key: value for key, value in values.items() if key in self._known}

        return replace(
            turns,
            holders=drop_ids(turns.holders),
            coming=drop_ids(turns.coming),
            leaving=drop_keys(turns.leaving),
            served_seconds=drop_keys(turns.served_seconds),
            waiting_since_seconds=drop_keys(turns.waiting_since_seconds),
            brief=turns.brief.intersection(self._known),
            went_first=turns.went_first.intersection(self._known),
            had_turn=turns.had_turn.intersection(self._known),
        )

    def _note_waiting(self, turns: TurnState) -> TurnState:
        waiting = {
            each: turns.waiting_since_seconds.get(each, self._now_seconds)
            for each in self._working
            if each not in turns.holders
        }
        # A job that starts to work again gets no credit for the time in which it did not: its served time is raised to
        # the least of the others.
        old = [each for each in self._working if each in turns.waiting_since_seconds or each in turns.holders]
        least = min((turns.served_seconds.get(each, 0.0) for each in old), default=0.0)
        served = dict(turns.served_seconds)
        for each in set(self._working).difference(old):
            served[each] = max(served.get(each, 0.0), least)
        return replace(turns, waiting_since_seconds=waiting, served_seconds=served)

    def _has_ended(self) -> bool:
        # Only if another job waits. A turn is cut short, past its least length, for a job with short bursts.
        others = set(self._working).difference(self._turns.holders)
        is_cut = self._since_seconds() >= self._rules.least_seconds and any(
            self._is_hasty(each, self._turns) for each in others
        )
        return bool(others) and (is_cut or self._has_had_turn(self._turns))

    def _has_had_turn(self, turns: TurnState) -> bool:
        """Whether the time of the turn is up, or none of its jobs works any more."""
        return turns.until_seconds <= self._now_seconds or all(self._is_idle(each) for each in turns.holders)

    def _since_seconds(self) -> float:
        return self._now_seconds - self._turns.since_seconds

    def _is_idle(self, job_id: str) -> bool:
        # Idle for longer than swapping it out and in again would take.
        swap_seconds = self._known[job_id].set_bytes / self._rules.bytes_per_second
        return self._known[job_id].is_idle(self._now_seconds, max(self._rules.idle_seconds, swap_seconds))

    def _end_turn(self, turns: TurnState, stopping: Sequence[str]) -> TurnState:
        brief = {
            each for each in turns.holders if self._since_seconds() <= self._rules.burst_seconds and self._is_idle(each)
        }
        had_turn = turns.holders if self._has_had_turn(turns) else ()
        turns = replace(
            self._charge_turn(turns),
            holders=(),
            brief=turns.brief.difference(turns.holders) | brief,
            had_turn=turns.had_turn.union(had_turn),
        )
        # A round is over once every working job has had a turn.
        if turns.had_turn.issuperset(self._working):
            turns = replace(turns, had_turn=frozenset(), went_first=frozenset())
        coming = self._choose_next(turns, stopping)
        leaving = {each: self._now_seconds for each in stopping if each not in coming}
        first = {each for each in coming[:1] if self._is_hasty(each, turns)}
        return replace(turns, coming=coming, leaving=leaving, went_first=turns.went_first | first)

    def _charge_turn(self, turns: TurnState) -> TurnState:
        """Add the time of the turn, divided by weight, to the served time of its jobs."""
        served = dict(turns.served_seconds)
        for each in turns.holders:
            served[each] = served.get(each, 0.0) + self._since_seconds() / self._known[each].weight
        return replace(turns, served_seconds=served)

    def _choose_next(self, turns: TurnState, last: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the next job by `_precedence` and the jobs that fit beside it."""
        order = {each: at for at, each in enumerate(self._active)}
        ranked = sorted(
            self._working or self._active, key=lambda each: (*self._precedence(each, turns, last), order[each])
        )
        return self._fit_together(ranked)

    def _fit_together(self, ranked: Sequence[str]) -> tuple[str, ...]:
        # The first job in any case: alone it pages, but it runs.
        chosen: list[str] = []
        left_bytes = self._room_bytes
        for each in ranked:
            size = self._known[each].set_bytes
            if size <= left_bytes or not chosen:
                chosen.append(each)
                left_bytes -= size
        return tuple(chosen)

    def _precedence(self, job_id: str, turns: TurnState, last: Sequence[str]) -> tuple[bool, bool, float]:
        since_seconds = turns.waiting_since_seconds.get(job_id, self._now_seconds)
        is_overdue = self._now_seconds - since_seconds > self._rules.most_wait_seconds
        # Served times of turns of one length differ by the period of the calls; this much decides between equals against
        # the job that had the last turn.
        served_seconds = turns.served_seconds.get(job_id, 0.0) + self._rules.least_seconds * (job_id in last)
        return not is_overdue, not self._is_hasty(job_id, turns), served_seconds

    def _is_hasty(self, job_id: str, turns: TurnState) -> bool:
        """Whether it waits, has short bursts, and has not gone first in this round."""
        return job_id in turns.brief and job_id not in turns.went_first and self._known[job_id].has_work

    def _start_turn(self, turns: TurnState) -> TurnState:
        # The next turn starts once the jobs of the last one have drained, or after `drain_seconds`.
        leaving = {
            each: since
            for each, since in turns.leaving.items()
            if not self._known[each].is_quiet and self._now_seconds - since < self._rules.drain_seconds
        }
        if leaving:
            return replace(turns, leaving=leaving)
        # The chosen jobs may have grown or ended since they were chosen.
        coming = self._fit_together(turns.coming) or self._choose_next(turns)
        # What must be moved in, and as much out: at most as much of theirs as other jobs can have pushed out.
        others = self._set_bytes(each for each in self._active if each not in coming)
        moved_bytes = 2 * min(self._set_bytes(coming), others, self._room_bytes)
        return replace(
            turns,
            holders=coming,
            coming=(),
            leaving={},
            since_seconds=self._now_seconds,
            until_seconds=self._now_seconds + quantum_seconds(moved_bytes, self._rules),
            waiting_since_seconds={
                each: since for each, since in turns.waiting_since_seconds.items() if each not in coming
            },
        )

    def _adjust_turn(self, turns: TurnState) -> TurnState:
        # Jobs that have grown too large for the others of the turn leave it; jobs that fit beside them join.
        staying = self._fit_together(turns.holders)
        if staying != turns.holders:
            leaving = {each: self._now_seconds for each in turns.holders if each not in staying}
            return replace(self._charge_turn(turns), holders=(), coming=staying, leaving=leaving)
        waiting = sorted(turns.waiting_since_seconds, key=lambda each: (turns.waiting_since_seconds[each], each))
        together = self._fit_together([*turns.holders, *waiting])
        rest = {each: since for each, since in turns.waiting_since_seconds.items() if each not in together}
        return replace(turns, holders=together, waiting_since_seconds=rest)

    def _set_bytes(self, job_ids: Iterable[str]) -> int:
        return sum(self._known[each].set_bytes for each in job_ids)
