"""A measurement as JSON trace events for ui.perfetto.dev and chrome://tracing.

Streams are tracks of the process that launched into them, memory is a counter of its GPU. Pure.

Source: "Trace Event Format" (Chromium project); Perfetto documents which of it is read.
"""

import json
from collections.abc import Iterator
from typing import Any

from pgpu.enforcement.trace import RecordKind, TraceRecord
from pgpu.profiling.measurement import Measurement, direction_of, downsample

_MOST_MEMORY_POINTS = 20_000

# Counters belong to processes in this format, so each GPU gets a process id of its own, above those of the job.
_GPU_PIDS = 1_000_000

_TIME_NUDGE_NS = 0.25

# Readers convert microseconds to nanoseconds by truncation: 1.001 µs would become 1000 ns, and of two adjacent commands Perfetto
# would drop the second, since it seems to begin before the first ends. These amounts make the truncated values exact.
_LENGTH_NUDGE_NS = 0.01

# Handles with a fixed meaning: 0, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD in cuda.h.
_SPECIAL_STREAMS = {0: "default stream", 1: "legacy default stream", 2: "per-thread default stream"}

_Event = dict[str, Any]


def trace_events(measurement: Measurement, title: str) -> str:
    """Return a measurement as Chrome JSON.

    Args:
        measurement: From a log.
        title: The command, shown beside the processes.
    """
    events = [*_names(measurement, title), *_commands(measurement), *_counters(measurement)]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"title": title}})


def _origin_ns(measurement: Measurement) -> int:
    return min((record.at_ns for record in measurement.log.records), default=0)


def _microseconds(at_ns: int, origin_ns: int) -> float:
    # Doubles of microseconds since the beginning of the log keep nanoseconds exact for weeks.
    return (at_ns - origin_ns + _TIME_NUDGE_NS) / 1000


def _names(measurement: Measurement, title: str) -> Iterator[_Event]:
    pids = {record.slot: record.bytes for record in measurement.log.records if record.kind is RecordKind.PROCESS}
    for slot in sorted({record.slot for record in measurement.log.records}):
        yield _name("process_name", slot + 1, 0, f"{title} (pid {pids.get(slot, '?')})")
    for (slot, stream), track in _tracks(measurement).items():
        yield _name("thread_name", slot + 1, track, _SPECIAL_STREAMS.get(stream, f"stream {stream:#x}"))
    for use in measurement.gpus:
        yield _name("process_name", _GPU_PIDS + use.gpu, 0, f"GPU {use.gpu}")


def _name(kind: str, pid: int, tid: int, name: str) -> _Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _records_with_start(measurement: Measurement) -> list[TraceRecord]:
    return [each for each in measurement.log.records if each.start_ns is not None]


def _tracks(measurement: Measurement) -> dict[tuple[int, int], int]:
    """Return a track number for each stream, by process and handle."""
    return {
        key: number
        for number, key in enumerate(sorted({(r.slot, r.stream) for r in _records_with_start(measurement)}), 1)
    }


def _commands(measurement: Measurement) -> Iterator[_Event]:
    """Yield complete events by start. Events of one track are moved so that they never overlap after rounding."""
    origin_ns = _origin_ns(measurement)
    by_track: dict[tuple[int, int], list[TraceRecord]] = {}
    for record in _records_with_start(measurement):
        by_track.setdefault((record.slot, record.stream), []).append(record)
    tracks = _tracks(measurement)
    for (slot, stream), records in by_track.items():
        free_ns = 0
        for record in sorted(records, key=lambda each: each.start_ns or 0):
            begin_ns = max(record.start_ns or 0, free_ns)
            free_ns = max(begin_ns, (record.start_ns or 0) + record.duration_ns)
            name, arguments = _describe(measurement, record, origin_ns)
            yield {
                "ph": "X",
                "name": name,
                "cat": record.kind.name.lower(),
                "pid": slot + 1,
                "tid": tracks[slot, stream],
                "ts": _microseconds(begin_ns, origin_ns),
                "dur": (free_ns - begin_ns + _LENGTH_NUDGE_NS) / 1000,
                "args": arguments,
            }


def _describe(measurement: Measurement, record: TraceRecord, origin_ns: int) -> tuple[str, _Event]:
    """Return the name and the arguments of a command."""
    arguments: _Event = {"gpu": record.gpu, "launched_us": _microseconds(record.at_ns, origin_ns)}
    shape = None if record.shape is None else measurement.log.shapes[record.shape]
    name = (shape.name if shape is not None else "") or "kernel"
    if record.kind is RecordKind.COPY:
        name = f"copy {direction_of(record).name}"
        arguments["bytes"] = record.bytes
    elif record.kind is RecordKind.GRAPH:
        name = f"graph of {record.bytes} nodes" if record.bytes else "graph"
    if shape is not None:
        arguments |= {
            "grid": list(shape.grid),
            "block": list(shape.block),
            "registers": shape.registers,
            "shared_bytes": shape.static_shared_bytes + shape.dynamic_shared_bytes,
            "blocks_per_sm": shape.blocks_per_sm,
        }
    return name, arguments


def _counters(measurement: Measurement) -> Iterator[_Event]:
    origin_ns = _origin_ns(measurement)
    for use in measurement.gpus:
        # Every point has every kind, also one that holds nothing, so that all series are drawn to their end.
        kinds = sorted({kind for point in use.memory for kind in point.bytes_by_kind})
        for point in downsample(list(use.memory), _MOST_MEMORY_POINTS):
            yield {
                "ph": "C",
                "name": "memory in bytes",
                "pid": _GPU_PIDS + use.gpu,
                "tid": 0,
                "ts": _microseconds(point.at_ns, origin_ns),
                "args": {kind.name.lower(): point.bytes_by_kind.get(kind, 0) for kind in kinds},
            }
