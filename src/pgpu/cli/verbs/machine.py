"""Verbs for the machine: `gpus`, `top` with a live view, `doctor`, and `version` for bug reports."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgpu.cli import exits
from pgpu.cli.invocation import Invocation
from pgpu.cli.listings import LIST_OPTIONS, Kind, ListOptions, print_listing
from pgpu.cli.option_table import JSON, Option, OptionKind, takes
from pgpu.cli.output import console, documents
from pgpu.distribution import extra_hint, installed_version
from pgpu.errors import RequestError
from pgpu.structs import Struct, to_builtins

if TYPE_CHECKING:
    from rich.console import Group

    from pgpu.client import Client, GpuReport, JobReport
    from pgpu.model.finding import Finding

_REFRESH_SECONDS = 1.0
_MARKS = {"ok": ("ok", "32"), "warning": ("warn", "33"), "failure": ("FAIL", "31")}


class SortOrder(Struct, frozen=True):
    """One way to sort jobs in the live view."""

    key: str
    """The key that chooses it."""

    name: str
    sort_key: "Callable[[JobReport], Any]"


SORT_ORDERS = (
    SortOrder("u", "use", lambda report: -sum(use.used_bytes for use in report.use)),
    SortOrder("m", "memory asked", lambda report: -report.job.request.memory_bytes * report.job.request.gpu_count),
    SortOrder("a", "age", lambda report: report.job.created_at_seconds),
    SortOrder("n", "name", lambda report: (report.job.spec.name or "", report.job.id)),
)


@takes(*LIST_OPTIONS, JSON)
def gpus(invocation: Invocation, **given: Any) -> None:
    """Show each GPU: memory used, granted and free, and jobs.

    The last column names what enforces the slices on it.
    """
    options = ListOptions(**given)
    settings = invocation.settings()
    client = invocation.make_client(settings)
    found: Sequence[GpuReport] = ()

    def read() -> "Sequence[GpuReport]":
        nonlocal found
        found = client.gpus()
        return found

    def notes() -> Iterator[str]:
        if not found:
            yield "no GPU was found; `pgpu doctor` reports why, and --simulate 'RTX 3090' before the verb simulates one"
        yield from tables.notes_of_outsiders(each for report in found for each in report.outsiders)
        for line in tables.notes_of_enforcers(found):
            if is_new_notice(settings.state_dir, line):
                yield line

    from pgpu.cli.output import tables
    from pgpu.cli.output.notices import is_new_notice

    kind = Kind(
        lambda reports, is_uncut: tables.of_gpus(reports, is_uncut=is_uncut),
        documents.of_gpus,
        lambda report: (report.gpu.uuid, ""),
    )
    print_listing(options, kind, read, notes)


@takes(JSON)
def top(invocation: Invocation, *, as_json: bool) -> None:
    """Watch GPUs and jobs, refreshed each second.

    Keys sort by use (u), slice (m), age (a) or name (n); q quits. Into a pipe, it prints once.
    """
    client = invocation.client()
    if as_json:
        console.print_json(documents.of_top(client.gpus(), client.jobs(include_final=False)))
    elif sys.stdout.isatty() and sys.stdin.isatty():
        _watch(client)
    else:
        console.print_table(_render(client, SORT_ORDERS[0]))


def _render(client: "Client", order: SortOrder) -> "Group":
    from rich.console import Group
    from rich.text import Text

    from pgpu.cli.output import tables

    # Sorting is stable: jobs with equal keys do not change places from one frame to the next.
    jobs = sorted(client.jobs(include_final=False), key=order.sort_key)
    keys = "  ".join(f"{each.key} {each.name}" for each in SORT_ORDERS)
    return Group(
        tables.of_gpus(client.gpus()),
        Text(),
        tables.of_jobs(jobs, is_uncut=False),
        Text(),
        Text(f"sorted by {order.name} · {keys} · q quit", style="dim"),
    )


def _watch(client: "Client") -> None:
    """Draw each second and after each key, until q is pressed or the input ends."""
    import select

    from rich.live import Live

    order = SORT_ORDERS[0]
    with _unbuffered_keys(), Live(_render(client, order), screen=True, auto_refresh=False) as live:
        while True:
            # Select and read the descriptor itself: a buffered stdin could hold a key that select does not see.
            ready, _, _ = select.select([sys.stdin], [], [], _REFRESH_SECONDS)
            key = os.read(sys.stdin.fileno(), 1).decode("ascii", "replace").lower() if ready else None
            # An empty read is the end of the input: the terminal was closed.
            if key in {"q", ""}:
                return
            order = next((each for each in SORT_ORDERS if each.key == key), order)
            live.update(_render(client, order), refresh=True)


@contextmanager
def _unbuffered_keys() -> Iterator[None]:
    """Put the terminal into cbreak mode without echo, and restore it at the end."""
    import termios
    import tty

    # Restored after Ctrl-C too: a shell in cbreak mode would not show what is typed.
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


@takes(
    Option("image", OptionKind.TEXT, ("--image",), "Also try a slice in a container of this image.", "IMAGE"),
    Option("kubernetes", OptionKind.FLAG, ("--kubernetes",), "Check a Kubernetes cluster instead of this machine."),
    Option("pod", OptionKind.TEXT, ("--pod",), "With --kubernetes: explain why a pod waits.", "NAMESPACE/NAME"),
    Option(
        "kubeconfig",
        OptionKind.TEXT,
        ("--kubeconfig",),
        "With --kubernetes: which cluster [as kubectl finds it].",
        "FILE",
    ),
    JSON,
)
def doctor(
    invocation: Invocation,
    *,
    image: str | None,
    kubernetes: bool,
    pod: str | None,
    kubeconfig: str | None,
    as_json: bool,
) -> int:
    """Check this machine or a cluster, with remedies for faults.

    Exits with 1 if jobs cannot run.
    """
    if kubernetes:
        if image is not None:
            raise RequestError("--image is tried on this machine", hint="leave out --kubernetes")
        return _print_findings(_check_cluster(pod, None if kubeconfig is None else Path(kubeconfig)), as_json=as_json)
    if pod is not None or kubeconfig is not None:
        raise RequestError("--pod and --kubeconfig are for a cluster", hint="add --kubernetes")
    from pgpu.app.machine_checks import examine

    return _print_findings(examine(invocation.settings(), image), as_json=as_json)


@takes(JSON)
def version(_invocation: Invocation, *, as_json: bool) -> None:
    """Print the versions of pgpu, Python and Linux."""
    import platform

    versions = {"pgpu": installed_version(), "python": platform.python_version(), "linux": platform.release()}
    if as_json:
        console.print_json(documents.document(versions=versions))
        return
    for name, number in versions.items():
        print(f"{name} {number}")


def _check_cluster(pod: str | None, kubeconfig: Path | None) -> "Iterator[Finding]":
    try:
        from pgpu.kubernetes.api.api_connection import connect, default_kubeconfig
        from pgpu.kubernetes.api.cluster import ClusterInspector
        from pgpu.kubernetes.doctor import check_cluster, explain_pending_pod
    except ModuleNotFoundError as exc:
        raise RequestError(f"{exc.name} is not installed", hint=extra_hint("kubernetes")) from exc
    with closing(ClusterInspector(connect(default_kubeconfig(kubeconfig)))) as cluster:
        if pod is None:
            yield from check_cluster(cluster)
        else:
            namespace, _, name = pod.rpartition("/")
            yield from explain_pending_pod(cluster, namespace or "default", name)


def _print_findings(findings: "Iterable[Finding]", *, as_json: bool) -> int:
    """Print each finding as soon as its check is done; return the exit code."""
    printed = []
    for finding in findings:
        printed.append(finding)
        if not as_json:
            word, colour = _MARKS[finding.result.value]
            mark = f"\033[{colour}m{word:4}\033[0m" if sys.stdout.isatty() else f"{word:4}"
            print(f"{mark}  {finding.name}: {finding.finding}", flush=True)
            if finding.remedy:
                print(f"      mend it: {finding.remedy}", flush=True)
    is_healthy = all(finding.result.value != "failure" for finding in printed)
    if as_json:
        checks = [to_builtins(finding) for finding in printed]
        console.print_json(documents.document(is_healthy=is_healthy, checks=checks))
    return exits.OK if is_healthy else exits.CHECK_FAILED
