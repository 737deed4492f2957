"""Whose turn it is on a GPU that cannot hold what all of its jobs work on.

As long as the working sets of the active jobs fit, all run. Once they do not, a GPU that pages for everybody at once moves
memory and computes nothing; so jobs run in turns, each long enough that moving its memory in and out is a small part of it.
Jobs that fit together have a turn together. This module refuses to measure, to hold anybody and to know how that is done.

Source: nvshare (Alexopoulos and Mitropoulos 2023) for turns with early release; the quantum from the cost of a swap, weights
and joint turns are ours.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pgpu.units import GIB

_PRIORITY_THAT_DOUBLES = 50


@dataclass(frozen=True, slots=True)
class TurnRules:
    """How long things are, in seconds."""

    bytes_per_second: float = 12 * GIB
    """At which memory moves between host and device, where neither `pgpu calibrate` nor the driver told. Source: PCIe 3 x16,
    measured by many, is 12 to 13 GB/s."""

    overhead: float = 0.05
    """Share of a turn that may go into moving memory, above 0 to 1."""

    least_seconds: float = 2.0
    most_seconds: float = 120.0

    active_seconds: float = 10.0
    """How long after its last launch a job still counts as one that works."""

    idle_seconds: float = 0.2
    """Who has launched nothing for so long, and for as long as moving its memory takes, gives its turn back."""

    drain_seconds: float = 10.0
    """How long the next wait for kernels that do not end; then they start beside them."""

    burst_seconds: float = 2.0
    """Who was done so soon may go first once in a round."""

    most_wait_seconds: float = 600.0
    """Who has waited longer goes before all others."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A job that oversubscribes, on one GPU, now. Times are seconds of a clock that never goes back."""

    job_id: str
    set_bytes: int
    """What it works on: all that it holds and that could be moved to the host."""

    is_wanting: bool
    """Whether it has something to launch, or in flight."""

    wanted_at_seconds: float | None
    """When it last had; None: never."""

    is_quiet: bool = True
    """Whether nothing of it is in flight."""

    priority: int = 0

    @property
    def weight(self) -> float:
        """How much of the time it gets against others: 50 more of priority double it."""
        return float(2 ** (self.priority / _PRIORITY_THAT_DOUBLES))

    def is_active(self, now_seconds: float, rules: TurnRules) -> bool:
        """Whether it launched anything lately."""
        return self.is_wanting or self._idle_seconds(now_seconds) < rules.active_seconds

    def is_idle(self, now_seconds: float, most_seconds: float) -> bool:
        """Whether it has wanted nothing for so long."""
        return not self.is_wanting and self.is_quiet and self._idle_seconds(now_seconds) >= most_seconds

    def _idle_seconds(self, now_seconds: float) -> float:
        return float("inf") if self.wanted_at_seconds is None else now_seconds - self.wanted_at_seconds


@dataclass(frozen=True, slots=True)
class TurnState:
    """What one GPU's turns are at, and what is remembered of them."""

    is_on: bool = False
    """False: everybody runs."""

    holders: tuple[str, ...] = ()
    """Whose turn it is; nobody while the next wait for the last to be quiet."""

    since_seconds: float = 0.0
    until_seconds: float = 0.0
    """When the turn ends, if anybody waits for one."""

    coming: tuple[str, ...] = ()
    """Who has the next turn as soon as nobody is leaving."""

    leaving: Mapping[str, float] = field(default_factory=dict)
    """Who may launch no more and is not quiet yet, and since when."""

    served_seconds: Mapping[str, float] = field(default_factory=dict)
    """Time that each had, by its weight: who has least is next."""

    waiting_since_seconds: Mapping[str, float] = field(default_factory=dict)
    brief: frozenset[str] = frozenset()
    """Whose last turn ended within a burst."""

    went_first: frozenset[str] = frozenset()
    """Who of those went before others in this round."""

    had_turn: frozenset[str] = frozenset()
    """Who has had a turn in this round."""

    def may_run(self, job_id: str) -> bool:
        """Whether a job's launches may go through."""
        return not self.is_on or job_id in self.holders


NO_TURNS = TurnState()
"""Nobody waits for anybody."""


def advance(
    turns: TurnState, contenders: Sequence[Contender], room_bytes: int, now_seconds: float, rules: TurnRules
) -> TurnState:
    """Say whose turn it is now.

    Pure: the same arguments always give the same answer. To be asked again and again, more often than a burst lasts.

    Args:
        turns: What the last answer was.
        contenders: Every job that oversubscribes this GPU, oldest first; only these are ever held.
        room_bytes: What of the GPU they may fill together: its capacity, less slices of other jobs and what cannot be moved.
        now_seconds: On the contenders' clock.
        rules: How long things are.
    """
    round_ = _Round(turns, contenders, room_bytes, now_seconds, rules)
    if round_.fits_all():
        return NO_TURNS
    return round_.advanced()


def quantum_seconds(moved_bytes: int, rules: TurnRules) -> float:
    """Return how long a turn lasts that begins with moving so much memory."""
    return min(max(moved_bytes / rules.bytes_per_second / rules.overhead, rules.least_seconds), rules.most_seconds)


class _Round:
    """One look at one GPU."""

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
        self._turns = self._aged(self._without_gone(turns))

    def fits_all(self) -> bool:
        """Whether everything that is in use fits."""
        return self._set_bytes(self._active) <= self._room_bytes

    def advanced(self) -> TurnState:
        """Begin turns, or go on with them."""
        turns = self._turns
        if not turns.is_on:
            running = tuple(each.job_id for each in self._contenders if not each.is_quiet)
            return self._admitted(self._changed(replace(turns, is_on=True), running))
        if turns.coming or turns.leaving:
            return self._admitted(turns)
        if not turns.holders or self._has_ended():
            return self._admitted(self._changed(turns, turns.holders))
        return self._adjusted(turns)

    def _without_gone(self, turns: TurnState) -> TurnState:
        """Forget jobs that are gone."""

        def here(ids: Iterable[str]) -> tuple[str, ...]:
            return tuple(each for each in ids if each in self._known)

        def kept(values: Mapping[str, float]) -> dict[str, float]:
            return {key: value for key, value in values.items() if key in self._known}

        return replace(
            turns,
            holders=here(turns.holders),
            coming=here(turns.coming),
            leaving=kept(turns.leaving),
            served_seconds=kept(turns.served_seconds),
            waiting_since_seconds=kept(turns.waiting_since_seconds),
            brief=turns.brief.intersection(self._known),
            went_first=turns.went_first.intersection(self._known),
            had_turn=turns.had_turn.intersection(self._known),
        )

    def _aged(self, turns: TurnState) -> TurnState:
        """Note who waits, and since when; who comes newly has no arrears from the time when it did not work."""
        waiting = {
            each: turns.waiting_since_seconds.get(each, self._now_seconds)
            for each in self._working
            if each not in turns.holders
        }
        old = [each for each in self._working if each in turns.waiting_since_seconds or each in turns.holders]
        least = min((turns.served_seconds.get(each, 0.0) for each in old), default=0.0)
        served = dict(turns.served_seconds)
        for each in set(self._working).difference(old):
            served[each] = max(served.get(each, 0.0), least)
        return replace(turns, waiting_since_seconds=waiting, served_seconds=served)

    def _has_ended(self) -> bool:
        """Whether somebody waits and the holders' turn is over, or is cut short for one who is soon done."""
        others = set(self._working).difference(self._turns.holders)
        is_cut = self._since_seconds() >= self._rules.least_seconds and any(
            self._is_hasty(each, self._turns) for each in others
        )
        return bool(others) and (is_cut or self._has_had_turn(self._turns))

    def _has_had_turn(self, turns: TurnState) -> bool:
        """Whether the holders' time is up, or none of them works any more."""
        return turns.until_seconds <= self._now_seconds or all(self._is_idle(each) for each in turns.holders)

    def _since_seconds(self) -> float:
        return self._now_seconds - self._turns.since_seconds

    def _is_idle(self, job_id: str) -> bool:
        """Whether it would cost less to swap it out and in again than to wait on for it."""
        swap_seconds = self._known[job_id].set_bytes / self._rules.bytes_per_second
        return self._known[job_id].is_idle(self._now_seconds, max(self._rules.idle_seconds, swap_seconds))

    def _changed(self, turns: TurnState, stopping: Sequence[str]) -> TurnState:
        """Take the turn from those who have it and choose who comes next."""
        brief = {
            each for each in turns.holders if self._since_seconds() <= self._rules.burst_seconds and self._is_idle(each)
        }
        had_turn = turns.holders if self._has_had_turn(turns) else ()
        turns = self._in_new_round(
            replace(
                self._charged(turns),
                holders=(),
                brief=turns.brief.difference(turns.holders) | brief,
                had_turn=turns.had_turn.union(had_turn),
            )
        )
        coming = self._chosen(turns, stopping)
        leaving = {each: self._now_seconds for each in stopping if each not in coming}
        first = {each for each in coming[:1] if self._is_hasty(each, turns)}
        return replace(turns, coming=coming, leaving=leaving, went_first=turns.went_first | first)

    def _charged(self, turns: TurnState) -> TurnState:
        """Count the time that the holders had."""
        served = dict(turns.served_seconds)
        for each in turns.holders:
            served[each] = served.get(each, 0.0) + self._since_seconds() / self._known[each].weight
        return replace(turns, served_seconds=served)

    def _in_new_round(self, turns: TurnState) -> TurnState:
        """Begin a new round once everybody who works has had a turn."""
        if turns.had_turn.issuperset(self._working):
            return replace(turns, had_turn=frozenset(), went_first=frozenset())
        return turns

    def _chosen(self, turns: TurnState, last: Sequence[str] = ()) -> tuple[str, ...]:
        """The first in turn, and whoever fits beside it; of equals, who has not had the last turn."""
        order = {each: at for at, each in enumerate(self._active)}
        ranked = sorted(
            self._working or self._active, key=lambda each: (*self._precedence(each, turns, last), order[each])
        )
        return self._fitting(ranked)

    def _fitting(self, ranked: Sequence[str]) -> tuple[str, ...]:
        """As many of these as fit together, the first in any case."""
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
        # Turns of one length differ by a look.
        served_seconds = turns.served_seconds.get(job_id, 0.0) + self._rules.least_seconds * (job_id in last)
        return not is_overdue, not self._is_hasty(job_id, turns), served_seconds

    def _is_hasty(self, job_id: str, turns: TurnState) -> bool:
        """Whether it waits, is soon done, and has not gone first in this round."""
        return job_id in turns.brief and job_id not in turns.went_first and self._known[job_id].is_wanting

    def _admitted(self, turns: TurnState) -> TurnState:
        """Give the turn to those who come, once those who leave are quiet, or will not be."""
        leaving = {
            each: since
            for each, since in turns.leaving.items()
            if not self._known[each].is_quiet and self._now_seconds - since < self._rules.drain_seconds
        }
        if leaving:
            return replace(turns, leaving=leaving)
        # What they hold may have grown since they were chosen, and they may have ended.
        coming = self._fitting(turns.coming) or self._chosen(turns)
        length_seconds = quantum_seconds(self._moved_bytes(coming), self._rules)
        return replace(
            turns,
            holders=coming,
            coming=(),
            leaving={},
            since_seconds=self._now_seconds,
            until_seconds=self._now_seconds + length_seconds,
            waiting_since_seconds={
                each: since for each, since in turns.waiting_since_seconds.items() if each not in coming
            },
        )

    def _adjusted(self, turns: TurnState) -> TurnState:
        """Send away holders that have grown too large for the others, and let in who fits beside them."""
        staying = self._fitting(turns.holders)
        if staying != turns.holders:
            leaving = {each: self._now_seconds for each in turns.holders if each not in staying}
            return replace(self._charged(turns), holders=(), coming=staying, leaving=leaving)
        waiting = sorted(turns.waiting_since_seconds, key=lambda each: (turns.waiting_since_seconds[each], each))
        together = self._fitting([*turns.holders, *waiting])
        rest = {each: since for each, since in turns.waiting_since_seconds.items() if each not in together}
        return replace(turns, holders=together, waiting_since_seconds=rest)

    def _moved_bytes(self, coming: Sequence[str]) -> int:
        """What must be moved in, and as much out: as much of theirs as others may have pushed out."""
        others = self._set_bytes(each for each in self._active if each not in coming)
        return 2 * min(self._set_bytes(coming), others, self._room_bytes)

    def _set_bytes(self, job_ids: Iterable[str]) -> int:
        return sum(self._known[each].set_bytes for each in job_ids)
