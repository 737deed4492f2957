"""Measurement of a job from its trace log: busy time, kernels, copies, memory over time, and the profile made of them. Pure.

Times are sets of half-open intervals in whole nanoseconds of CLOCK_MONOTONIC. A figure that the log does not contain is absent,
such as use of tensor cores, which only counters measure.
"""

import itertools
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from pgpu.enforcement.trace import Direction, Log, Memory, RecordKind, Shape, TraceRecord
from pgpu.model import CopyUse, Demand, Evidence, Job, KernelUse, Profile, Resource
from pgpu.structs import Struct, replace

Interval = tuple[int, int]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Merge intervals that overlap or touch, in order; empty and reversed ones are dropped."""
    joined: list[Interval] = []
    for begin, end in sorted(each for each in intervals if each[0] < each[1]):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def length(intervals: Iterable[Interval]) -> int:
    """Return the total length of disjoint intervals."""
    return sum(end - begin for begin, end in intervals)


def overlap(intervals: Sequence[Interval], span: Interval) -> int:
    """Return how much of a span is covered by disjoint, ordered intervals."""
    # Ordered and disjoint, so the first interval that matters is found by bisection of the ends.
    total = 0
    for begin, end in intervals[bisect_right(intervals, span[0], key=lambda each: each[1]) :]:
        if begin >= span[1]:
            break
        total += max(0, min(end, span[1]) - max(begin, span[0]))
    return total


def coverage(intervals: Sequence[Interval], window: Interval, bins: int) -> list[float]:
    """Divide a window into equal parts and return the fraction of each that disjoint, ordered intervals cover."""
    begin, end = window
    if end <= begin:
        return [0.0] * bins
    edges = [begin + (end - begin) * number // bins for number in range(bins + 1)]
    spans = itertools.pairwise(edges)
    return [overlap(intervals, span) / (span[1] - span[0]) if span[0] < span[1] else 0.0 for span in spans]


# Most points of a timeline; of a longer one the largest point of each section is kept.
MOST_POINTS = 600


class MemoryPoint(Struct, frozen=True):
    """Memory that one slice holds from a moment on."""

    at_ns: int
    bytes_by_kind: Mapping[Memory, int]
    """Without kinds that hold nothing."""

    @property
    def total_bytes(self) -> int:
        return sum(self.bytes_by_kind.values())


def timeline(records: Iterable[TraceRecord], gpu: int) -> list[MemoryPoint]:
    """Return the memory of a job on one GPU over time. A new process in a slot means that the one before has ended."""
    held: defaultdict[Memory, int] = defaultdict(int)
    of_slot: dict[tuple[int, Memory], int] = {}
    points: list[MemoryPoint] = []
    for record in sorted(records, key=lambda each: each.at_ns):
        if record.kind is RecordKind.PROCESS:
            changed = [(key, 0) for key in of_slot if key[0] == record.slot]
        elif record.kind is RecordKind.MEMORY and record.gpu == gpu and record.detail < len(Memory):
            changed = [((record.slot, Memory(record.detail)), record.bytes)]
        else:
            continue
        # A record has the total of its process and kind, so the change is the difference to the one before.
        for key, now_bytes in changed:
            held[key[1]] += now_bytes - of_slot.get(key, 0)
            of_slot[key] = now_bytes
        if changed:
            points.append(MemoryPoint(record.at_ns, {kind: size for kind, size in held.items() if size > 0}))
    return points


def peak(points: Iterable[MemoryPoint]) -> MemoryPoint | None:
    """Return the first moment of the largest total; None without points."""
    return max(points, key=lambda point: point.total_bytes, default=None)


def downsample(points: list[MemoryPoint], most: int = MOST_POINTS) -> list[MemoryPoint]:
    """Return at most `most` points, including the first, the last and the peak."""
    if len(points) <= most:
        return points
    # The largest point of each section between the first and the last, so the peak is kept.
    step = -(-(len(points) - 2) // (most - 2))
    stretches = (points[at : min(at + step, len(points) - 1)] for at in range(1, len(points) - 1, step))
    return [points[0], *(max(each, key=lambda point: point.total_bytes) for each in stretches if each), points[-1]]


MOST_KERNELS = 100
_NANOSECONDS = 1_000_000_000
_COMMANDS = {RecordKind.KERNEL, RecordKind.GRAPH, RecordKind.COPY}
_DIRECTIONS = {
    Direction.OTHER: "other",
    Direction.HTOD: "HtoD",
    Direction.DTOH: "DtoH",
    Direction.DTOD: "DtoD",
    Direction.PTOP: "PtoP",
    Direction.FILL: "fill",
}
_OVER_PCIE = {Direction.HTOD, Direction.DTOH}
# Latency dominates the time of smaller copies, so they do not show the bandwidth of the link.
_LARGE_COPY_BYTES = 1 << 20

# PCIe 3.0 x16 less protocol overhead; a faster link is detected by the fastest large copy.
_USUAL_LINK_BYTES_PER_NS = 12.0


class GraphUse(Struct, frozen=True):
    """All launches of graphs, without their contents."""

    launches: int
    nodes: int
    """Of all launches together."""

    total_ns: int


class Overhead(Struct, frozen=True):
    """Cost of tracing in the job's own threads; the two events around each command cost about the same on the GPU."""

    commands: int
    total_ns: int
    window_ns: int

    @property
    def per_command_ns(self) -> float:
        """Time for one command; 0 if there was none."""
        return self.total_ns / self.commands if self.commands else 0.0

    @property
    def fraction(self) -> float:
        """Of the time between first and last use, summed over threads."""
        return self.total_ns / self.window_ns if self.window_ns else 0.0


class GpuUse(Struct, frozen=True):
    """Use of one GPU of the lease."""

    gpu: int
    """Index in the lease."""

    busy: tuple[Interval, ...]
    """When a kernel or graph ran."""

    busy_fraction: float
    memory: tuple[MemoryPoint, ...]
    peak: MemoryPoint | None


class Measurement(Struct, frozen=True):
    """Everything measured from a log."""

    log: Log
    window: Interval
    """From the first use of a GPU to the last, by CLOCK_MONOTONIC in nanoseconds."""

    gpus: tuple[GpuUse, ...]
    kernels: tuple[KernelUse, ...]
    copies: tuple[CopyUse, ...]
    graphs: GraphUse
    demands: tuple[Demand, ...]
    context_bytes: int
    """The largest context."""

    context_count: int
    process_count: int
    sm_count: int | None
    l2_bytes: int | None
    memory_bytes_per_second: int | None
    """Peak memory bandwidth of the GPU."""

    overhead: Overhead

    @property
    def busy_fraction(self) -> float:
        """Of the busiest GPU."""
        return max((each.busy_fraction for each in self.gpus), default=0.0)

    @property
    def peak_bytes(self) -> int:
        """Of the GPU with the largest peak."""
        return max((each.peak.total_bytes for each in self.gpus if each.peak is not None), default=0)

    @property
    def duration_seconds(self) -> float:
        """Of the window."""
        return (self.window[1] - self.window[0]) / _NANOSECONDS


def summarise_log(log: Log) -> Measurement:
    commands = [record for record in log.records if record.kind in _COMMANDS]
    contexts = [record for record in log.records if record.kind is RecordKind.CONTEXT]
    times = spans(commands)
    window = (min(begin for begin, _ in times), max(end for _, end in times)) if times else (0, 0)
    graphs = [record for record in commands if record.kind is RecordKind.GRAPH]
    # The record of a context reuses the fields of other kinds: `detail` is the number of multiprocessors, `stream` the size of
    # the L2 cache, `duration_ns` the memory bandwidth.
    sm_count = max((record.detail for record in contexts), default=0) or None
    gpus = []
    for gpu in sorted({each.gpu for each in log.records}):
        busy = union(spans(each for each in commands if each.gpu == gpu and each.kind is not RecordKind.COPY))
        points = timeline(log.records, gpu)
        fraction = min(1.0, length(busy) / (window[1] - window[0])) if window[1] > window[0] else 0.0
        gpus.append(GpuUse(gpu, tuple(busy), fraction, tuple(points), peak(points)))
    return Measurement(
        log=log,
        window=window,
        gpus=tuple(gpus),
        kernels=tuple(_kernels(log.shapes)),
        copies=tuple(_copies(commands)),
        graphs=GraphUse(len(graphs), sum(each.bytes for each in graphs), sum(each.duration_ns for each in graphs)),
        demands=tuple(_demands(log, commands, window, sm_count)),
        context_bytes=max((record.bytes for record in contexts), default=0),
        context_count=len({(record.slot, record.context) for record in contexts}),
        process_count=sum(record.kind is RecordKind.PROCESS for record in log.records),
        sm_count=sm_count,
        l2_bytes=max((record.stream for record in contexts), default=0) or None,
        memory_bytes_per_second=max((record.duration_ns for record in contexts), default=0) or None,
        overhead=Overhead(log.self_calls, log.self_ns, window[1] - window[0]),
    )


def with_metrics(measurement: Measurement, seconds: float, averages: Mapping[Resource, float]) -> Measurement:
    """Add averages of the first GPU's own counters over the run, scaled up to the time in which a kernel ran.

    Args:
        measurement: Of a job that had its GPUs alone.
        seconds: Duration of the averages.
        averages: 0 to 1 of what the GPU has.
    """
    busy_seconds = length(measurement.gpus[0].busy) / _NANOSECONDS if measurement.gpus else 0.0
    if not busy_seconds:
        return measurement
    scale = max(1.0, seconds / busy_seconds)
    from_counters = [Demand(each, min(1.0, average * scale), Evidence.GPM) for each, average in averages.items()]
    return replace(measurement, demands=(*measurement.demands, *from_counters))


def profile_of(measurement: Measurement, job: Job, gpu_name: str, now_seconds: float) -> Profile:
    """Make the profile of a job that ran.

    Args:
        measurement: Of its log.
        job: In its final state; the peak of its meter takes precedence.
        gpu_name: Name of its GPU in the history of runs.
        now_seconds: Since the epoch.
    """
    return Profile(
        signature=job.signature,
        gpu_name=gpu_name,
        owner_uid=job.owner_uid,
        measured_at_seconds=now_seconds,
        duration_seconds=measurement.duration_seconds,
        peak_bytes=job.peak_bytes or measurement.peak_bytes,
        context_bytes=measurement.context_bytes,
        busy_fraction=measurement.busy_fraction,
        demands=measurement.demands,
        gpu_l2_bytes=measurement.l2_bytes,
        gpu_sm_count=measurement.sm_count,
        kernels=measurement.kernels,
        copies=measurement.copies,
        is_simulated=job.is_simulated,
    )


def spans(commands: Iterable[TraceRecord]) -> list[Interval]:
    """Return the intervals of commands with known start."""
    return [(each.start_ns, each.start_ns + each.duration_ns) for each in commands if each.start_ns is not None]


def _kernels(shapes: Sequence[Shape | None]) -> list[KernelUse]:
    used = sorted((each for each in shapes if each is not None and each.launches), key=lambda each: -each.total_ns)
    return [
        KernelUse(
            each.name or "(unnamed)",
            each.grid,
            each.block,
            each.launches,
            each.total_ns,
            each.shortest_ns,
            each.longest_ns,
        )
        for each in used[:MOST_KERNELS]
    ]


def _copies(commands: Iterable[TraceRecord]) -> list[CopyUse]:
    counts: Counter[Direction] = Counter()
    sizes: Counter[Direction] = Counter()
    times: Counter[Direction] = Counter()
    for record in commands:
        if record.kind is RecordKind.COPY:
            direction = direction_of(record)
            counts[direction] += 1
            sizes[direction] += record.bytes
            times[direction] += record.duration_ns
    return [CopyUse(_DIRECTIONS[each], counts[each], sizes[each], times[each]) for each in sorted(counts)]


def direction_of(record: TraceRecord) -> Direction:
    """Return the direction of a copy; `OTHER` for one that a newer shim wrote."""
    return Direction(record.detail) if record.detail < len(Direction) else Direction.OTHER


def _demands(log: Log, commands: Sequence[TraceRecord], window: Interval, sm_count: int | None) -> list[Demand]:
    """Return the use of the multiprocessors and of the PCIe link, each if it is known."""
    found = []
    # The fraction of the multiprocessors' room that the blocks of a kernel fill, weighted by time.
    weights: defaultdict[float, int] = defaultdict(int)
    for shape in log.shapes:
        if shape is not None and sm_count and shape.blocks_per_sm and shape.total_ns:
            blocks = shape.grid[0] * shape.grid[1] * shape.grid[2]
            weights[min(1.0, blocks / (shape.blocks_per_sm * sm_count))] += shape.total_ns
    total_ns = sum(weights.values())
    if total_ns:
        mean = sum(fraction * weight for fraction, weight in weights.items()) / total_ns
        found.append(Demand(Resource.SM, mean, Evidence.LAUNCHES))
    if window[1] > window[0]:
        # Bytes over what the link can move. Durations of copies are not used: those of synchronous copies are too long.
        copies = [each for each in commands if each.kind is RecordKind.COPY and direction_of(each) in _OVER_PCIE]
        large = [each for each in copies if each.bytes >= _LARGE_COPY_BYTES and each.duration_ns]
        fastest = max((each.bytes / each.duration_ns for each in large), default=0.0)
        most_bytes = max(_USUAL_LINK_BYTES_PER_NS, fastest) * (window[1] - window[0])
        fraction = min(1.0, sum(each.bytes for each in copies) / most_bytes)
        found.append(Demand(Resource.PCIE, fraction, Evidence.LAUNCHES))
    return found
