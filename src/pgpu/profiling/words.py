"""A measurement in words: the lines that text and page share, so that both say the same. Pure."""

from collections.abc import Sequence

from pgpu.model import Contest, Demand, Profile
from pgpu.profiling.counters import KernelCounters
from pgpu.profiling.intervals import length
from pgpu.profiling.measurement import Measurement
from pgpu.units import format_memory

Row = tuple[str, str]


def facts(measurement: Measurement, profile: Profile) -> list[Row]:
    """Say what was measured, one fact a row."""
    rows = [
        ("GPU", profile.gpu_name),
        ("lasted", f"{_time(measurement.window[1] - measurement.window[0])} from first to last use of the GPU"),
        ("busy", f"{100 * profile.busy_fraction:.1f} % of it with a kernel running"),
        ("peak memory", format_memory(profile.peak_bytes)),
        *_kinds(measurement),
        ("contexts", f"{measurement.context_count}, the largest {format_memory(measurement.context_bytes)}"),
        ("processes", str(measurement.process_count)),
        (
            "kernels",
            f"{_launches(profile)} launches in {len(profile.kernels)} names and shapes, {_busy_time(measurement)}",
        ),
    ]
    if measurement.graphs.launches:
        graphs = measurement.graphs
        rows.append(("graphs", f"{graphs.launches} launches of {graphs.nodes} nodes, {_time(graphs.total_ns)}"))
    rows += [(_of(demand), f"{100 * demand.fraction:.1f} % ({demand.evidence})") for demand in profile.demands]
    return [*rows, *_caveats(measurement), ("profiling itself", _overhead(measurement))]


def sensitivity_rows(profile: Profile) -> list[Row]:
    """Say how much longer kernels take where others use up what they need; nothing where nothing was measured."""
    found = profile.sensitivity
    tested = (
        ("L1 carve-out smallest instead of largest", found.cache),
        ("beside a sweep of the L2 cache", found.l2),
        ("beside a stream of device memory", found.dram),
    )
    rows = [(test, f"{100 * value:+.1f} %") for test, value in tested if value is not None]
    return [*rows, *(_contest(each) for each in profile.contests)]


COUNTED = ("kernel", "grid", "block", "launches", "L1 hits", "L2 hits", "DRAM", "L2", "SM", "occupancy")
"""What `counter_rows` tell, in order."""


def counter_rows(counters: Sequence[KernelCounters]) -> list[tuple[str, ...]]:
    """Say what was counted inside kernels, one kernel and shape a row."""
    return [
        (each.name, _shape(each.grid), _shape(each.block), str(each.launches), *map(_percent, _figures(each)))
        for each in counters
    ]


def _figures(counted: KernelCounters) -> tuple[float | None, ...]:
    used = (counted.dram_throughput, counted.l2_throughput, counted.sm_throughput)
    return (counted.l1_hit_rate, counted.l2_hit_rate, *used, counted.occupancy)


def _shape(sizes: tuple[int, int, int]) -> str:
    return "x".join(map(str, sizes))


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:.1f} %"


def _contest(contest: Contest) -> Row:
    losses = f"{100 * (contest.slowdown - 1):+.1f} %, and it {100 * (contest.antagonist_slowdown - 1):+.1f} %"
    return f"beside {contest.antagonist} of {format_memory(contest.swept_bytes)}", losses


def _kinds(measurement: Measurement) -> list[Row]:
    peaks = [use.peak for use in measurement.gpus if use.peak is not None]
    if not peaks:
        return []
    largest = max(peaks, key=lambda point: point.total_bytes)
    held = ", ".join(f"{kind.name.lower()} {format_memory(size)}" for kind, size in largest.bytes_by_kind.items())
    return [("at the peak", held)]


def _busy_time(measurement: Measurement) -> str:
    return _time(sum(length(use.busy) for use in measurement.gpus))


def _launches(profile: Profile) -> int:
    return sum(each.launches for each in profile.kernels)


def _of(demand: Demand) -> str:
    return f"uses of {demand.resource}"


def _caveats(measurement: Measurement) -> list[Row]:
    rows = []
    if measurement.log.dropped:
        rows.append(("not in the timeline", f"{measurement.log.dropped} records that came when the log was full"))
    if measurement.log.unmeasured:
        rows.append(("without a duration", f"{measurement.log.unmeasured} commands"))
    return rows


def _overhead(measurement: Measurement) -> str:
    cost = measurement.overhead
    each = f"{cost.per_command_ns / 1000:.2f} µs for each of {cost.commands} commands"
    return f"{each}, {100 * cost.fraction:.2f} % of the time, in the job's own threads"


def _time(nanoseconds: int) -> str:
    for unit, name in ((1_000_000_000, "s"), (1_000_000, "ms"), (1000, "µs")):
        if nanoseconds >= unit:
            return (
                f"{nanoseconds / unit:.3g} {name}" if nanoseconds < 1000 * unit else f"{nanoseconds / unit:,.0f} {name}"
            )
    return f"{nanoseconds} ns"
