"""What is read of Nsight Compute's table, whatever stands around it."""

import pytest

from pgpu.model import Resource
from pgpu.profiling.counters import demands_of, read_counters, refusal

NAMES = '"ID","Process ID","Process Name","Kernel Name","Block Size","Grid Size",'
METRICS = '"dram__throughput.avg.pct_of_peak_sustained_elapsed","gpu__time_duration.sum","l1tex__t_sector_hit_rate.pct"'
UNITS = '"","","","","","","%","nsecond","%"'


def row(number: int, kernel: str, *figures: str, grid: str = "(80, 1, 1)") -> str:
    cells = (str(number), "4242", "python", kernel, "(128, 1, 1)", grid, *figures)
    return ",".join(f'"{cell}"' for cell in cells)


def table(*rows: str) -> str:
    return "\n".join(("epoch 1", "==PROF== Connected to process 4242", NAMES + METRICS, UNITS, *rows, "", "done"))


def test_launches_of_a_kernel_and_shape_are_one_and_long_ones_weigh_more() -> None:
    said = table(
        row(0, "_Z4gemmPf", "90", "3,000,000", "50"),
        row(1, "_Z4gemmPf", "10", "1000000", "10"),
        row(2, "_Z4gemmPf", "10", "500", "10", grid="(1, 2, 3)"),
        row(3, "small", "20", "1000", "n/a"),
    )
    gemm, small, other = read_counters(said)
    assert (gemm.name, gemm.grid, gemm.block, gemm.launches) == ("_Z4gemmPf", (80, 1, 1), (128, 1, 1), 2)
    assert gemm.total_ns == 4_000_000
    assert gemm.dram_throughput == 0.7
    assert gemm.l1_hit_rate == 0.4
    assert small.l1_hit_rate is None
    assert small.occupancy is None
    assert other.grid == (1, 2, 3)
    [dram] = demands_of([gemm, small, other])
    assert dram.resource is Resource.DRAM
    assert 0.69 < dram.fraction < 0.7


@pytest.mark.parametrize("figure", ["nan", "-nan", "inf", "n/a"])
def test_what_is_no_number_was_not_counted(figure: str) -> None:
    [counted] = read_counters(table(row(0, "k", figure, "1000", figure)))
    assert (counted.dram_throughput, counted.l1_hit_rate) == (None, None)
    assert demands_of([counted]) == ()


def test_lines_of_the_program_are_no_launches() -> None:
    said = table(row(0, "k", "1", "1", "1"), '"7","short"', '"x","4242","python","k","","","1","1","1"', "7,8")
    assert [each.launches for each in read_counters(said)] == [1]


def test_where_there_is_no_table_nothing_was_counted() -> None:
    assert read_counters("") == ()
    assert read_counters("==PROF== Connected\nloss 0.1\n") == ()
    assert refusal("loss 0.1\n") is None


def test_a_refusal_is_one_line() -> None:
    assert "administrators" in str(refusal("a\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n"))
    assert refusal("==ERROR== The application returned an error code (1).\n") == (
        "ncu: The application returned an error code (1)."
    )
