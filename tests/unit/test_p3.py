"""What P3's experiment makes of its measurements: sizes, differences and winners."""

import pytest

from pgpu.cli.verbs.lab import _read_parts, _read_sizes
from pgpu.errors import NodeError, RequestError
from pgpu.gpu.catalog import parse_model
from pgpu.lab.outcomes import Moment
from pgpu.lab.p3 import (
    P3_FITTING_CONTAINERS,
    PARTS,
    WallPlan,
    cost_sentence,
    imaginary_findings,
    p3_result,
    size_job,
)
from pgpu.lab.p3_overhead import Timings, TwoWays, sentence, start_up_seconds, table
from pgpu.lab.p3_sharing_modes import P3_TABLE, Alone, Pair

MIB = 1 << 20
CARD_BYTES = 5760 * MIB
"""What programs can use of P3's card."""


def test_on_p3s_card_a_job_has_its_98_mib_and_its_context() -> None:
    job = size_job(CARD_BYTES, 12 * MIB)

    assert job.memory_bytes == 110 * MIB
    assert job.layers == 32


@pytest.mark.parametrize("device_mib", [5760, 16_160, 24_265, 81_079, 143_360])
def test_p3s_number_of_jobs_fits_on_any_device_and_one_more_does_not(device_mib: int) -> None:
    job = size_job(device_mib * MIB, 300 * MIB if device_mib > 16_160 else 12 * MIB)

    assert P3_FITTING_CONTAINERS * job.memory_bytes <= device_mib * MIB < (P3_FITTING_CONTAINERS + 1) * job.memory_bytes


def test_a_device_whose_contexts_alone_fill_it_is_refused() -> None:
    with pytest.raises(NodeError, match="do not fit"):
        size_job(CARD_BYTES, 300 * MIB)


def test_a_job_of_the_wall_says_all_that_it_needs() -> None:
    words = size_job(CARD_BYTES, 12 * MIB).words(WallPlan(iterations=3, host_ms=5))

    assert words == (*("hotspot3d", "--layers", "32", "--memory", "110MiB", "--iterations", "3", "--host-ms", "5"),)


@pytest.mark.parametrize(("jobs", "told"), [(4, "all run"), (52, "all run"), (53, "most fail"), (60, "most fail")])
def test_p3s_word_stands_beside_each_number_of_jobs(jobs: int, told: str) -> None:
    assert p3_result(jobs) == told


def test_the_queue_is_compared_with_batches_one_after_the_other() -> None:
    told = cost_sentence((26.0, 22.0), [(15.0, 16.0), (5.0, 4.0)], (52, 8))

    assert told == (
        "the queue takes 1.30 times as long as 52 and then 8 jobs without pgpu (26.0 s, 20.0 s), "
        "and 1.10 times the machine's CPU time (22.0 s, 20.0 s)"
    )


def pair(mps_seconds: float, turns_seconds: float, size: int = 5_120, neighbour: str = "CS") -> Pair:
    return Pair(size, neighbour, 1.0, mps_seconds, turns_seconds)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mps_seconds", "turns_seconds", "winner"),
    [(1.0, 2.0, "MPS"), (2.0, 1.0, "turns"), (1.0, 1.005, "even"), (1.005, 1.0, "even"), (1.0, 1.02, "MPS")],
)
def test_the_shorter_time_wins_and_a_hundredth_is_no_win(mps_seconds: float, turns_seconds: float, winner: str) -> None:
    assert pair(mps_seconds, turns_seconds).winner == winner


def test_p3s_own_figures_agree_with_themselves() -> None:
    own = [pair(cell.mps_seconds, cell.turns_seconds, cell.size, cell.neighbour) for cell in P3_TABLE]

    assert [each.agrees for each in own] == [True] * 8
    assert [each.winner for each in own].count("turns") == 2


def test_a_size_that_p3_lacks_is_compared_with_nothing() -> None:
    assert pair(1.0, 2.0, size=77).agrees is None


@pytest.mark.parametrize(("iteration_seconds", "ahead"), [(0.001, 30), (0.5, 1), (1e-9, 1000)])
def test_as_many_iterations_are_launched_ahead_as_make_a_chunk(iteration_seconds: float, ahead: int) -> None:
    assert Alone("CS", 5_120, iteration_seconds).ahead == ahead


def test_a_card_that_never_was_is_told_so() -> None:
    imaginary, _ = parse_model("GTX 980 Ti paging")
    real, _ = parse_model("GTX 980 Ti")

    assert "a real NVIDIA GeForce GTX 980 Ti cannot" in imaginary_findings(imaginary.name)[0]
    assert not imaginary_findings(real.name)


BARE = TwoWays("process", "pgpu run")


def timed(**seconds: tuple[float, ...]) -> Timings:
    """Return runs of programs, bare and with pgpu in turns."""
    timings = Timings()
    for program, runs in seconds.items():
        for way, each in zip((BARE.plain, BARE.ours) * (len(runs) // 2), runs, strict=True):
            timings.add(way, program, each)
    return timings


def test_what_pgpu_adds_is_told_pair_by_pair_with_its_deviation() -> None:
    timings = timed(nw=(1.0, 1.5, 2.0, 3.0), bfs=(1.0, 2.0, 1.0, 3.0))

    found = table(timings, (BARE,), ("nw", "bfs"), "title").objects()

    assert [row["program"] for row in found] == ["nw", "bfs", "all"]
    assert [(row["pgpu adds s"], row["pgpu adds sd"]) for row in found] == [(0.75, 0.354), (1.5, 0.707), (1.125, 0.629)]
    assert (found[0]["without s"], found[0]["without sd"], found[0]["with s"]) == (1.5, 0.707, 2.25)
    assert sentence(timings, BARE, ("nw", "bfs")) == (
        "pgpu run adds 1.125 ± 0.629 s to process (by program 0.750 to 1.500 s)"
    )


def test_a_way_that_was_not_gone_is_in_no_row_and_no_sentence() -> None:
    docker = TwoWays("docker run", "pgpu run --image")

    assert table(timed(nw=(1.0, 1.5)), (BARE, docker), ("nw",), "title").objects()[-1]["without pgpu"] == "process"
    assert sentence(timed(nw=(1.0, 1.5)), docker, ("nw",)) is None


def test_a_single_pair_has_no_deviation() -> None:
    row = table(timed(nw=(1.0, 1.5)), (BARE,), ("nw",), "title").objects()[0]

    assert (row["pgpu adds s"], row["pgpu adds sd"]) == (0.5, None)


def test_start_ups_are_means_over_the_runs_that_reported_one() -> None:
    timings = Timings()
    for way, seconds, start_up in ((BARE.plain, 1.0, 0.1), (BARE.ours, 2.0, 0.8), (BARE.plain, 1.0, None)):
        timings.add(way, "nw", seconds, start_up)
    timings.add(BARE.ours, "nw", 2.0, 0.6)

    row = table(timings, (BARE,), ("nw",), "title").objects()[0]

    assert (row["without start-up s"], row["with start-up s"]) == (0.1, 0.7)
    assert table(timed(nw=(1.0, 1.5)), (BARE,), ("nw",), "title").objects()[0]["with start-up s"] is None


def test_a_start_up_is_read_from_the_output_of_a_workload() -> None:
    submission = Moment(50.0, 1000.0)

    assert start_up_seconds('{"executed_at_seconds": 1050.75}\n', submission) == 0.75
    assert start_up_seconds('{"seconds": 1}\n', submission) is None
    assert start_up_seconds("", submission) is None


def test_parts_are_run_in_their_order_each_once() -> None:
    assert _read_parts("mps,wall,mps", PARTS) == ("wall", "mps")
    assert _read_parts("all", PARTS) == PARTS


@pytest.mark.parametrize("text", ["", "walls", "wall,,mps", "ALL"])
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="not a part"):
        _read_parts(text, PARTS)


def test_input_sizes_are_read() -> None:
    assert _read_sizes("5120,1") == (5120, 1)


@pytest.mark.parametrize("text", ["", "0", "-5", "5120,", "1e4", "1000001", "many"])
def test_what_is_no_input_size_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="input sizes"):
        _read_sizes(text)
