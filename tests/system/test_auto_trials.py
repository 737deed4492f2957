"""Jobs that `auto` let join each other under MPS: tried together and in turns, and kept as they are faster."""

import selectors
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from tests.system.test_auto_choice import GPU

from pgpu.advising.verification import VerificationRules, Way
from pgpu.enforcement.board import BoardGpu
from pgpu.enforcement.compute_word import ComputeWord, Hold
from pgpu.engine.admission.auto_sharing import verdict_of
from pgpu.engine.engine import Engine
from pgpu.engine.event_loop import EventLoop
from pgpu.engine.leases.departure import Departure
from pgpu.engine.settings import EngineSettings
from pgpu.engine.supervisor.suspension import Suspension
from pgpu.engine.watch.mps_verifier import MpsVerifier
from pgpu.ledger import Entry, Ledger
from pgpu.model import (
    Gpu,
    Job,
    JobSpec,
    JobState,
    Lease,
    Request,
    SharingMode,
    SharingWish,
    Slice,
)
from pgpu.structs import replace
from pgpu.units import GIB


class Gpus:
    def gpus(self) -> list[Gpu]:
        return [GPU]


class MadeTime(selectors.EpollSelector):
    """Time that passes only while a loop waits."""

    seconds = 1000.0

    def now_seconds(self) -> float:
        return self.seconds

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.seconds += timeout or 0.0
        return super().select(0)


@dataclass
class Pair:
    """Two jobs under MPS as their boards tell of them: alone each launches so much in a millisecond, together so much."""

    root: Path
    alone: int
    together: int
    words_of: dict[str, ComputeWord] = field(default_factory=dict)
    launches: dict[str, float] = field(default_factory=dict)
    time: MadeTime = field(default_factory=MadeTime)

    def __post_init__(self) -> None:
        self.loop = EventLoop(self.time.now_seconds, lambda: self.time)
        self.counted_until_seconds = self.time.seconds
        self.settings = EngineSettings(self.root, self.root, None)
        self.ledger = Ledger(self.root / "ledger.db")
        self.enforcer = self
        self.gpus = Gpus()
        self.jobs = [job("a" * 12), job("b" * 12)]
        for each in self.jobs:
            self.add(each)

    @property
    def held(self) -> set[str]:
        """Who takes turns now."""
        return {job_id for job_id, word in self.words_of.items() if word.holds & Hold.TRIAL}

    def boards(self, lease: Lease) -> list[BoardGpu]:
        self._go_on()
        return [BoardGpu(ComputeWord(), 1, 1, 0, 0, 0, 0, int(self.launches.get(lease.job_id, 0)), 0, 1)]

    def _go_on(self) -> None:
        """Count what was launched since this was asked last."""
        now_seconds = self.time.seconds
        rate = self.alone if self.held else self.together
        for each in self.jobs:
            if each.id not in self.held:
                gone_ms = (now_seconds - self.counted_until_seconds) * 1e3
                self.launches[each.id] = self.launches.get(each.id, 0) + rate * gone_ms
        self.counted_until_seconds = now_seconds

    def words(self, lease: Lease) -> list[ComputeWord]:
        return [self.words_of.get(lease.job_id, ComputeWord())]

    def hold(self, lease: Lease, _gpu_uuid: str, hold: Hold, *, is_held: bool) -> None:
        self._go_on()
        [word] = self.words(lease)
        self.words_of[lease.job_id] = word.with_hold(hold, is_held=is_held)

    def add(self, newcomer: Job) -> None:
        """Let one more run on the GPU."""
        with self.ledger.decision() as decision:
            decision.put(replace(decision.add(Entry(newcomer), ()), job=newcomer))


def job(job_id: str) -> Job:
    request = Request(GIB, sharing=SharingWish.AUTO)
    lease = Lease(job_id, (Slice(GPU.uuid, GIB),), 1.0, sharing=SharingMode.MPS)
    spec = JobSpec(("true",), "process")
    return Job(job_id, spec, request, JobState.RUNNING, 1.0, lease=lease, signature=f"program@{job_id[:8]}")


def tried(pair: Pair) -> MpsVerifier:
    """Let a verifier look at a pair until it knows, with looks of a moment."""
    loop = pair.loop
    rules = VerificationRules(look_seconds=0.3, settle_seconds=0.05)
    verifier = MpsVerifier(cast("Engine", pair), loop, pair.jobs[0], rules)

    def tick() -> None:
        verifier.tick()
        loop.call_later(0.02, tick)

    tick()
    loop.run_until(lambda: verdict(pair) is not None)
    loop.run_until(lambda: bool(pair.held) == (verdict(pair) is Way.TURNS))
    return verifier


def verdict(pair: Pair) -> Way | None:
    with pair.ledger.view() as view:
        found = verdict_of(view, GPU, [job.signature for job in pair.jobs])
    return None if found is None else found.way


def test_jobs_that_hurt_each_other_under_mps_take_turns_and_the_next_start_apart(tmp_path: Path) -> None:
    pair = Pair(tmp_path, alone=100, together=20)
    verifier = tried(pair)
    assert verdict(pair) is Way.TURNS
    assert len(pair.held) == 1
    verifier.close()
    assert not pair.held


def test_jobs_that_are_faster_together_under_mps_stay_so(tmp_path: Path) -> None:
    pair = Pair(tmp_path, alone=100, together=90)
    tried(pair).close()
    assert verdict(pair) is Way.TOGETHER
    assert not pair.held


def test_one_supervisor_does_it_and_the_next_lets_everybody_go_on(tmp_path: Path) -> None:
    pair = Pair(tmp_path, alone=100, together=90)
    left_over = {"b" * 12: ComputeWord(holds=Hold.TRIAL | Hold.SUSPENSION)}
    pair.words_of = dict(left_over)
    first, second = (MpsVerifier(cast("Engine", pair), pair.loop, job) for job in pair.jobs)
    first.tick()
    assert pair.words_of["b" * 12].holds is Hold.SUSPENSION
    pair.words_of = dict(left_over)
    second.tick()
    assert pair.held == {"b" * 12}
    first.close()
    second.tick()
    assert not pair.held
    second.close()


def test_who_is_held_goes_on_when_one_comes_that_asked_for_mps_by_name(tmp_path: Path) -> None:
    pair = Pair(tmp_path, alone=100, together=20)
    verifier = tried(pair)
    assert len(pair.held) == 1
    named = job("c" * 12)
    pair.add(replace(named, request=replace(named.request, sharing=SharingWish.MPS)))
    verifier.tick()
    assert not pair.held
    verifier.close()


def test_whoever_takes_over_lets_go_beside_one_that_asked_for_mps_by_name(tmp_path: Path) -> None:
    pair = Pair(tmp_path, alone=100, together=20)
    named = job("c" * 12)
    pair.add(replace(named, request=replace(named.request, sharing=SharingWish.MPS)))
    pair.words_of = {"a" * 12: ComputeWord(holds=Hold.TRIAL)}
    verifier = MpsVerifier(cast("Engine", pair), pair.loop, pair.jobs[1])
    verifier.tick()
    assert not pair.held
    verifier.close()


class Stayed:
    """A job that never left."""

    is_under_way = False

    def come_back(self, _job: Job) -> bool:
        return True


def test_a_supervisor_that_suspends_nobody_leaves_turns_alone(tmp_path: Path) -> None:
    pair = Pair(tmp_path, alone=100, together=20)
    verifier = tried(pair)
    held = pair.held
    assert held
    for each in pair.jobs:
        Suspension(cast("Engine", pair), cast("Departure", Stayed())).follow(each, [])
    assert pair.held == held
    verifier.close()


def test_who_is_suspended_is_left_out_of_the_trial(tmp_path: Path) -> None:
    pair = Pair(tmp_path, alone=100, together=20)
    verifier = tried(pair)
    with pair.ledger.decision() as decision:
        entry = decision.entry(pair.jobs[1].id)
        decision.put(replace(entry, job=replace(entry.job, suspended_by="d" * 12)))
    verifier.tick()
    assert not pair.held
    verifier.close()


def test_a_job_that_asked_for_mps_by_name_is_never_held(tmp_path: Path) -> None:
    pair = Pair(tmp_path, alone=100, together=20)
    asked = replace(pair.jobs[1], request=replace(pair.jobs[1].request, sharing=SharingWish.MPS))
    with pair.ledger.decision() as decision:
        decision.put(replace(decision.entry(asked.id), job=asked))
    verifier = MpsVerifier(
        cast("Engine", pair), pair.loop, pair.jobs[0], VerificationRules(look_seconds=0, settle_seconds=0)
    )
    for _ in range(10):
        verifier.tick()
    assert not pair.held
    verifier.close()
