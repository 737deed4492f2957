"""Tables of GPUs and of the slices of a node's pods, the notes below them, and the line above a table of what is simulated."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pgpu.cli.output.plain_table import NEVER_DROPPED, Column, FittedTable, PlainTable, Styled
from pgpu.client import GpuReport
from pgpu.model import Outsider
from pgpu.units import format_memory, format_share, format_use

if TYPE_CHECKING:
    from pgpu.kubernetes.pod_shares import SeenShare

_GPUS = (
    Column("GPU", NEVER_DROPPED, is_always=True),
    Column("NAME", 70, least=12, is_always=True),
    Column("UUID", 20, is_always=True),
    Column("MEMORY used/all", 95, is_always=True),
    Column("GRANTED", 85, is_always=True),
    Column("GRANTABLE", 80, is_always=True),
    Column("OUTSIDE", 90),
    Column("BUSY", 75, is_always=True),
    Column("COMPUTE", 55),
    Column("MODE", 50),
    Column("JOBS", 65, is_always=True),
    Column("ENFORCER", 60, is_always=True),
)


def simulated_heading(models: Iterable[str | None]) -> str | None:
    """Return the line above a table of what is on simulated GPUs; None if nothing is.

    Args:
        models: Of the rows, None for a real GPU.
    """
    found = sorted({model for model in models if model is not None})
    return f"simulated GPUs ({', '.join(found)}): kernels compute nothing" if found else None


def short_gpu_name(name: str) -> str:
    return name.removeprefix("NVIDIA ").removeprefix("GeForce ")


def of_gpus(reports: Iterable[GpuReport], *, is_uncut: bool = False) -> FittedTable:
    """Lay out GPUs, one on each line."""
    found = list(reports)
    heading = simulated_heading(report.gpu.name if report.gpu.is_simulated else None for report in found)
    table = FittedTable(_GPUS, heading=heading, is_uncut=is_uncut)
    for report in found:
        gpu = report.gpu
        # The driver does not report the memory of every process; a partial sum would mislead.
        known = [each.used_bytes for each in report.outsiders if each.used_bytes is not None]
        held = format_memory(sum(known)) if len(known) == len(report.outsiders) else "?"
        outside_cell = f"{held} ({len(report.outsiders)})" if report.outsiders else ""
        table.add_row(
            gpu.place,
            short_gpu_name(gpu.name),
            gpu.uuid,
            format_use(report.used_bytes, gpu.memory_bytes),
            format_memory(report.granted_bytes),
            format_memory(max(0, report.capacity_bytes - report.granted_bytes)),
            Styled(outside_cell, "red"),
            "?" if report.utilisation_percent is None else f"{report.utilisation_percent} %",
            format_share(report.granted_compute) if report.granted_compute else "",
            "" if report.sharing is None else report.sharing.value,
            str(len(report.jobs)),
            report.enforcer,
        )
    return table


def of_pods(seen: "Sequence[SeenShare]") -> PlainTable:
    """Lay out the slices of a node's containers, one on each line; `-` for a pod that the kubelet does not list."""
    table = PlainTable(
        *("NAMESPACE", "POD", "CONTAINER", "CLAIM", "GPU", "USED", "LIMIT", "PEAK", "REFUSED", "COMPUTE", "JOB"),
        heading=simulated_heading((each.gpu or "").partition(" ")[2] if each.is_simulated else None for each in seen),
    )
    for each in seen:
        share = each.share
        table.add_row(
            share.namespace or "-",
            share.pod or "-",
            share.container or "-",
            share.claim or "-",
            each.gpu or f"gone: {share.gpu_uuid}",
            _memory_or_unknown(share.memory_used_bytes),
            format_memory(share.memory_limit_bytes),
            _memory_or_unknown(share.memory_peak_bytes),
            "?" if share.refusals is None else str(share.refusals),
            "" if share.compute_share is None else format_share(share.compute_share),
            share.job_id,
        )
    return table


def _memory_or_unknown(amount_bytes: int | None) -> str:
    return "?" if amount_bytes is None else format_memory(amount_bytes)


def notes_of_outsiders(outsiders: Iterable[Outsider]) -> Sequence[str]:
    """Return a line for each process that holds memory without a lease."""
    return [
        f"process {each.process.pid} ({each.program or '?'}) of user {each.uid} holds "
        f"{'memory' if each.used_bytes is None else format_memory(each.used_bytes)} of {each.gpu_uuid} "
        "outside of every lease"
        for each in outsiders
    ]


def notes_of_enforcers(reports: Iterable[GpuReport]) -> Sequence[str]:
    """Return a line for each enforcer with what it does not limit."""
    return sorted({f"{report.enforcer} does not cover {report.does_not_cover}" for report in reports})
