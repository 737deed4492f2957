"""The containers of a node's pods that have slices, laid out for people."""

from collections.abc import Sequence

from rich.table import Table

from pgpu.cli.output.plain_table import PlainTable
from pgpu.kubernetes.driver_client import SeenShare
from pgpu.units import format_memory, format_share

_COLUMNS = ("NAMESPACE", "POD", "CONTAINER", "CLAIM", "GPU", "USED", "LIMIT", "PEAK", "REFUSED", "COMPUTE", "JOB")
_NOBODY = "-"


def table_of(seen: Sequence[SeenShare]) -> Table:
    """Lay out slices, one a line; `-` for a pod that the kubelet does not show."""
    table = PlainTable(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in _COLUMNS:
        table.add_column(column, overflow="fold")
    for each in seen:
        share = each.share
        table.add_row(
            share.namespace or _NOBODY,
            share.pod or _NOBODY,
            share.container or _NOBODY,
            share.claim or _NOBODY,
            each.gpu or f"gone: {share.gpu_uuid}",
            _memory(share.memory_used_bytes),
            format_memory(share.memory_limit_bytes),
            _memory(share.memory_peak_bytes),
            "?" if share.refusals is None else str(share.refusals),
            "" if share.compute_share is None else format_share(share.compute_share),
            share.job_id,
        )
    return table


def _memory(amount_bytes: int | None) -> str:
    return "?" if amount_bytes is None else format_memory(amount_bytes)
