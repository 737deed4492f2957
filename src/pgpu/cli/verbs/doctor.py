"""`pgpu doctor` checks this machine or a cluster; `pgpu version` prints versions for bug reports."""

import dataclasses
import platform
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgpu.cli import exits, options
from pgpu.cli.invocation import invocation_of
from pgpu.cli.output import console, documents
from pgpu.distribution import extra_hint, installed_version
from pgpu.errors import RequestError

if TYPE_CHECKING:
    from pgpu.model.finding import Finding

_MARKS = {"ok": ("ok", "32"), "warning": ("warn", "33"), "failure": ("FAIL", "31")}


def doctor(
    context: typer.Context,
    *,
    image: Annotated[
        str | None, typer.Option("--image", metavar="IMAGE", help="Also try a slice in a container of this image.")
    ] = None,
    kubernetes: Annotated[
        bool, typer.Option("--kubernetes", help="Check a Kubernetes cluster instead of this machine.")
    ] = False,
    pod: Annotated[
        str | None,
        typer.Option("--pod", metavar="NAMESPACE/NAME", help="With --kubernetes: explain why a pod waits."),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option("--kubeconfig", metavar="FILE", help="With --kubernetes: which cluster [as kubectl finds it]."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Check this machine or a cluster, with remedies for faults.

    Exits with 1 if jobs cannot run.
    """
    if kubernetes:
        if image is not None:
            raise RequestError("--image is tried on this machine", hint="leave out --kubernetes")
        _print_findings(_check_cluster(pod, kubeconfig), as_json=as_json)
    if pod is not None or kubeconfig is not None:
        raise RequestError("--pod and --kubeconfig are for a cluster", hint="add --kubernetes")
    from pgpu.app.doctor.examination import examine

    _print_findings(examine(invocation_of(context).settings(), image), as_json=as_json)


def version(*, as_json: options.Json = False) -> None:
    """Print the versions of pgpu, Python and Linux."""
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


def _print_findings(findings: "Iterable[Finding]", *, as_json: bool) -> None:
    """Print each finding as soon as its check is done, and exit."""
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
        checks = [dataclasses.asdict(finding) for finding in printed]
        console.print_json(documents.document(is_healthy=is_healthy, checks=checks))
    raise typer.Exit(exits.OK if is_healthy else exits.CHECK_FAILED)
