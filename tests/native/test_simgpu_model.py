"""The simulated driver's model of time in numbers, without a driver: what docs/simulated-gpu.md says of it."""

import math
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.native_clients import client_path
from tests.simgpu_work import work_world

from pgpu.gpu.catalog import parse_model
from pgpu.gpu.products import CC_5_2, CC_7_0, CC_9_0
from pgpu.units import KIB, MIB

DEMAND = [
    "fixed_ns",
    "arithmetic_ns",
    "fp32_ns",
    "fp64_ns",
    "pcie_ns",
    "dram_bytes",
    "l1_read_bytes",
    "l2_read_bytes",
    "l1_waits",
    "l2_waits",
    "dram_waits",
    "managed_bytes",
    "slots",
    "sm_share",
    "l1_bytes",
    "l1_set_bytes",
    "l2_set_bytes",
    "managed_set_bytes",
]
QUANTITIES = [
    "flop",
    "flop64",
    "dram_bytes",
    "l1_reads",
    "l1_bytes",
    "l1_block_bytes",
    "l2_reads",
    "l2_bytes",
    "l2_total_bytes",
    "accesses",
    "managed_bytes",
    "fixed_ns",
    "wave_ns",
]


class Model:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def ask(self, *words: object) -> list[float]:
        command = [str(word) for word in (client_path("simgpu", "simgpu-model"), self.directory, *words)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return [float(line) for line in done.stdout.split()]

    def rates(self, *demands: Mapping[str, float]) -> list[float]:
        return self.ask("together", *(",".join(str(demand.get(name, 0)) for name in DEMAND) for demand in demands))


@pytest.fixture(scope="module")
def maxwell() -> Iterator[Model]:
    with work_world("GTX 980 Ti") as world:
        yield Model(world.directory)


@pytest.fixture(scope="module")
def hopper() -> Iterator[Model]:
    with work_world("H100") as world:
        yield Model(world.directory)


@pytest.fixture(scope="module")
def volta() -> Iterator[Model]:
    with work_world("V100") as world:
        yield Model(world.directory)


class TestWhatAnAuthorSays:
    def cost(self, model: Model, line: str, *arguments: int, threads: int = 512, blocks: int = 2) -> dict[str, float]:
        return dict(zip(QUANTITIES, model.ask("cost", line, "k", threads, blocks, *arguments), strict=True))

    def test_values_are_sums_of_products_of_numbers_arguments_threads_and_blocks(self, maxwell: Model) -> None:
        found = self.cost(maxwell, "k flop=2*arg3+1 dram_bytes=arg3*arg5/threads l2_reads=1e3*blocks*.5", 100, 64)
        assert (found["flop"], found["dram_bytes"], found["l2_reads"]) == (201, 100 * 64 / 512, 1000)

    def test_the_old_words_for_a_spinning_kernel_mean_what_they_meant(self, maxwell: Model) -> None:
        found = self.cost(maxwell, "k fixed_ns=2000 wave_ns=7 argument=4 ns_per_unit=2.5", 1000)
        assert (found["fixed_ns"], found["wave_ns"]) == (4500, 7)

    def test_a_kernel_of_which_nothing_is_said_has_a_time_of_its_own(self, maxwell: Model) -> None:
        found = self.cost(maxwell, "other flop=1")
        assert (found["fixed_ns"], found["wave_ns"], found["flop"]) == (2000, 1000, 0)

    def test_what_cannot_be_read_adds_nothing(self, maxwell: Model) -> None:
        found = self.cost(maxwell, "k flop=argh+2 dram_bytes=4* l2_reads=8/0 accesses=arg1*arg2*arg3*arg4*arg5", 1)
        assert [found[name] for name in ("flop", "dram_bytes", "l2_reads", "accesses")] == [0, 0, 0, 0]

    def test_a_kernels_own_line_wins_over_the_one_for_all(self, maxwell: Model) -> None:
        assert self.cost(maxwell, "* flop=1\nk flop=2")["flop"] == 2
        assert self.cost(maxwell, "* flop=1\nkk flop=2")["flop"] == 1


class TestCaches:
    def test_a_set_that_fits_without_a_stream_always_hits(self, maxwell: Model) -> None:
        assert maxwell.ask("hits", 1000, 0, 900, 50) == [pytest.approx(1, abs=1e-3)]

    @pytest.mark.parametrize("ratio", [1.5, 2, 4])
    def test_a_larger_set_hits_as_random_replacement_lets_it(self, maxwell: Model, ratio: float) -> None:
        (hits,) = maxwell.ask("hits", 1000, 0, 1000 * ratio, 77)
        assert hits == pytest.approx(math.exp(-ratio * (1 - hits)), rel=1e-3)
        assert hits < 1 / ratio

    def test_a_stream_costs_its_neighbour_hits(self, maxwell: Model) -> None:
        quiet, loud = (maxwell.ask("hits", 1000, stream, 500, 100)[0] for stream in (10, 1000))
        assert 0.9 < quiet < 1
        assert loud < 0.1

    def test_who_touches_its_lines_more_often_keeps_more_of_them(self, maxwell: Model) -> None:
        often, seldom = maxwell.ask("hits", 1000, 0, 900, 900, 900, 90)
        assert often > 2 * seldom

    def test_without_a_cache_nothing_hits(self, maxwell: Model) -> None:
        assert maxwell.ask("hits", 0, 1, 10, 10) == [0]


class TestTurns:
    """Asked: keeps_windows, switch, until, then server, window, need and begin of each process.

    Told: of each when it was expected to end, when it did, and how long it had the GPU; then what nobody had.
    """

    def test_alone_time_passes_as_it_is(self, maxwell: Model) -> None:
        assert maxwell.ask("turns", 0, 100, 20_000, 0, 2000, 5000, 1234) == [6234, 6234, 5000, 0]

    def test_each_has_a_window_in_turn(self, maxwell: Model) -> None:
        found = maxwell.ask("turns", 0, 0, 20_000, 0, 2000, 5000, 0, 0, 2000, 500, 0)
        assert found[1:3] + found[4:] == [5500, 5000, 2500, 500, 0]

    def test_who_comes_waits_for_the_present_window_to_end(self, maxwell: Model) -> None:
        found = maxwell.ask("turns", 0, 0, 20_000, 0, 2000, 5000, 0, 0, 2000, 500, 1500)
        assert found[3:6] == [2500, 2500, 500]

    def test_who_has_nothing_left_to_do_keeps_nobody_waiting(self, maxwell: Model) -> None:
        found = maxwell.ask("turns", 0, 0, 20_000, 0, 2000, 500, 0, 0, 2000, 5000, 0)
        assert found[:3] + found[4:] == [500, 500, 500, 5500, 5000, 0]

    def test_windows_can_be_kept_by_whoever_has_nothing_left_to_do(self, maxwell: Model) -> None:
        found = maxwell.ask("turns", 1, 0, 20_000, 0, 2000, 500, 0, 0, 2000, 5000, 0)
        assert found[4:] == [7000, 5000, 1500]

    def test_windows_may_be_unequal(self, maxwell: Model) -> None:
        found = maxwell.ask("turns", 0, 0, 8000, 0, 2000, 9000, 0, 0, 6000, 9000, 0)
        assert (found[2], found[5]) == (2000, 6000)

    def test_a_switch_takes_time_that_nobody_has(self, maxwell: Model) -> None:
        found = maxwell.ask("turns", 0, 100, 20_000, 0, 2000, 3000, 0, 0, 2000, 3000, 0)
        assert (found[2], found[5], found[6]) == (3000, 3000, 300)

    def test_clients_of_one_server_have_their_windows_together(self, maxwell: Model) -> None:
        found = maxwell.ask("turns", 0, 0, 20_000, 7, 2000, 3000, 0, 0, 2000, 3000, 0, 7, 2000, 3000, 0)
        assert [found[1], found[4], found[7]] == [5000, 6000, 5000]

    @pytest.mark.parametrize("until", range(0, 30_000, 1700))
    def test_no_two_groups_ever_have_the_gpu_at_once(self, maxwell: Model, until: int) -> None:
        jobs = ((0, 2000, 9000, 0), (0, 2000, 700, 0), (0, 1000, 5000, 1300), (0, 3000, 9000, 2100))
        found = maxwell.ask("turns", 0, 50, until, *(number for job in jobs for number in job))
        held, lost = sum(found[2::3]), found[-1]
        assert held + lost == min(max(until, 2100), 23_700 + lost)


class TestCarveOut:
    def test_without_shared_memory_or_a_wish_all_is_l1(self, hopper: Model) -> None:
        assert hopper.ask("carveout", 0, 8, -1) == [0, CC_9_0.unified_l1_bytes_per_sm]

    def test_the_division_leaves_occupancy_alone(self, hopper: Model) -> None:
        assert hopper.ask("carveout", 20 * KIB, 4, -1) == [100 * KIB, 156 * KIB]

    @pytest.mark.parametrize(("percent", "shared"), [(0, 0), (1, 8 * KIB), (50, 132 * KIB), (100, 228 * KIB)])
    def test_a_wish_is_rounded_up_to_what_the_hardware_has(self, hopper: Model, percent: int, shared: int) -> None:
        assert hopper.ask("carveout", 0, 8, percent) == [shared, CC_9_0.unified_l1_bytes_per_sm - shared]

    def test_one_block_always_gets_what_it_needs(self, hopper: Model) -> None:
        assert hopper.ask("carveout", 150 * KIB, 1, 0) == [164 * KIB, 92 * KIB]

    def test_volta_divides_up_to_96_kib(self, volta: Model) -> None:
        assert volta.ask("carveout", 0, 8, 100) == [96 * KIB, 32 * KIB]
        assert CC_7_0.unified_l1_bytes_per_sm == 128 * KIB

    def test_on_maxwell_l1_is_apart_and_caches_no_global_loads(self, maxwell: Model) -> None:
        assert {tuple(maxwell.ask("carveout", 0, 8, percent)) for percent in (-1, 0, 100)} == {(96 * KIB, 0)}
        assert CC_5_2.shared_bytes_per_sm == 96 * KIB


def rows(threads: int) -> dict[str, float]:
    """One launch of a kernel with a matrix row for each thread, which reads it four bytes at a time."""
    gpu = parse_model("GTX 980 Ti")[0]
    share = threads / (gpu.sm_count * gpu.capability.threads_per_sm)
    return {
        "dram_bytes": 4.0 * threads**2,
        "l1_read_bytes": 28.0 * threads**2,
        "slots": share,
        "sm_share": 1,
        "l1_set_bytes": 128 * threads / gpu.sm_count,
    }


class TestTogether:
    def test_who_leaves_room_runs_as_fast_as_alone(self, volta: Model) -> None:
        small = {"arithmetic_ns": 100, "fp32_ns": 20, "slots": 0.2, "sm_share": 0.2}
        assert volta.rates(small, small, small) == [pytest.approx(1)] * 3

    def test_who_fills_the_gpu_gets_an_equal_part_of_it(self, volta: Model) -> None:
        full = {"fixed_ns": 100, "slots": 1, "sm_share": 1}
        assert volta.rates(full, full) == [pytest.approx(0.5)] * 2
        assert volta.rates(full, full, full, full) == [pytest.approx(0.25)] * 4

    def test_who_wants_little_room_is_not_slowed_by_who_wants_all(self, volta: Model) -> None:
        small, full = volta.rates({"fixed_ns": 1, "slots": 0.1}, {"fixed_ns": 1, "slots": 1})
        assert small == pytest.approx(1)
        assert full == pytest.approx(0.9)

    def test_bandwidth_past_what_there_is_slows_by_how_much_depends_on_it(self, volta: Model) -> None:
        stream = {"dram_bytes": 900.0, "slots": 0.1, "sm_share": 0.5}  # a ns of V100's memory
        compute = {"arithmetic_ns": 1, "fp32_ns": 0.5, "dram_bytes": 90, "slots": 0.1, "sm_share": 0.5}
        assert volta.rates(stream, stream) == [pytest.approx(0.5, rel=0.01)] * 2
        slowed, unharmed = volta.rates(stream, compute)
        assert slowed == pytest.approx(0.9, rel=0.01)
        assert unharmed == pytest.approx(1, rel=0.01)

    def test_compute_and_memory_kernels_hardly_meet(self, volta: Model) -> None:
        compute = {"arithmetic_ns": 1, "fp32_ns": 1, "slots": 0.4, "sm_share": 1}
        memory = {"dram_bytes": 850, "slots": 0.4, "sm_share": 1}
        assert min(volta.rates(compute, memory)) > 0.99

    def test_copies_share_the_bus_alone(self, volta: Model) -> None:
        copy = {"pcie_ns": 5}
        assert volta.rates(copy, copy, {"fixed_ns": 1, "slots": 1}) == pytest.approx([0.5, 0.5, 1])

    def test_two_working_sets_that_fit_together_lose_nothing_to_each_other_and_two_that_do_not_do(
        self, maxwell: Model
    ) -> None:
        fitting, passing = (maxwell.rates(rows(threads), rows(threads))[0] for threads in (10_240, 20_480))
        assert fitting == pytest.approx(0.5, rel=0.02)  # as fast as in turns
        assert passing < 0.42

    def test_a_cache_sensitive_kernel_suffers_less_beside_one_that_reuses_nothing(self, maxwell: Model) -> None:
        other = {"arithmetic_ns": 1e6, "fp32_ns": 1e6, "slots": 0.4, "sm_share": 1}
        assert maxwell.rates(rows(20_480), other)[0] > 2 * maxwell.rates(rows(20_480), rows(20_480))[0]

    def test_nobody_is_ever_faster_than_alone_or_stands_still(self, volta: Model) -> None:
        hungry = {"dram_bytes": 9000, "l2_read_bytes": 9e4, "l2_set_bytes": 64 * MIB, "slots": 1, "sm_share": 1}
        rates = volta.rates(*[hungry] * 48)
        assert all(0 < rate <= 1 for rate in rates)
        assert sum(rates) <= 1.01
