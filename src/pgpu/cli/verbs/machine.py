"""Verbs for the machine: `gpus`, `top`, `doctor`, and `version` for bug reports."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgpu.cli import exits
from pgpu.cli.invocation import Invocation
from pgpu.cli.listings import LIST_OPTIONS, Kind, ListOptions, print_listing
from pgpu.cli.option_table import JSON, Option, OptionKind, takes
from pgpu.cli.output import console, documents
from pgpu.distribution import extra_hint, installed_version
from pgpu.errors import RequestError
from pgpu.structs import to_builtins

if TYPE_CHECKING:
    from pgpu.client import GpuReport
    from pgpu.model.finding import Finding

_MARKS = {"ok": ("ok", "32"), "warning": ("warn", "33"), "failure": ("FAIL", "31")}


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
        yield from gpu_tables.notes_of_outsiders(each for report in found for each in report.outsiders)
        for line in gpu_tables.notes_of_enforcers(found):
            if is_new_notice(settings.state_dir, line):
                yield line

    from pgpu.cli.output import gpu_tables
    from pgpu.cli.output.notices import is_new_notice

    kind = Kind(
        lambda reports, is_uncut: gpu_tables.of_gpus(reports, is_uncut=is_uncut),
        documents.of_gpus,
        lambda report: (report.gpu.uuid, ""),
    )
    print_listing(options, kind, read, notes)


@takes(JSON)
def top(invocation: Invocation, *, as_json: bool) -> int:
    """Watch GPUs, slices and jobs; stop and resize them by key.

    Read anew each second; ? shows the keys. Into a pipe, or with input or errors redirected, it prints one table.
    """
    settings = invocation.settings()
    client = invocation.make_client(settings)
    if as_json:
        console.print_json(documents.of_top(client.gpus(), client.jobs(include_final=False)))
        return exits.OK
    is_dumb = os.environ.get("TERM", "dumb") in {"dumb", "unknown"}
    if not is_dumb and all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        from pgpu.app.client_factory import server_address
        from pgpu.cli.top.app import watch
        from pgpu.cli.top.target import Target
        from pgpu.client.address import TcpAddress

        address = server_address(settings)
        return watch(
            Target(
                client,
                os.uname().nodename if address is None else str(address),
                None if isinstance(address, TcpAddress) else os.geteuid(),
                settings.stop_grace,
            )
        )
    from pgpu.cli.output import gpu_tables, job_tables

    console.print_table(gpu_tables.of_gpus(client.gpus()))
    print()
    console.print_table(job_tables.of_jobs(client.jobs(include_final=False), is_uncut=False))
    return exits.OK


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
