"""What a log says of a job: properties of the summaries, and no trust in what a job wrote."""

import itertools
import json
import re
import struct
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.trace_writing import Written, WrittenShape, kernel, log, memory

from pgpu.enforcement import trace
from pgpu.enforcement.trace import Direction, Memory, RecordKind
from pgpu.errors import EnforcementError
from pgpu.model import Antagonist, Evidence, Job, JobSpec, JobState, Profile, Request, Resource
from pgpu.profiling.measurement import (
    Measurement,
    coverage,
    downsample,
    length,
    overlap,
    peak,
    profile_of,
    summarise_log,
    timeline,
    union,
    with_metrics,
)
from pgpu.profiling.perfetto import trace_events
from pgpu.profiling.profile_page import page
from pgpu.profiling.sensitivity import Beside, contest, loss, sensitivity

HEADER = (Path(__file__).parent.parent.parent / "native" / "include" / "trace_abi.h").read_text("utf-8")
JOB = Job("a" * 12, JobSpec(("train",), "process"), Request(1 << 30), JobState.EXITED, 0.0, signature="train@1")

intervals = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=30)


def measured(*records: Written, shapes: tuple[WrittenShape, ...] = (WrittenShape(),)) -> Measurement:
    return summarise_log(trace.read(log(records, shapes)))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("sizeof(struct pgpu_trace_record)", trace.RECORD.size),
        ("sizeof(struct pgpu_trace_shape)", trace.SHAPE.size),
        ("offsetof(struct pgpu_trace, shape)", trace.HEADER_BYTES),
    ],
)
def test_the_layout_is_the_header_s(text: str, value: int) -> None:
    found = re.search(rf"static_assert\({re.escape(text)} == (\d+)", HEADER)
    assert found is not None
    assert int(found[1]) == value


def test_constants_are_the_header_s() -> None:
    for name, value in {
        "ABI": trace.ABI,
        "MAGIC": trace.MAGIC,
        "OFFSET": trace.OFFSET,
        "MAX_SHAPES": trace.MAX_SHAPES,
    }.items():
        found = re.search(rf"#define PGPU_TRACE_{name}\s+(\w+?)(u|ull|ll)?[ \n]", HEADER)
        assert found is not None
        assert int(found[1], 0) == value
    kinds = re.findall(r"PGPU_TRACE_([A-Z_]+)[,;]", HEADER.split("enum pgpu_trace_kind {")[1].split("}")[0])
    assert kinds == ["NOTHING", *(kind.name for kind in RecordKind)]
    memories = re.findall(r"PGPU_TRACE_([A-Z_]+)[,;]", HEADER.split("enum pgpu_trace_memory {")[1].split("}")[0])
    assert len(memories) == len(Memory) + 1
    assert len(re.findall(r"PGPU_TRACE_", HEADER.split("enum pgpu_trace_direction {")[1].split("}")[0])) == len(
        Direction
    )


class TestIntervals:
    @given(intervals)
    def test_a_union_is_disjoint_ordered_and_covers_what_its_parts_cover(self, parts: list[tuple[int, int]]) -> None:
        joined = union(parts)
        assert all(begin < end for begin, end in joined)
        assert all(left[1] < right[0] for left, right in itertools.pairwise(joined))
        covered_points = {point for begin, end in parts for point in range(begin, end)}
        assert length(joined) == len(covered_points)

    @given(intervals, st.integers(0, 1000), st.integers(0, 1000))
    def test_an_overlap_is_what_both_cover(self, parts: list[tuple[int, int]], begin: int, end: int) -> None:
        points = {point for low, high in parts for point in range(low, high)} & set(range(begin, end))
        assert overlap(union(parts), (begin, end)) == len(points)

    @given(intervals, st.integers(1, 50))
    def test_parts_of_a_window_are_covered_from_none_to_all(self, parts: list[tuple[int, int]], bins: int) -> None:
        found = coverage(union(parts), (0, 1000), bins)
        assert len(found) == bins
        assert all(0 <= each <= 1 for each in found)
        assert sum(found) * 1000 / bins == pytest.approx(length(union(parts)), rel=0.2, abs=2 * bins)


class TestSummaries:
    @given(st.lists(st.tuples(st.integers(1, 10_000), st.integers(0, 10_000)), max_size=20))
    def test_the_busy_fraction_lies_between_none_and_all(self, runs: list[tuple[int, int]]) -> None:
        found = measured(*(kernel(*run) for run in runs))
        assert 0 <= found.busy_fraction <= 1

    def test_kernels_that_run_together_count_once(self) -> None:
        found = measured(kernel(100, 50), kernel(120, 50), kernel(200, 100))
        assert found.window == (100, 300)
        assert found.busy_fraction == pytest.approx(170 / 200)

    def test_copies_widen_the_window_and_keep_nobody_busy(self) -> None:
        copy = Written(RecordKind.COPY, start_ns=0 + 1, duration_ns=99, size=1200, detail=Direction.HTOD)
        found = measured(copy, kernel(100, 100))
        assert found.window == (1, 200)
        assert found.busy_fraction == pytest.approx(100 / 199)
        assert [(each.direction, each.copies, each.total_bytes) for each in found.copies] == [("HtoD", 1, 1200)]

    def test_the_slots_that_blocks_fill_are_weighted_by_time(self) -> None:
        context = Written(RecordKind.CONTEXT, size=1 << 28, detail=82, stream=6 << 20)
        shapes = (WrittenShape("full", (1000, 1, 1), total_ns=3000), WrittenShape("half", (82, 1, 1), total_ns=1000))
        found = measured(context, kernel(1, 10), shapes=shapes)
        [demand] = [each for each in found.demands if each.resource is Resource.SM]
        assert demand.fraction == pytest.approx((3000 * 1.0 + 1000 * 0.5) / 4000)
        assert (found.sm_count, found.l2_bytes, found.context_bytes) == (82, 6 << 20, 1 << 28)

    def test_what_nothing_tells_is_absent(self) -> None:
        found = measured(kernel(1, 10))
        assert {each.resource for each in found.demands} == {Resource.PCIE}
        assert summarise_log(trace.read(log())).busy_fraction == 0

    def test_a_profile_has_the_meter_s_peak_where_it_is_known(self) -> None:
        found = measured(kernel(1, 10), memory(1, Memory.LINEAR, 5000))
        assert profile_of(found, JOB, "RTX 3090", 1.0).peak_bytes == 5000


class TestMetrics:
    @given(st.floats(0.1, 1000), st.dictionaries(st.sampled_from(list(Resource)), st.floats(0, 1)))
    def test_averages_over_a_run_become_what_is_used_while_a_kernel_runs(
        self, seconds: float, averages: dict[Resource, float]
    ) -> None:
        half_busy = measured(kernel(1_000_000_000, 500_000_000))
        found = with_metrics(half_busy, seconds, averages)
        told = {each.resource: each.fraction for each in found.demands if each.evidence is Evidence.GPM}
        assert set(told) == set(averages)
        assert all(averages[each] <= told[each] <= 1 for each in told)
        if seconds == 1.0:
            assert all(told[each] == min(1.0, 2 * averages[each]) for each in told)

    def test_a_run_without_kernels_tells_nothing_by_counters(self) -> None:
        found = with_metrics(measured(memory(1, Memory.LINEAR, 1)), 1.0, {Resource.DRAM: 0.5})
        assert found.demands == ()


class TestMemory:
    def test_a_timeline_adds_up_kinds_and_processes(self) -> None:
        found = measured(
            memory(1, Memory.CONTEXT, 100),
            memory(2, Memory.LINEAR, 50),
            memory(3, Memory.LINEAR, 70, slot=1),
            memory(4, Memory.LINEAR, 0),
        )
        points = found.gpus[0].memory
        assert [point.total_bytes for point in points] == [100, 150, 220, 170]
        highest = peak(points)
        assert highest is not None
        assert highest.bytes_by_kind == {Memory.CONTEXT: 100, Memory.LINEAR: 120}

    def test_a_process_that_takes_another_s_slot_has_outlived_it(self) -> None:
        found = measured(
            memory(1, Memory.LINEAR, 50), Written(RecordKind.PROCESS, at_ns=2), memory(3, Memory.LINEAR, 30)
        )
        assert [point.total_bytes for point in found.gpus[0].memory] == [50, 0, 30]

    @given(st.lists(st.tuples(st.sampled_from(list(Memory)), st.integers(0, 1000)), max_size=50), st.integers(3, 10))
    def test_a_thinned_timeline_keeps_its_peak_and_ends(self, sizes: list[tuple[Memory, int]], most: int) -> None:
        records = trace.read(log([memory(at, kind, size) for at, (kind, size) in enumerate(sizes, 1)])).records
        points = timeline(records, 0)
        kept = downsample(points, most)
        assert len(kept) <= max(most, min(len(points), most))
        assert (kept[:1], kept[-1:]) == (points[:1], points[-1:])
        assert max((p.total_bytes for p in kept), default=0) == max((p.total_bytes for p in points), default=0)


class TestNothingIsBelieved:
    def test_what_is_no_log_is_refused(self) -> None:
        for garbage in (b"", b"x" * 100, log()[:20], b"\0" * trace.HEADER_BYTES):
            with pytest.raises(EnforcementError):
                trace.read(garbage)

    def test_records_that_say_nonsense_are_left_out(self) -> None:
        strange = [
            Written(0),
            Written(77),
            Written(RecordKind.KERNEL, gpu=200),
            Written(RecordKind.KERNEL, start_ns=(1 << 64) - 1, duration_ns=(1 << 64) - 1),
            Written(RecordKind.KERNEL, at_ns=5, start_ns=5, duration_ns=1, shape=9999),
            Written(RecordKind.COPY, at_ns=6, start_ns=6, duration_ns=1, detail=9999),
            Written(RecordKind.MEMORY, at_ns=7, detail=9999, size=1),
        ]
        found = summarise_log(trace.read(log(strange)))
        assert [record.at_ns for record in found.log.records] == [5, 6, 7]
        assert found.log.records[0].shape is None
        assert [each.direction for each in found.copies] == ["other"]

    def test_a_full_log_tells_what_it_dropped(self) -> None:
        found = trace.read(log([kernel(1, 1)], claimed=trace.DEFAULT_RECORDS + 5))
        assert found.dropped == 5
        assert trace.read(log(claimed=(1 << 64) - 1)).dropped > 0

    @given(st.data())
    def test_whatever_bytes_a_job_writes_something_is_read_or_refused(self, data: st.DataObject) -> None:
        whole = bytearray(log([kernel(10, 5), memory(1, Memory.POOL, 9)], (WrittenShape(), WrittenShape("b\n<"))))
        for _ in range(data.draw(st.integers(1, 8))):
            at = data.draw(st.sampled_from([*range(64), *range(4096, 5100), *range(len(whole) - 128, len(whole) - 8)]))
            struct.pack_into("<Q", whole, at, data.draw(st.integers(0, (1 << 64) - 1)))
        try:
            found = summarise_log(trace.read(bytes(whole)))
        except EnforcementError:
            return
        profile = profile_of(found, JOB, "GPU", 1.0)
        assert 0 <= profile.busy_fraction <= 1
        json.loads(trace_events(found, "x"))
        assert "<script" not in page(found, profile, "x")


class _Page(HTMLParser):
    """Notes what a browser would load."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href", "data", "action"}]


class TestOutputs:
    def found(self) -> tuple[Measurement, Profile]:
        found = measured(
            Written(RecordKind.PROCESS, at_ns=1, size=4242),
            memory(2, Memory.CONTEXT, 1 << 28),
            memory(3, Memory.LINEAR, 1 << 30),
            kernel(1000, 500),
            kernel(1400, 300),
            Written(RecordKind.COPY, at_ns=4, start_ns=2000, duration_ns=10, size=64, detail=Direction.DTOH, stream=0),
            Written(RecordKind.GRAPH, at_ns=5, start_ns=3000, duration_ns=100, size=12),
            shapes=(WrittenShape("<img src=x>"),),
        )
        return found, profile_of(found, JOB, "simulated RTX 3090", 1.0)

    def test_the_page_needs_nothing_but_itself(self) -> None:
        found, profile = self.found()
        reader = _Page()
        reader.feed(page(found, profile, "train <b>"))
        assert reader.addresses == []
        assert not {"script", "link", "img", "iframe", "b"} & set(reader.tags)
        assert {"svg", "table", "polygon", "rect"} <= set(reader.tags)

    def test_the_trace_is_what_the_format_says(self) -> None:
        found, _ = self.found()
        told = json.loads(trace_events(found, "train"))
        events = told["traceEvents"]
        assert {event["ph"] for event in events} == {"M", "X", "C"}
        for event in events:
            assert isinstance(event["pid"], int)
            assert isinstance(event["tid"], int)
            assert event["name"]
            assert event["ph"] == "M" or event["ts"] >= 0
            assert event["ph"] != "X" or event["dur"] >= 0
            assert event["ph"] != "C" or all(isinstance(value, int) for value in event["args"].values())
        names = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
        assert {(event["pid"], event["tid"]) for event in events if event["ph"] == "X"} == names

    def test_commands_of_one_track_never_overlap(self) -> None:
        found, _ = self.found()
        events = [e for e in json.loads(trace_events(found, "train"))["traceEvents"] if e["ph"] == "X"]
        for track in {(event["pid"], event["tid"]) for event in events}:
            line = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if (e["pid"], e["tid"]) == track)
            assert all(left[1] <= right[0] + 1e-3 for left, right in itertools.pairwise(line))
        assert any(event["name"] == "graph of 12 nodes" for event in events)

    @given(st.integers(0, 1 << 50), st.lists(st.integers(1, 1 << 36), min_size=1, max_size=20))
    def test_perfetto_reads_every_nanosecond_and_so_drops_no_command(
        self, begin_ns: int, lasting_ns: list[int]
    ) -> None:
        """It cuts, and drops what overlaps by a nanosecond: json_parser.h, `CoerceToTs`, and slice_tracker.cc."""
        starts = list(itertools.accumulate(lasting_ns, initial=begin_ns + 10))
        found = measured(Written(RecordKind.PROCESS, at_ns=1, size=1), *map(kernel, starts, lasting_ns))
        events = [e for e in json.loads(trace_events(found, "train"))["traceEvents"] if e["ph"] == "X"]
        assert [int(event["dur"] * 1000.0) for event in events] == lasting_ns
        assert [int(event["ts"] * 1000.0) for event in events] == [start_ns - 1 for start_ns in starts[:-1]]


class TestSensitivity:
    def run_of(self, each_ns: int, launches: int = 10, name: str = "dense") -> Measurement:
        return measured(
            kernel(1, each_ns), shapes=(WrittenShape(name, launches=launches, total_ns=each_ns * launches),)
        )

    def test_a_loss_is_told_by_durations_whatever_the_number_of_launches(self) -> None:
        before = [self.run_of(100), self.run_of(102), self.run_of(101, launches=20)]
        after = [self.run_of(150, launches=5), self.run_of(151), self.run_of(153)]
        found = loss(before, after)
        assert found is not None
        assert found.fraction == pytest.approx(0.5, abs=0.01)
        assert found.spread == pytest.approx(0.02, abs=0.001)
        assert found.runs == 3

    def test_runs_without_a_kernel_in_common_tell_nothing(self) -> None:
        assert loss([self.run_of(100)], [self.run_of(100, name="other")]) is None
        assert loss([], [self.run_of(100)]) is None

    def test_a_contest_tells_who_slowed_whom(self) -> None:
        alone, beside = self.run_of(1000), measured(kernel(1000, 2000), shapes=(WrittenShape(total_ns=2000),))
        neighbour_alone = measured(kernel(1, 100), shapes=(WrittenShape("sweep", total_ns=100),))
        kernels = [kernel(start_ns, 150) for start_ns in range(1000, 3000, 150)]
        neighbour = measured(*kernels, kernel(5000, 100), shapes=(WrittenShape("sweep"),))
        found = contest([alone], Beside(Antagonist.L2, 1 << 20, 0.1, (beside,), neighbour, neighbour_alone, 0.5))
        assert found is not None
        assert found.slowdown == pytest.approx(2.0)
        assert found.antagonist_slowdown == pytest.approx(1.5, rel=0.03)
        assert sensitivity(None, [found]).l2 == pytest.approx(1.0)
        assert sensitivity(None, [found]).dram is None

    def test_an_antagonist_that_hardly_ran_beside_the_job_tells_nothing(self) -> None:
        alone, beside = self.run_of(1000), measured(kernel(1000, 2000), shapes=(WrittenShape(total_ns=2000),))
        sweep = (WrittenShape("sweep", total_ns=100),)
        neighbour = measured(kernel(1000, 900), kernel(5000, 900), shapes=sweep)
        met = Beside(Antagonist.DRAM, 1 << 26, 0.1, (beside,), neighbour, measured(kernel(1, 100), shapes=sweep), None)
        assert contest([alone], met) is None
