"""Tables and JSON documents of functions, on a server and on a cluster. Fields are only ever added."""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pgpu.cli.output.documents import Document, document
from pgpu.cli.output.gpu_tables import simulated_heading
from pgpu.cli.output.plain_table import PlainTable, Styled
from pgpu.model import (
    COLD_START_PHASES,
    ColdStart,
    Function,
    FunctionToken,
    Replica,
    ReplicaState,
    Version,
    VersionState,
)
from pgpu.structs import to_builtins
from pgpu.units import format_duration, format_memory, format_share

if TYPE_CHECKING:
    from pgpu.kubernetes.deploy.apply import DeployOutcome
    from pgpu.kubernetes.deploy.function_status import DeployedFunction

Served = tuple[Function, Sequence[Replica]]
_STYLES = {VersionState.READY: "green", VersionState.PENDING: "yellow", VersionState.FAILED: "red"}


def of_functions(served: Iterable[Served], models: Iterable[str]) -> PlainTable:
    """Lay out functions, one on each line; `models` are those of the simulated GPUs of their machine."""
    columns = ("FUNCTION", "TRAFFIC", "STATE", "REPLICAS", "RUNTIME", "APP")
    table = PlainTable(*columns, heading=simulated_heading(models))
    for function, replicas in served:
        last = function.versions[-1]
        runtime = last.image or last.runtime
        state, _ = _state(last, [replica for replica in replicas if replica.version == last.number])
        table.add_row(function.name, traffic(function), state, _count_replicas(replicas), runtime, last.app)
    return table


def of_versions(function: Function, replicas: Sequence[Replica], models: Iterable[str]) -> PlainTable:
    """Lay out a function's versions, the newest first; `models` as for `of_functions`."""
    columns = ("VERSION", "TRAFFIC", "STATE", "REPLICAS", "RUNTIME", "DECLARES", "REASON")
    table = PlainTable(*columns, heading=simulated_heading(models))
    shares = {share.version: f"{share.percent} %" for share in function.traffic}
    for version in reversed(function.versions):
        own = [replica for replica in replicas if replica.version == version.number]
        state, reason = _state(version, own)
        row = (
            version.label,
            shares.get(version.number, ""),
            state,
            _count_replicas(own),
            version.image or version.runtime,
        )
        table.add_row(*row, _format_declaration(version), reason)
    return table


def of_starts(starts: Sequence[ColdStart], models: Iterable[str]) -> PlainTable:
    """Lay out cold starts, the newest first, with a column for each phase; `models` as for `of_functions`."""
    # Phases differ between starts: one that was restored from a parked state has no imports.
    seen = {name for start in starts for name, _ in start.phases}
    phases = [name for name in COLD_START_PHASES if name in seen]
    columns = ("VERSION", "JOB", "TOTAL", *(name.upper().replace("_", " ") for name in phases))
    table = PlainTable(*columns, heading=simulated_heading(models))
    for start in starts:
        took = dict(start.phases)
        cells = [_milliseconds(took.get(name)) for name in phases]
        label = f"{start.function}@{start.version}"
        table.add_row(label, start.job_id, _milliseconds(sum(took.values())), *cells)
    return table


def of_tokens(tokens: Iterable[FunctionToken]) -> PlainTable:
    """Lay out tokens, one on each line."""
    table, now_seconds = PlainTable("ID", "LABEL", "AGE", "EXPIRES"), time.time()
    for token in tokens:
        end_seconds = token.expires_at_seconds
        end = "" if end_seconds is None else f"in {format_duration(max(end_seconds - now_seconds, 0))}"
        table.add_row(token.id, token.label, format_duration(max(now_seconds - token.created_at_seconds, 0)), end)
    return table


def traffic(function: Function) -> str:
    """Format the parts of the traffic: `@2 90 %, @1 10 %`."""
    return ", ".join(f"@{share.version} {share.percent} %" for share in function.traffic)


def document_of(served: Iterable[Served]) -> Document:
    """Describe functions, in the order given."""
    functions = [
        {
            "name": function.name,
            "owner_uid": function.owner_uid,
            "created_at_seconds": function.created_at_seconds,
            "versions": [_version(version) for version in function.versions],
            "traffic": [{"version": share.version, "percent": share.percent} for share in function.traffic],
            "replicas": [to_builtins(replica) for replica in replicas],
        }
        for function, replicas in served
    ]
    return document(functions=functions)


def document_of_version(version: Version) -> Document:
    return document(version=_version(version))


def document_of_starts(starts: Iterable[ColdStart]) -> Document:
    """Describe cold starts, in the order given."""
    return document(cold_starts=[{**to_builtins(start), "phases": dict(start.phases)} for start in starts])


def document_of_tokens(tokens: Iterable[FunctionToken]) -> Document:
    """Describe tokens, without their secret parts."""
    return document(tokens=[to_builtins(token) for token in tokens])


def _version(version: Version) -> dict[str, Any]:
    return {**to_builtins(version), "declaration": json.loads(version.declaration)}


def _state(version: Version, replicas: Sequence[Replica]) -> tuple[Styled, str]:
    """Return a version's state and its reason; if all its replicas failed, it is failing in any state."""
    if replicas and all(replica.state is ReplicaState.FAILED for replica in replicas):
        return Styled("failing", "red"), f"it does not start: pgpu logs {version.function}"
    return Styled(version.state.value, _STYLES[version.state]), version.reason or ""


def _format_declaration(version: Version) -> str:
    """Format a declaration with units: `memory 2 GiB, timeout 30s`."""
    parts = []
    for name, value in json.loads(version.declaration).items():
        text = value if isinstance(value, str) else json.dumps(value)
        parts.append(f"{name} {_FORMATS[name](value) if name in _FORMATS else text}")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    return format_duration(seconds) if seconds == int(seconds) else f"{seconds:g}s"


_FORMATS: dict[str, Callable[[Any], str]] = {
    "memory": format_memory,
    "host_memory": format_memory,
    "max_body": format_memory,
    "compute": format_share,
    "timeout": _duration,
    "startup_timeout": _duration,
    "scale_to_zero_after": _duration,
    "max_wait": _duration,
}
"""How numbers with units are formatted."""


def _count_replicas(replicas: Sequence[Replica]) -> str:
    """Format the number of hot replicas and of all: `1/2`."""
    hot = sum(replica.state is ReplicaState.HOT for replica in replicas)
    return f"{hot}/{len(replicas)}" if replicas else "0"


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:.1f} ms"


def of_cluster_functions(found: "Sequence[DeployedFunction]") -> PlainTable:
    """Lay out functions, one on each line."""
    table = PlainTable("FUNCTION", "NAMESPACE", "STATE", "READY", "PLATFORM", "SLICE", "IMAGE", "URL", "REASON")
    for each in found:
        if each.ready and not each.reasons:
            state: Styled | str = Styled("ready", "green")
        elif not each.replicas and not each.reasons:
            state = "idle"
        else:
            state = Styled("serving", "yellow") if each.ready else Styled("not ready", "red")
        counted = f"{each.ready}/{each.replicas}"
        row = (each.name, each.namespace, state, counted, each.platform.value, each.slice, each.image, each.url)
        table.add_row(*row, "; ".join(each.reasons))
    return table


def document_of_cluster_functions(found: "Iterable[DeployedFunction]") -> Document:
    """Describe functions, in the order given."""
    return document(functions=[{**to_builtins(each), "reasons": list(each.reasons)} for each in found])


def document_of_outcome(outcome: "DeployOutcome") -> Document:
    """Describe a deployed function and the result for each of its objects."""
    return document(
        function={
            "name": outcome.name,
            "namespace": outcome.namespace,
            "platform": "deployment",
            "url": outcome.url,
            "objects": [to_builtins(done) for done in outcome.done],
        }
    )
