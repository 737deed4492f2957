"""Hardware counters of a program's kernels from Nsight Compute (`ncu`): its command line, and its CSV output. Pure.

ncu replays each kernel several times and alone, so its durations are not the program's; only figures from inside a kernel are
used. A missing counter is None.

Source: NVIDIA, *Nsight Compute CLI* (Console Output; Profile) and *Kernel Profiling Guide* (Metrics Decoder), of 2023 and later.
"""

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pgpu.model import Demand, Evidence, Resource
from pgpu.structs import Struct

PROGRAM = "ncu"

# Each is replayed, which takes tens of milliseconds; of a longer program only the beginning is counted.
MOST_LAUNCHES = 2000

_DURATION = "gpu__time_duration.sum"
_FIGURES = {
    "l1_hit_rate": "l1tex__t_sector_hit_rate.pct",
    "l2_hit_rate": "lts__t_sector_hit_rate.pct",
    "dram_throughput": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "l2_throughput": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm_throughput": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
}
# Beginning of the line with the names of the columns.
_HEAD = '"ID","Process ID",'
_PERCENT = 100.0
_NO_PERMISSION = "ERR_NVGPUCTRPERM"
_TRIPLE = re.compile(r"\((\d+), *(\d+), *(\d+)\)")
_ERROR = re.compile(r"==ERROR== *(.+)")


class KernelCounters(Struct, frozen=True):
    """All counted launches of one kernel with one shape. Fractions are 0 to 1, means over its time; None if not counted."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    launches: int
    total_ns: float
    """Under ncu, at the clock rate that ncu fixes."""

    l1_hit_rate: float | None
    """Of sectors requested from the L1 cache."""

    l2_hit_rate: float | None
    dram_throughput: float | None
    """Of the memory bandwidth."""

    l2_throughput: float | None
    """Of the L2 cache bandwidth."""

    sm_throughput: float | None
    """Of the throughput of the busiest unit of a multiprocessor."""

    occupancy: float | None
    """Resident warps, as a fraction of the most that a multiprocessor holds."""


def command_of(program: str, command: Sequence[str]) -> tuple[str, ...]:
    """Return argv that counts a command's kernels and writes CSV to standard output, one row per launch."""
    metrics = ",".join((_DURATION, *_FIGURES.values()))
    # Base units: otherwise ncu chooses a unit by the size of the figures. Mangled names are those in the trace log.
    format_words = ("--csv", "--page", "raw", "--print-units", "base", "--print-kernel-base", "mangled")
    scope = ("--target-processes", "all", "--launch-count", str(MOST_LAUNCHES))
    return (program, *format_words, "--metrics", metrics, *scope, *command)


def read_counters(output: str) -> tuple[KernelCounters, ...]:
    """Parse the table of ncu from the output of both, by decreasing time.

    Args:
        output: Standard output of ncu and the program; without a table the result is empty.
    """
    rows: dict[tuple[str, str, str], list[Mapping[str, str]]] = {}
    for row in _rows(output):
        rows.setdefault((row["Kernel Name"], row["Grid Size"], row["Block Size"]), []).append(row)
    found = []
    for (name, grid, block), launches in rows.items():
        times_ns = [_number(row.get(_DURATION, "")) or 0.0 for row in launches]
        means = {
            figure: _mean(
                [(_fraction(row.get(metric, "")), time) for row, time in zip(launches, times_ns, strict=True)]
            )
            for figure, metric in _FIGURES.items()
        }
        found.append(KernelCounters(name, _triple(grid), _triple(block), len(launches), sum(times_ns), **means))
    return tuple(sorted(found, key=lambda each: (-each.total_ns, each.name)))


def refusal(output: str) -> str | None:
    """Return the error of ncu, or our text for a well-known one; None if there is none in the output."""
    if _NO_PERMISSION in output:
        return (
            "the driver keeps its counters for administrators: run it as root, or see NVIDIA's page on ERR_NVGPUCTRPERM"
        )
    found = _ERROR.search(output)
    return None if found is None else f"{PROGRAM}: {found[1].strip()}"


def demands_of(counters: Iterable[KernelCounters]) -> tuple[Demand, ...]:
    """Return the program's use of memory and L2 bandwidth while a kernel runs, if counted."""
    counted = list(counters)
    figures_of_resources = (
        (Resource.DRAM, [(each.dram_throughput, each.total_ns) for each in counted]),
        (Resource.L2, [(each.l2_throughput, each.total_ns) for each in counted]),
    )
    means = ((resource, _mean(figures)) for resource, figures in figures_of_resources)
    return tuple(Demand(resource, min(1.0, mean), Evidence.COUNTERS) for resource, mean in means if mean is not None)


def _rows(output: str) -> Iterator[Mapping[str, str]]:
    """Yield the rows of the table. The line after the names contains units and has no ID; program output may follow the table."""
    lines = iter(output.splitlines())
    for line in lines:
        if line.startswith(_HEAD):
            names = next(csv.reader([line]))
            break
    else:
        return
    # Lines of ncu itself begin with `==`; the program's own output may be anywhere between them.
    for line in lines:
        cells = next(csv.reader([line]), [])
        if line.startswith('"') and len(cells) == len(names) and cells[0].isdigit():
            yield dict(zip(names, cells, strict=True))


def _mean(figures: Sequence[tuple[float | None, float]]) -> float | None:
    """Return the mean of known figures, weighted by time."""
    known = [(figure, weight) for figure, weight in figures if figure is not None]
    whole = sum(weight for _, weight in known)
    if not whole:
        return None
    return sum(figure * weight for figure, weight in known) / whole


def _fraction(text: str) -> float | None:
    """Parse a percentage as a share of 1; the hit rates of NVIDIA's counters can be a little above it."""
    number = _number(text)
    return None if number is None else min(1.0, number / _PERCENT)


def _number(text: str) -> float | None:
    """Parse a figure, which may have thousands separators; None for `n/a` and `nan`."""
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _triple(text: str) -> tuple[int, int, int]:
    found = _TRIPLE.fullmatch(text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else (0, 0, 0)
