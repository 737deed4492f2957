"""Time that is divided between users: judged by the simulated driver's own account, beside honest and forged boards."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest
from tests.compute_world import (
    ENOUGH_NS,
    ComputeJob,
    ComputeWorld,
    Load,
    a_compute_world,
    divided,
    shared,
    until_used,
)
from tests.waiting import until

from pgpu.enforcement.board import ABI, BOARD_BYTES, GPU, HEADER, MAGIC
from pgpu.enforcement.compute_word import ComputeWord

A, B = 1, 2
HALF = divided(0.5)
_WORDS = ("cost_ns=5000000", "sync=1")
_JUDGED_NS = 1_000_000_000


@pytest.fixture
def world() -> Iterator[ComputeWorld]:
    with a_compute_world() as found:
        yield found


@contextmanager
def _loads(jobs: Sequence[ComputeJob], *words: str) -> Iterator[list[Load]]:
    with ExitStack() as stack:
        yield [stack.enter_context(job.load(*words)) for job in jobs]


def _had_ns(world: ComputeWorld, loads: Sequence[Load]) -> int:
    return sum(world.got_ns([load.process.pid for load in loads]).values())


def _part(world: ComputeWorld, loads: Sequence[Load], others: Sequence[Load]) -> float:
    """What some get of all that both get, over a second of GPU time."""
    began, all_began = _had_ns(world, loads), _had_ns(world, [*loads, *others])
    until_used(world, [*loads, *others], all_began + _JUDGED_NS)
    return (_had_ns(world, loads) - began) / (_had_ns(world, [*loads, *others]) - all_began)


def _until_part(world: ComputeWorld, loads: Sequence[Load], others: Sequence[Load], least: float, most: float) -> None:
    # Again and again: without a free core a process may launch too little in one interval.
    until(lambda: least < _part(world, loads, others) < most, lambda: "the users never get their parts")


class TestUsersGetEqualParts:
    def test_however_many_jobs_each_has(self, world: ComputeWorld) -> None:
        many, one = [world.job(HALF, user=A) for _ in range(8)], [world.job(HALF, user=B)]
        with _loads(many, *_WORDS) as theirs, _loads(one, *_WORDS) as ours:
            _until_part(world, ours, theirs, 0.44, 0.56)
            assert one[0].told().waited_ns < many[0].told().waited_ns

    def test_however_many_processes_a_job_has(self, world: ComputeWorld) -> None:
        many, one = [world.job(HALF, user=A)] * 8, [world.job(HALF, user=B)]
        with _loads(many, *_WORDS) as theirs, _loads(one, *_WORDS) as ours:
            _until_part(world, ours, theirs, 0.44, 0.56)

    def test_of_three_users(self, world: ComputeWorld) -> None:
        third = divided(1 / 3)
        jobs = [[world.job(third, user=user) for _ in range(count)] for user, count in ((1, 6), (2, 3), (3, 1))]
        with ExitStack() as stack:
            loads = [stack.enter_context(_loads(each, *_WORDS)) for each in jobs]
            for own in loads:
                _until_part(world, own, [load for each in loads if each is not own for load in each], 0.27, 0.4)

    def test_whatever_weight_a_user_claims_beside_shares(self, world: ComputeWorld) -> None:
        heavy = ComputeWord(weight=400, is_measured=True, is_shared=True, user_share=0.5)
        light = ComputeWord(weight=100, is_measured=True, is_shared=True, user_share=0.5)
        many, one = [world.job(heavy, user=A) for _ in range(4)], [world.job(light, user=B)]
        with _loads(many, *_WORDS) as theirs, _loads(one, *_WORDS) as ours:
            _until_part(world, ours, theirs, 0.42, 0.58)

    def test_a_user_that_needs_less_leaves_the_rest_to_the_others(self, world: ComputeWorld) -> None:
        many, one = [world.job(HALF, user=A) for _ in range(4)], [world.job(HALF, user=B)]
        with (
            _loads(many, *_WORDS) as theirs,
            _loads(one, "cost_ns=1000000", "sync=1", "pause_us=19000") as ours,
        ):
            until_used(world, ours, ENOUGH_NS // 10)
            _until_part(world, theirs, ours, 0.85, 1.0)

    def test_those_that_are_left_go_on_when_some_are_killed(self, world: ComputeWorld) -> None:
        many, one = [world.job(HALF, user=A) for _ in range(4)], [world.job(HALF, user=B)]
        # The latest are killed: the driver's account numbers the others as before.
        with _loads(many[:2], *_WORDS) as theirs, _loads(one, *_WORDS) as ours, _loads(many[2:], *_WORDS) as killed:
            _until_part(world, ours, theirs + killed, 0.42, 0.58)
            _kill(killed)
            _until_part(world, ours, theirs, 0.42, 0.58)
            _kill(ours)
            waited_ns = _waited_ns_once_alone(world, many[0], theirs[0])
            until_used(world, theirs, _had_ns(world, theirs) + ENOUGH_NS)
            assert many[0].told().waited_ns == waited_ns


def _kill(loads: Sequence[Load]) -> None:
    for load in loads:
        load.process.kill()
        load.process.wait()


def _waited_ns_once_alone(world: ComputeWorld, job: ComputeJob, load: Load) -> int:
    """Wait until a job has not waited while it got 50 ms of the GPU; how long it waited until then."""

    def is_free() -> bool:
        waited_ns = job.told().waited_ns
        until_used(world, [load], _had_ns(world, [load]) + 50_000_000)
        return job.told().waited_ns == waited_ns

    until(is_free, lambda: "a user that is alone goes on waiting")
    return job.told().waited_ns


class TestOneUserWaitsForNothing:
    @pytest.mark.parametrize("has_neighbour", [False, True])
    def test_beside_jobs_of_its_own_and_idle_ones_of_others(self, world: ComputeWorld, has_neighbour: bool) -> None:
        jobs = [world.job(HALF, user=A) for _ in range(3)]
        if has_neighbour:
            world.job(HALF, user=B).run("print(cu.code('cuInit', 0))")
        with _loads(jobs, "cost_ns=1000000", "sync=1") as loads:
            until_used(world, loads, 2 * ENOUGH_NS)
            assert [job.told().waited_ns for job in jobs] == [0, 0, 0]

    def test_whose_board_cannot_be_read(self, world: ComputeWorld) -> None:
        jobs = [world.job(HALF, user=A) for _ in range(2)]
        for job in jobs:
            (job.directory / "board").unlink()
        with _loads(jobs, "cost_ns=1000000", "sync=1") as loads:
            until_used(world, loads)
            assert [job.told().waited_ns for job in jobs] == [0, 0]


def _row(job: ComputeJob, *, word: int = 0, wanted: int = 0, busy_since: int = 0, until: int = 0) -> bytes:
    uuid = bytes.fromhex(job.uuids[0].partition("-")[2].replace("-", ""))
    gpu = GPU.pack(uuid, word, wanted, busy_since, until, 0, 0, 0, 0, 0, 0)
    # The word behind `refilled_ns`: when a launch last waited.
    return (HEADER.pack(MAGIC, ABI, 1) + gpu[:96] + wanted.to_bytes(8, "little")).ljust(BOARD_BYTES, b"\0")


_FAR = (1 << 63) - 1
_ALL_OF_IT = ComputeWord(1.0, 65_535, is_measured=True, is_shared=True).packed


class TestNoUserTakesTimeOfOthers:
    @pytest.mark.parametrize("word", [HALF, ComputeWord(weight=100, is_measured=True, is_shared=True, user_share=0.5)])
    @pytest.mark.parametrize(
        "forged",
        [
            lambda job: _row(job, word=_ALL_OF_IT, wanted=_FAR),
            lambda job: _row(job, word=_ALL_OF_IT, wanted=_FAR, busy_since=1, until=_FAR),
            lambda _: (b"GPUUTIME" + (77).to_bytes(4, "little")).ljust(BOARD_BYTES, b"\0"),
            lambda _: b"\xff" * BOARD_BYTES,
        ],
        ids=["wants all", "is always busy", "newer", "nonsense"],
    )
    def test_a_forged_board_leaves_the_others_their_part(
        self, world: ComputeWorld, word: ComputeWord, forged: Callable[[ComputeJob], bytes]
    ) -> None:
        job, forgers = world.job(word, user=A), [world.job(user=B) for _ in range(3)]
        for forger in forgers:
            forger.time.write_bytes(forged(forger))
        with _loads([job], "cost_ns=1000000", "sync=4") as loads:

            def has_its_part() -> bool:
                began_ns, had_ns = time.monotonic_ns(), _had_ns(world, loads)
                until_used(world, loads, had_ns + ENOUGH_NS)
                return (_had_ns(world, loads) - had_ns) / (time.monotonic_ns() - began_ns) > 0.4

            until(has_its_part, lambda: "a forged board takes another user's time")

    def test_a_share_of_another_user_takes_no_more_than_it_guarantees(self, world: ComputeWorld) -> None:
        owner = world.job(ComputeWord(0.3, 100, is_measured=True, is_shared=True, user_share=0.35), user=A)
        plain = [world.job(ComputeWord(0.0, 100, is_measured=True, is_shared=True, user_share=0.35), user=B)]
        with _loads([owner], *_WORDS) as theirs, _loads(plain, *_WORDS) as ours:
            _until_part(world, ours, theirs, 0.28, 0.42)


def test_time_is_not_divided_where_no_word_says_so(world: ComputeWorld) -> None:
    plain = ComputeWord(is_measured=True)
    many, one = [world.job(plain, user=A) for _ in range(3)], [world.job(plain, user=B)]
    with _loads(many, *_WORDS) as theirs, _loads(one, *_WORDS) as ours:
        until_used(world, [*ours, *theirs], 4 * ENOUGH_NS)
        assert [job.told().waited_ns for job in [*many, *one]] == [0] * 4


def test_a_share_is_exact_beside_other_users(world: ComputeWorld) -> None:
    job = world.job(shared(0.3, is_strict=True), user=A)
    other = world.job(HALF, user=B)
    with _loads([other], *_WORDS) as theirs, _loads([job], *_WORDS) as ours:
        _until_part(world, ours, theirs, 0.24, 0.36)
