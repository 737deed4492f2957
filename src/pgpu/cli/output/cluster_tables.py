"""How functions on a cluster are shown: a table for people, and the documents of `--json`. Fields are only ever added."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from pgpu.cli.output.documents import Document, document
from pgpu.cli.output.plain_table import PlainTable

if TYPE_CHECKING:
    from pgpu.kubernetes.deploy.apply import DeployOutcome
    from pgpu.kubernetes.deploy.function_status import DeployedFunction


def table_of(found: "Sequence[DeployedFunction]") -> Table:
    """Lay functions out, one a line."""
    table = PlainTable(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("FUNCTION", "NAMESPACE", "STATE", "READY", "PLATFORM", "SLICE", "IMAGE", "URL", "REASON"):
        table.add_column(column, overflow="fold")
    for each in found:
        counted = f"{each.ready}/{each.replicas}"
        row = (each.name, each.namespace, _state(each), counted, each.platform.value, each.slice, each.image, each.url)
        table.add_row(*row, "; ".join(each.reasons))
    return table


def document_of(found: "Iterable[DeployedFunction]") -> Document:
    """Describe functions, in the order given."""
    return document(functions=[{**dataclasses.asdict(each), "reasons": list(each.reasons)} for each in found])


def document_of_outcome(outcome: "DeployOutcome") -> Document:
    """Describe a function that was deployed, and what became of each of its objects."""
    return document(
        function={
            "name": outcome.name,
            "namespace": outcome.namespace,
            "platform": outcome.platform.value,
            "url": outcome.url,
            "objects": [dataclasses.asdict(done) for done in outcome.done],
        }
    )


def _state(standing: "DeployedFunction") -> Text:
    if standing.ready and not standing.reasons:
        return Text("ready", style="green")
    if not standing.replicas and not standing.reasons:
        return Text("idle")
    return Text("serving" if standing.ready else "not ready", style="yellow" if standing.ready else "red")
