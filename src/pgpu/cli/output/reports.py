"""What `pgpu profile`, `advise` and `calibrate` print: tables, lines, JSON documents, an HTML page and a trace."""

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from pgpu.advising.advice import Advice
from pgpu.advising.constants_fit import BOUNDS, Errors
from pgpu.advising.contention import Constants
from pgpu.cli.output.documents import Document, document
from pgpu.cli.output.plain_table import PlainTable
from pgpu.gpu.catalog import model_named
from pgpu.model import Bandwidths, Gpu, SharingMode
from pgpu.profiling.measurement import MemoryPoint, downsample
from pgpu.profiling.perfetto import trace_events
from pgpu.profiling.profile_page import COUNTED, ProfileResult, Row, counter_rows, facts, page, sensitivity_rows
from pgpu.structs import to_builtins
from pgpu.units import format_memory

_MOST_KERNELS = 20
_MICROSECONDS = 1000
_FASTER = {SharingMode.MPS: "under MPS", SharingMode.TIME_SLICE: "in turns"}
_DOES = {
    SharingMode.TIME_SLICE: "pgpu shares this GPU by time slices",
    SharingMode.EXCLUSIVE: "pgpu runs one after the other",
}


def tables_of(finding: ProfileResult) -> Iterator[PlainTable]:
    """Lay out facts, kernels, counters, copies and sensitivities."""
    yield _of_rows([("program", finding.profile.signature), *facts(finding.measurement, finding.profile)])
    if finding.profile.kernels:
        yield _of_kernels(finding)
    if finding.counters:
        table = PlainTable(*(word.upper() for word in COUNTED), is_numeric=True)
        for name, *figures in counter_rows(finding.counters[:_MOST_KERNELS]):
            table.add_row(name, *figures)
        yield table
    if finding.profile.copies:
        table = PlainTable("COPIES", "COUNT", "BYTES", "TOTAL µs", is_numeric=True)
        for each in finding.profile.copies:
            total = _microseconds(each.total_ns)
            table.add_row(each.direction, str(each.copies), format_memory(each.total_bytes), total)
        yield table
    rows = sensitivity_rows(finding.profile)
    if (loss := finding.cache) is not None:
        rows.append(("spread of the L1 runs", f"{100 * loss.spread:.1f} % between {loss.runs} runs of a kind"))
    rows += [("not measured", note) for note in finding.notes]
    if rows:
        yield _of_rows(rows)


def document_of_profile(finding: ProfileResult) -> dict[str, Any]:
    """Describe a profile, according to profile.schema.json."""
    measurement = finding.measurement
    return {
        "job_id": finding.job.id,
        "exit_code": finding.job.exit_code,
        **to_builtins(finding.profile),
        "contexts": measurement.context_count,
        "processes": measurement.process_count,
        "graphs": to_builtins(measurement.graphs),
        "gpus": [
            {
                "index": use.gpu,
                "busy_fraction": use.busy_fraction,
                "peak_bytes_by_kind": {} if use.peak is None else _bytes_by_kind(use.peak),
                # A run has a point for each allocation; the document gets as many as a plot can show.
                "memory": [
                    {"at_ns": each.at_ns, "bytes_by_kind": _bytes_by_kind(each)} for each in downsample([*use.memory])
                ],
            }
            for use in measurement.gpus
        ],
        # Launch shapes; the stored profile lacks them.
        "shapes": [
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
        ],
        "dropped_records": measurement.log.dropped,
        "unmeasured_commands": measurement.log.unmeasured,
        "overhead": {
            "commands": measurement.overhead.commands,
            "per_command_ns": measurement.overhead.per_command_ns,
            "fraction": measurement.overhead.fraction,
        },
        "cache_loss": None if finding.cache is None else to_builtins(finding.cache),
        "counters": [to_builtins(each) for each in finding.counters],
        "not_measured": list(finding.notes),
    }


def page_of(finding: ProfileResult) -> str:
    return page(finding.measurement, finding.profile, _title(finding), finding.counters)


def trace_of(finding: ProfileResult) -> str:
    return trace_events(finding.measurement, _title(finding))


def _title(finding: ProfileResult) -> str:
    spec = finding.job.spec
    return shlex.join(spec.command) or spec.image or finding.profile.signature


def _bytes_by_kind(point: MemoryPoint) -> dict[str, int]:
    return {kind.name.lower(): size for kind, size in point.bytes_by_kind.items()}


def _of_rows(rows: Sequence[Row]) -> PlainTable:
    table = PlainTable(has_header=False)
    for name, value in rows:
        table.add_row(name, value)
    return table


def _of_kernels(finding: ProfileResult) -> PlainTable:
    table = PlainTable(
        "KERNEL", "GRID", "BLOCK", "LAUNCHES", "TOTAL µs", "MEAN µs", "SHORTEST µs", "LONGEST µs", is_numeric=True
    )
    # The profile lists kernels by total time, the longest first.
    for each in finding.profile.kernels[:_MOST_KERNELS]:
        table.add_row(
            each.name,
            "x".join(map(str, each.grid)),
            "x".join(map(str, each.block)),
            str(each.launches),
            _microseconds(each.total_ns),
            _microseconds(each.total_ns / each.launches),
            _microseconds(each.shortest_ns),
            _microseconds(each.longest_ns),
        )
    return table


def _microseconds(nanoseconds: float) -> str:
    return f"{nanoseconds / _MICROSECONDS:,.1f}"


def of_advice(advice: Advice) -> PlainTable:
    """Lay out each job's slowdown in each mode."""
    one_line = ("TIME-SLICE", "MPS", "CONFIDENCE", "EVIDENCE")
    table = PlainTable(*one_line, "NOT KNOWN", "JOB", no_wrap=one_line)
    for each in advice.jobs:
        table.add_row(
            f"{each.time_slice_slowdown:.2f}x",
            f"{each.mps_slowdown:.2f}x",
            each.confidence.value,
            ", ".join(each.evidence) or "none",
            ", ".join(each.unknown) or "-",
            each.signature,
        )
    return table


def verdict_of(advice: Advice) -> Sequence[str]:
    """Return lines with the best mode, its reasons, and the confidence."""
    constants = "fitted on this GPU" if advice.is_calibrated else "defaults; `pgpu calibrate` fits them on this GPU"
    found = [
        f"faster: {_FASTER[advice.faster_mode]} (MPS is {advice.gain:.2f} times as fast as taking turns)",
        f"together: {advice.mode.value}" if advice.mode in _FASTER else "not together",
        f"confidence: {advice.confidence.value}; constants: {constants}",
    ]
    if advice.reasons:
        found[1] += f"; {_DOES[advice.mode]}: {'; '.join(advice.reasons)}"
    return found


def document_of_advice(advice: Advice) -> Document:
    return document(
        mode=advice.mode.value,
        gain=advice.gain,
        faster_mode=advice.faster_mode.value,
        confidence=advice.confidence.value,
        is_calibrated=advice.is_calibrated,
        gates=list(advice.gates),
        reasons=list(advice.reasons),
        jobs=[
            {
                "signature": each.signature,
                "time_slice_slowdown": each.time_slice_slowdown,
                "mps_slowdown": each.mps_slowdown,
                "confidence": each.confidence.value,
                "evidence": [evidence.value for evidence in each.evidence],
                "unknown": list(each.unknown),
            }
            for each in advice.jobs
        ],
    )


def lines_of_calibration(constants: Constants, before: Errors, after: Errors, pairs: int) -> Sequence[str]:
    """Return lines with the fitted constants and the errors of predictions before and after."""
    values = ", ".join(f"{name} {getattr(constants, name):.3f}" for name in BOUNDS)
    off = f"off by {before.mean:.1%} on average and {before.worst:.1%} at worst"
    now = f"{after.mean:.1%} and {after.worst:.1%} on the pairs that they are fitted on"
    return (f"fitted on {pairs} pairs: {values}", f"predictions were {off}, and are now by {now}")


def lines_of_bandwidths(found: Bandwidths, gpu: Gpu) -> Sequence[str]:
    """Return lines with measured bandwidths, beside those of the link and of the data sheet."""
    sheet = model_named(gpu.name)
    link, memory = gpu.link_bytes_per_second, None if sheet is None else sheet.bandwidth_bytes_per_second
    return (
        f"host to device: {_gigabytes(found.to_device)}; {_compare(found.to_device, link, 'what the link allows')}",
        f"device to host: {_gigabytes(found.to_host)}; {_compare(found.to_host, link, 'what the link allows')}",
        f"device memory: {_gigabytes(found.memory)}; {_compare(found.memory, memory, 'the data sheet')}",
        f"kept for {gpu.uuid} with driver {gpu.driver_version}",
    )


def _gigabytes(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.1f} GB/s"


def _compare(found: float, nominal: float | None, source: str) -> str:
    if nominal is None:
        return f"{source} is not known"
    return f"{source}: {_gigabytes(nominal)} ({found / nominal:.0%} of it)"


def document_of_calibration(  # noqa: PLR0917 - the parts of one result
    constants: Constants, before: Errors, after: Errors, pairs: int, bandwidths: Bandwidths, gpu: Gpu
) -> Document:
    sheet = model_named(gpu.name)
    return document(
        constants=to_builtins(constants),
        error_before=to_builtins(before),
        error_after=to_builtins(after),
        pairs=pairs,
        gpu_uuid=gpu.uuid,
        driver_version=gpu.driver_version,
        bandwidths=to_builtins(bandwidths),
        link_bytes_per_second=gpu.link_bytes_per_second,
        sheet_memory_bytes_per_second=None if sheet is None else sheet.bandwidth_bytes_per_second,
    )
