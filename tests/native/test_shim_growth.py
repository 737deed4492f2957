"""A slice that grows while its job runs: the shim wishes, the host answers, and nothing is ever past the limit."""

import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.slice_world import GIB, MIB, SliceWorld, a_slice

from pgpu.enforcement import limit_file
from pgpu.enforcement.growth_channel import GrowthChannel, Wish
from pgpu.scheduling.slice_growth import Verdict

CONTEXT_BYTES = 300 * MIB
Answer = Callable[[Sequence[Wish]], Verdict]


@pytest.fixture
def world() -> Iterator[SliceWorld]:
    with a_slice(GIB) as made:
        made.write_limit(grows=True)
        yield made


@contextmanager
def host(world: SliceWorld, answer: Answer) -> Iterator[list[Wish]]:
    """Answer each wish; yields all that were read."""
    seen: list[Wish] = []
    is_over = threading.Event()

    def serve() -> None:
        while not is_over.wait(0.001):
            wishes = world.growth.wishes()
            if wishes:
                seen.extend(wish for wish in wishes if wish not in seen)
                world.growth.answer(wishes, answer(wishes))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()


def granting(world: SliceWorld) -> Answer:
    def grant(wishes: Sequence[Wish]) -> Verdict:
        for wish in wishes:
            limit_file.set_limit_bytes(world.limit, wish.gpu_uuid, wish.need_bytes)
        return Verdict.GRANT

    return grant


def test_an_allocation_that_does_not_fit_gets_a_larger_slice(world: SliceWorld) -> None:
    with host(world, granting(world)) as seen:
        free = world.answer("cu.begin(); cu.alloc(500 * MIB); cu.alloc(4096 * MIB); print(json.dumps(cu.memory()))")
    assert [wish.need_bytes - (CONTEXT_BYTES + 4596 * MIB) < 8192 for wish in seen] == [True]
    assert free[1] >= 4896 * MIB
    assert (world.use().refusals, world.use().attempted_bytes) == (0, 0), "nothing was refused"


def test_a_refusal_is_the_error_of_today_with_one_line(world: SliceWorld) -> None:
    with host(world, lambda _: Verdict.REFUSE):
        done = world.run(
            "cu.begin(); print(count_until_refused(lambda: cu.alloc(256 * MIB), 8)); print(outcome(lambda: cu.alloc(1024 * MIB)))"
        )
    assert done.stdout == "(2, 2)\n2\n"
    assert done.stderr == "pgpu: asked for 1.0 GiB with 1.0 GiB reserved by pgpu; 44 MiB more are not free\n"
    assert (world.use().refusals, world.use().peak_bytes) == (2, CONTEXT_BYTES + 512 * MIB)


def test_an_allocation_waits_until_it_is_granted(world: SliceWorld) -> None:
    rounds = []

    def later(wishes: Sequence[Wish]) -> Verdict:
        rounds.append(wishes)
        return Verdict.WAIT if len(rounds) < 20 else granting(world)(wishes)

    with host(world, later):
        done = world.run("cu.begin(); print(outcome(lambda: cu.alloc(2048 * MIB)))")
    assert done.stdout == "0\n"
    assert done.stderr == "pgpu: asked for 2.2 GiB with 1.0 GiB reserved by pgpu; waiting for 1.2 GiB\n"
    assert world.use().refusals == 0


def test_memory_that_becomes_free_meanwhile_ends_the_wait_and_the_wish(world: SliceWorld) -> None:
    neighbour = "cu.begin(); p = cu.alloc(300 * MIB); print('held', flush=True); sys.stdin.readline(); cu.free(p); sys.stdin.readline()"
    world.write_limit(context_bytes=100 * MIB, grows=True)
    with world.running(neighbour) as other, host(world, lambda _: Verdict.WAIT):
        waiting = world.start("cu.begin(); print(outcome(lambda: cu.alloc(600 * MIB)), flush=True)")
        assert waiting.stderr is not None
        assert "waiting" in waiting.stderr.readline()
        assert other.stdin is not None
        other.stdin.write("\n")
        other.stdin.flush()
        assert waiting.communicate() == ("0\n", "")
        assert world.growth.wishes() == []


def test_two_processes_that_wish_at_once_both_get_what_they_need(world: SliceWorld) -> None:
    def once_both(wishes: Sequence[Wish]) -> Verdict:
        both_bytes = 2 * 3072 * MIB
        return Verdict.WAIT if wishes[0].need_bytes < both_bytes else granting(world)(wishes)

    with host(world, once_both):
        jobs = [
            world.start("cu.begin(); print(outcome(lambda: cu.alloc(3072 * MIB)), flush=True); sys.stdin.readline()")
            for _ in range(2)
        ]
        assert [job.stdout.readline() for job in jobs if job.stdout is not None] == ["0\n", "0\n"]
        for job in jobs:
            job.communicate()


def test_what_the_driver_has_given_already_is_not_waited_for(world: SliceWorld) -> None:
    """A pool takes 32 MiB where less was asked for; charged after the fact it is granted at once or freed."""
    with host(world, lambda _: Verdict.WAIT):
        assert world.answer("cu.begin(); print(json.dumps(outcome(lambda: cu.alloc_async(8 * MIB))))") == 0


def test_a_slice_that_does_not_grow_wishes_for_nothing() -> None:
    with a_slice(GIB) as fixed:
        done = fixed.run("cu.begin(); print(outcome(lambda: cu.alloc(2048 * MIB)))")
        assert (done.stdout, done.stderr) == ("2\n", "")
        assert fixed.growth.wishes() == []
        assert fixed.use().refusals == 1


def test_more_than_any_gpu_has_is_refused_without_a_wish(world: SliceWorld) -> None:
    assert world.answer("cu.begin(); print(json.dumps(outcome(lambda: cu.alloc(1 << 60))))") == 2
    assert world.growth.wishes() == []


def test_pytorch_frees_its_cache_before_it_waits(world: SliceWorld, tmp_path: Path) -> None:
    """It allocates once more right after a refusal: by then the memory that it only cached is free."""
    torch = tmp_path / "libc10_cuda.so"
    subprocess.run(["gcc", "-shared", "-Wl,-soname,libc10_cuda.so", "-o", torch, "-x", "c", "/dev/null"], check=True)
    cached = (
        "ctypes.CDLL(sys.argv[1]); cu.begin(); cache = cu.alloc(600 * MIB); first = outcome(lambda: cu.alloc(700 * MIB));"
        " cu.free(cache); print(json.dumps([first, outcome(lambda: cu.alloc(700 * MIB))]))"
    )
    with host(world, lambda _: Verdict.WAIT):
        assert world.answer(cached, str(torch)) == [2, 0]
    assert world.use().refusals == 0, "it lost nothing"


def test_pytorch_waits_with_its_second_allocation_however_long_it_took_to_free(
    world: SliceWorld, tmp_path: Path
) -> None:
    torch = tmp_path / "libc10_cuda.so"
    subprocess.run(["gcc", "-shared", "-Wl,-soname,libc10_cuda.so", "-o", torch, "-x", "c", "/dev/null"], check=True)
    slow = (
        "import time; ctypes.CDLL(sys.argv[1]); cu.begin(); found = [outcome(lambda: cu.alloc(2048 * MIB))];"
        " time.sleep(1.1); found.append(outcome(lambda: cu.alloc(2048 * MIB)));"  # what it freed took so long
        " found += [outcome(lambda: cu.alloc(n * 1024 * MIB)) for n in (4, 5, 5)]; print(json.dumps(found))"
    )
    rounds: dict[int, int] = {}

    def later(wishes: Sequence[Wish]) -> Verdict:
        rounds[wishes[0].sequence] = rounds.get(wishes[0].sequence, 0) + 1
        is_second = list(rounds).index(wishes[0].sequence) in {1, 4}
        return granting(world)(wishes) if is_second and rounds[wishes[0].sequence] > 50 else Verdict.WAIT

    with host(world, later):
        assert world.answer(slow, str(torch)) == [2, 0, 2, 2, 0], "each size once, until an allocation succeeds"


def test_who_takes_half_of_what_it_was_shown_sizes_itself_by_it() -> None:
    def sizes_itself(snippet: str) -> bool:
        with a_slice(8 * GIB) as made:
            made.answer(snippet + "; print(0)")
            return made.use().sizes_itself

    assert sizes_itself("cu.begin(); free, _ = cu.memory(); cu.alloc(free // 2)")
    assert sizes_itself("cu.begin(); free, _ = cu.memory(); [cu.alloc(free // 10) for _ in range(6)]")
    assert not sizes_itself("cu.begin(); cu.memory(); cu.alloc(1024 * MIB)"), "it takes what it needs"
    assert not sizes_itself("cu.begin(); cu.alloc(6 * 1024 * MIB)"), "it never looked"
    assert not sizes_itself("cu.begin(); cu.alloc(2048 * MIB); cu.memory(); cu.alloc(5 * 1024 * MIB)"), (
        "it looked later"
    )


@pytest.mark.soak
def test_a_host_that_is_silent_for_half_a_minute_has_refused(world: SliceWorld) -> None:
    done = world.run("cu.begin(); print(outcome(lambda: cu.alloc(2048 * MIB)))")
    assert (done.stdout, world.use().refusals) == ("2\n", 1)
    assert world.growth.wishes() == [], "nothing is granted to nobody later"


# The words themselves.


def channel_of(world: SliceWorld) -> GrowthChannel:
    world.answer("cu.begin(); print(0)")
    return world.growth


def put_wish(world: SliceWorld, word: int) -> None:
    with world.usage.open("r+b") as file:
        file.seek(64 + 56)
        file.write(word.to_bytes(8, "little"))


def test_an_answer_holds_for_wishes_up_to_its_number_which_wraps_around(world: SliceWorld) -> None:
    channel = channel_of(world)
    for sequence in (0xFFFFFE, 0xFFFFFF, 0, 3):
        put_wish(world, sequence << 40 | 1000)
        (wish,) = channel.wishes()
        assert (wish.sequence, wish.need_bytes) == (sequence, 4096 * 1000)
        channel.answer([wish], Verdict.WAIT)
        assert channel.wishes() == [wish], "a wait is no end"
        channel.answer([wish], Verdict.REFUSE)
        assert channel.wishes() == []


def test_a_wish_for_nothing_is_none(world: SliceWorld) -> None:
    channel = channel_of(world)
    put_wish(world, 7 << 40)
    assert channel.wishes() == []
