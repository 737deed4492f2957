"""The output of `pgpu profile`: tables, a JSON document, an HTML page and a trace."""

import dataclasses
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from pgpu.cli.output.plain_table import PlainTable
from pgpu.profiling.measurement import GpuUse, Measurement, MemoryPoint, thinned
from pgpu.profiling.perfetto import trace_events
from pgpu.profiling.profile_page import COUNTED, ProfileResult, Row, counter_rows, facts, page, sensitivity_rows
from pgpu.units import format_memory

_MOST_KERNELS = 20
_MICROSECONDS = 1000


def tables_of(finding: ProfileResult) -> Iterator[Table]:
    """Lay out facts, kernels, counters, copies and sensitivities."""
    yield _of_rows([("program", finding.profile.signature), *facts(finding.measurement, finding.profile)])
    if finding.profile.kernels:
        yield _of_kernels(finding)
    if finding.counters:
        yield _of_counters(finding)
    if finding.profile.copies:
        yield _of_copies(finding)
    rows = [*_sensitivity(finding), *(("not measured", note) for note in finding.notes)]
    if rows:
        yield _of_rows(rows)


def document_of(finding: ProfileResult) -> dict[str, Any]:
    """Describe a profile, according to profile.schema.json."""
    measurement = finding.measurement
    return {
        "job_id": finding.job.id,
        "exit_code": finding.job.exit_code,
        **dataclasses.asdict(finding.profile),
        "contexts": measurement.context_count,
        "processes": measurement.process_count,
        "graphs": dataclasses.asdict(measurement.graphs),
        "gpus": [_gpu(use) for use in measurement.gpus],
        "shapes": _shapes(measurement),
        "dropped_records": measurement.log.dropped,
        "unmeasured_commands": measurement.log.unmeasured,
        "overhead": {
            "commands": measurement.overhead.commands,
            "per_command_ns": measurement.overhead.per_command_ns,
            "fraction": measurement.overhead.fraction,
        },
        "cache_loss": None if finding.cache is None else dataclasses.asdict(finding.cache),
        "counters": [dataclasses.asdict(each) for each in finding.counters],
        "not_measured": list(finding.notes),
    }


def page_of(finding: ProfileResult) -> str:
    """Return the HTML page with plots."""
    return page(finding.measurement, finding.profile, _title(finding), finding.counters)


def trace_of(finding: ProfileResult) -> str:
    """Return the trace for Perfetto."""
    return trace_events(finding.measurement, _title(finding))


def _title(finding: ProfileResult) -> str:
    spec = finding.job.spec
    return shlex.join(spec.command) or spec.image or finding.profile.signature


def _gpu(use: GpuUse) -> dict[str, Any]:
    return {
        "index": use.gpu,
        "busy_fraction": use.busy_fraction,
        "peak_bytes_by_kind": {} if use.peak is None else _by_kind(use.peak),
        "memory": [{"at_ns": point.at_ns, "bytes_by_kind": _by_kind(point)} for point in thinned(list(use.memory))],
    }


def _by_kind(point: MemoryPoint) -> dict[str, int]:
    return {kind.name.lower(): size for kind, size in point.bytes_by_kind.items()}


def _shapes(measurement: Measurement) -> list[dict[str, Any]]:
    """Describe launch shapes, which the stored profile lacks."""
    return [
        {
            "name": each.name,
            "grid": each.grid,
            "block": each.block,
            "registers": each.registers,
            "static_shared_bytes": each.static_shared_bytes,
            "dynamic_shared_bytes": each.dynamic_shared_bytes,
            "blocks_per_sm": each.blocks_per_sm,
        }
        for each in measurement.log.shapes
        if each is not None
    ]


def _sensitivity(finding: ProfileResult) -> list[Row]:
    rows = sensitivity_rows(finding.profile)
    if finding.cache is not None:
        loss = finding.cache
        rows.append(("spread of the L1 runs", f"{100 * loss.spread:.1f} % between {loss.runs} runs of a kind"))
    return rows


def _of_rows(rows: Sequence[Row]) -> Table:
    table = PlainTable(has_header=False)
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def _of_kernels(finding: ProfileResult) -> Table:
    table = PlainTable(
        "KERNEL", "GRID", "BLOCK", "LAUNCHES", "TOTAL µs", "MEAN µs", "SHORTEST µs", "LONGEST µs", is_numeric=True
    )
    for each in finding.profile.kernels[:_MOST_KERNELS]:
        table.add_row(
            Text(each.name),
            "x".join(map(str, each.grid)),
            "x".join(map(str, each.block)),
            str(each.launches),
            _microseconds(each.total_ns),
            _microseconds(each.total_ns / each.launches),
            _microseconds(each.shortest_ns),
            _microseconds(each.longest_ns),
        )
    return table


def _of_counters(finding: ProfileResult) -> Table:
    table = PlainTable(*(word.upper() for word in COUNTED), is_numeric=True)
    for name, *figures in counter_rows(finding.counters[:_MOST_KERNELS]):
        table.add_row(Text(name), *figures)
    return table


def _of_copies(finding: ProfileResult) -> Table:
    table = PlainTable("COPIES", "COUNT", "BYTES", "TOTAL µs", is_numeric=True)
    for each in finding.profile.copies:
        table.add_row(each.direction, str(each.copies), format_memory(each.total_bytes), _microseconds(each.total_ns))
    return table


def _microseconds(nanoseconds: float) -> str:
    return f"{nanoseconds / _MICROSECONDS:,.1f}"
