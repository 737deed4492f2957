"""Tables and JSON documents of what is on a cluster: functions, and the pods of a node. Fields are only ever added."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from pgpu.cli.output.documents import Document, document
from pgpu.cli.output.plain_table import PlainTable
from pgpu.units import format_memory, format_share

if TYPE_CHECKING:
    from pgpu.kubernetes.deploy.apply import DeployOutcome
    from pgpu.kubernetes.deploy.function_status import DeployedFunction
    from pgpu.kubernetes.pod_shares import SeenShare


def of_functions(found: "Sequence[DeployedFunction]") -> Table:
    """Lay out functions, one on each line."""
    table = PlainTable("FUNCTION", "NAMESPACE", "STATE", "READY", "PLATFORM", "SLICE", "IMAGE", "URL", "REASON")
    for each in found:
        counted = f"{each.ready}/{each.replicas}"
        row = (each.name, each.namespace, _state(each), counted, each.platform.value, each.slice, each.image, each.url)
        table.add_row(*row, "; ".join(each.reasons))
    return table


def document_of(found: "Iterable[DeployedFunction]") -> Document:
    """Describe functions, in the order given."""
    return document(functions=[{**dataclasses.asdict(each), "reasons": list(each.reasons)} for each in found])


def document_of_outcome(outcome: "DeployOutcome") -> Document:
    """Describe a deployed function and the result for each of its objects."""
    return document(
        function={
            "name": outcome.name,
            "namespace": outcome.namespace,
            "platform": outcome.platform.value,
            "url": outcome.url,
            "objects": [dataclasses.asdict(done) for done in outcome.done],
        }
    )


def _state(function: "DeployedFunction") -> Text:
    if function.ready and not function.reasons:
        return Text("ready", style="green")
    if not function.replicas and not function.reasons:
        return Text("idle")
    return Text("serving" if function.ready else "not ready", style="yellow" if function.ready else "red")


def of_pods(seen: "Sequence[SeenShare]") -> Table:
    """Lay out the slices of a node's containers, one on each line; `-` for a pod that the kubelet does not list."""
    table = PlainTable(
        *("NAMESPACE", "POD", "CONTAINER", "CLAIM", "GPU", "USED", "LIMIT", "PEAK", "REFUSED", "COMPUTE", "JOB")
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
