"""`pgpu doctor`: what works here, or in a cluster, and how to mend what does not."""

import dataclasses
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgpu.cli import exits, options
from pgpu.cli.invocation import invocation_of
from pgpu.cli.output import console, documents
from pgpu.distribution import extra_hint
from pgpu.errors import RequestError

if TYPE_CHECKING:
    from pgpu.model.finding import Finding

_MARKS = {"ok": ("ok", "32"), "warning": ("warn", "33"), "failure": ("FAIL", "31")}


def doctor(
    context: typer.Context,
    *,
    image: Annotated[
        str | None, typer.Option("--image", metavar="IMAGE", help="Try a slice in a container of this image, too.")
    ] = None,
    kubernetes: Annotated[
        bool, typer.Option("--kubernetes", help="Check what pgpu needs of a Kubernetes cluster instead.")
    ] = False,
    pod: Annotated[
        str | None,
        typer.Option("--pod", metavar="NAMESPACE/NAME", help="With --kubernetes: say what a pod waits for instead."),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            "--kubeconfig", metavar="FILE", help="With --kubernetes: which cluster, if not the one kubectl would ask."
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Check what pgpu needs of this machine and say how to mend what is missing; exits with 1 if jobs cannot run."""
    if kubernetes:
        if image is not None:
            raise RequestError("--image is tried on this machine", hint="leave out --kubernetes")
        _tell(_of_cluster(pod, kubeconfig), as_json=as_json)
    if pod is not None or kubeconfig is not None:
        raise RequestError("--pod and --kubeconfig are for a cluster", hint="add --kubernetes")

    from pgpu.app.doctor import examine

    _tell(examine(invocation_of(context).settings(), image), as_json=as_json)


def _of_cluster(pod: str | None, kubeconfig: Path | None) -> "Iterator[Finding]":
    try:
        from pgpu.kubernetes.api.cluster_inspector import ClusterInspector
        from pgpu.kubernetes.api.credentials import connect
        from pgpu.kubernetes.api.kubeconfig import default_kubeconfig
        from pgpu.kubernetes.doctor import check_cluster, explain_pending_pod
    except ModuleNotFoundError as exc:
        raise RequestError(f"{exc.name} is not installed", hint=extra_hint("kubernetes")) from exc
    with closing(ClusterInspector(connect(default_kubeconfig(kubeconfig)))) as cluster:
        if pod is None:
            yield from check_cluster(cluster)
        else:
            namespace, _, name = pod.rpartition("/")
            yield from explain_pending_pod(cluster, namespace or "default", name)


def _tell(findings: "Iterable[Finding]", *, as_json: bool) -> None:
    told = []
    for finding in findings:
        told.append(finding)
        if not as_json:
            _print(finding)
    is_healthy = all(finding.result.value != "failure" for finding in told)
    if as_json:
        checks = [dataclasses.asdict(finding) for finding in told]
        console.print_json(documents.document(is_healthy=is_healthy, checks=checks))
    raise typer.Exit(exits.OK if is_healthy else exits.CHECK_FAILED)


def _print(finding: "Finding") -> None:
    word, colour = _MARKS[finding.result.value]
    mark = f"\033[{colour}m{word:4}\033[0m" if sys.stdout.isatty() else f"{word:4}"
    print(f"{mark}  {finding.name}: {finding.finding}", flush=True)
    if finding.remedy:
        print(f"      mend it: {finding.remedy}", flush=True)
