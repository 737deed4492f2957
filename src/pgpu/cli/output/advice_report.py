"""Tables, lines and JSON documents of `pgpu advise` and `pgpu calibrate`."""

from collections.abc import Sequence
from dataclasses import asdict

from rich.table import Table
from rich.text import Text

from pgpu.advising.advice import Advice
from pgpu.advising.constants_fit import BOUNDS, Errors
from pgpu.advising.contention import Constants
from pgpu.cli.output.documents import Document, document
from pgpu.cli.output.plain_table import PlainTable
from pgpu.gpu.catalog import model_named
from pgpu.model import Bandwidths, Gpu, SharingMode

_FASTER = {SharingMode.MPS: "under MPS", SharingMode.TIME_SLICE: "in turns"}
_DOES = {
    SharingMode.TIME_SLICE: "pgpu shares this GPU by time slices",
    SharingMode.EXCLUSIVE: "pgpu runs one after the other",
}


def of_advice(advice: Advice) -> Table:
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
            Text(each.signature),
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


def document_of(advice: Advice) -> Document:
    """Describe advice for `--json`."""
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
        f"host to device: {_gigabytes(found.to_device)}; {_beside(found.to_device, link, 'what the link allows')}",
        f"device to host: {_gigabytes(found.to_host)}; {_beside(found.to_host, link, 'what the link allows')}",
        f"device memory: {_gigabytes(found.memory)}; {_beside(found.memory, memory, 'the data sheet')}",
        f"kept for {gpu.uuid} with driver {gpu.driver_version}",
    )


def _gigabytes(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.1f} GB/s"


def _beside(found: float, nominal: float | None, source: str) -> str:
    if nominal is None:
        return f"{source} is not known"
    return f"{source}: {_gigabytes(nominal)} ({found / nominal:.0%} of it)"


def document_of_calibration(  # noqa: PLR0917 - the parts of one result
    constants: Constants, before: Errors, after: Errors, pairs: int, bandwidths: Bandwidths, gpu: Gpu
) -> Document:
    """Describe a calibration for `--json`."""
    sheet = model_named(gpu.name)
    return document(
        constants=asdict(constants),
        error_before=asdict(before),
        error_after=asdict(after),
        pairs=pairs,
        gpu_uuid=gpu.uuid,
        driver_version=gpu.driver_version,
        bandwidths=asdict(bandwidths),
        link_bytes_per_second=gpu.link_bytes_per_second,
        sheet_memory_bytes_per_second=None if sheet is None else sheet.bandwidth_bytes_per_second,
    )
