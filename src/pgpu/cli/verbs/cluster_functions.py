"""Functions on a cluster: what `pgpu function deploy|ls|undeploy` does with `--runtime kubernetes`.

Options that only a server of pgpu has (tokens, parts of the traffic, parked replicas) are errors here.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgpu.cli.output import console
from pgpu.cli.verbs.function_calls import read_declaration
from pgpu.errors import RequestError
from pgpu.structs import Struct
from pgpu.units import quoted

if TYPE_CHECKING:
    from pgpu.kubernetes.api import DynamicClient
    from pgpu.kubernetes.deploy import Workload
    from pgpu.kubernetes.deploy.apply import DeployOutcome

RUNTIME = "kubernetes"

Runtime = Annotated[
    str | None, typer.Option("--runtime", metavar="kubernetes", help="Use a cluster instead of the server.")
]
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", metavar="NAMESPACE", help="On Kubernetes: namespace [that of the context]."),
]
AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A", help="On Kubernetes: all namespaces.")]
Context = Annotated[
    str | None,
    typer.Option("--context", metavar="CONTEXT", help="On Kubernetes: context of the kubeconfig [the current one]."),
]
Kubeconfig = Annotated[
    Path | None,
    typer.Option("--kubeconfig", metavar="FILE", help="On Kubernetes: which cluster [KUBECONFIG, ~/.kube/config]."),
]
SourceInImage = Annotated[
    str | None,
    typer.Option("--source-in-image", metavar="DIR", help="On Kubernetes: directory of the source in the image."),
]
Cpu = Annotated[
    str | None, typer.Option("--cpu", metavar="AMOUNT", help="On Kubernetes: requested CPU time, such as 2 [250m].")
]
Autoscale = Annotated[
    bool,
    typer.Option("--autoscale", help="On Kubernetes: scale by CPU time from --min to --max."),
]
Knative = Annotated[
    bool | None,
    typer.Option("--knative/--no-knative", hidden=True),
]
Recreate = Annotated[
    bool,
    typer.Option("--recreate", help="On Kubernetes: end the old version before the new one starts."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="On Kubernetes: print the manifests; contact no cluster.")]
Output = Annotated[
    str | None,
    typer.Option("--output", "-o", metavar="yaml|json", help="On Kubernetes: format of --dry-run, which it implies."),
]
Force = Annotated[bool, typer.Option("--force", help="On Kubernetes: take over fields of other managers.")]


class Cluster(Struct, frozen=True):
    """Which cluster and namespace, as given on the command line."""

    namespace: str | None = None
    context: str | None = None
    kubeconfig: Path | None = None
    is_everywhere: bool = False


class ClusterDeployment(Struct, frozen=True):
    """The options of `pgpu function deploy --runtime kubernetes`."""

    app: str
    name: str | None
    image: str | None
    flags: Mapping[str, object]
    """Options that override the declaration, by name."""

    cluster: Cluster
    source_in_image: str | None = None
    cpu: str | None = None
    is_autoscaled: bool = False
    knative: bool | None = None
    ends_before_it_starts: bool = False
    is_forced: bool = False
    output: str | None = None
    """`yaml` or `json` to print the manifests and do nothing else."""


def is_on_cluster(runtime: str | None, **words: object) -> bool:
    """Whether the runtime is a cluster.

    Raises:
        RequestError: It is not, and an option for clusters was given.
    """
    if runtime == RUNTIME:
        return True
    for word, value in words.items():
        if value is not None and value is not False:
            raise RequestError(f"--{word.replace('_', '-')} is for clusters", hint="add --runtime kubernetes")
    return False


def deploy(deployment: ClusterDeployment, *, requirements: Path | None, rolls_out: bool, as_json: bool) -> None:
    """Deploy a function to a cluster, or print what would be applied."""
    from pgpu.app.kubernetes_functions import Packaging, differences, require_kubernetes, workload_of

    _refuse_server_options(deployment, requirements, rolls_out=rolls_out)
    require_kubernetes()
    if deployment.image is None:
        raise RequestError(
            "the runtime kubernetes needs an image",
            hint="one with pgpu and its extra functions: docs/guide/functions.md#on-kubernetes",
        )
    place, name, declaration = read_declaration(deployment.app, deployment.name, deployment.flags)
    packaging = Packaging(
        deployment.image,
        deployment.source_in_image,
        deployment.cluster.namespace,
        deployment.cpu,
        is_autoscaled=deployment.is_autoscaled,
        ends_before_it_starts=deployment.ends_before_it_starts,
    )
    workload = workload_of(place, name, declaration, packaging)
    if deployment.output:
        _print_manifests(deployment.output, workload)
    else:
        _apply_workload(deployment, workload, as_json=as_json)
    for line in differences(declaration, packaging):
        console.print_note(line)


def list_functions(cluster: Cluster, name: str | None, *, as_json: bool) -> None:
    """List the functions of a cluster, or one."""
    from pgpu.cli.output import function_tables
    from pgpu.errors import FunctionNotFoundError
    from pgpu.kubernetes.deploy.function_status import deployed_functions

    with _open_cluster(cluster) as (objects, namespace):
        found = deployed_functions(objects, None if cluster.is_everywhere else namespace, name or "")
    if name is not None and not found:
        raise FunctionNotFoundError(
            f"{namespace} has no function {quoted(name)}", hint="name another one with --namespace"
        )
    if as_json:
        console.print_json(function_tables.document_of_cluster_functions(found))
    else:
        console.print_table(function_tables.of_cluster_functions(found))


def undeploy(cluster: Cluster, name: str) -> None:
    """Remove a function from a cluster."""
    from pgpu.kubernetes.deploy.apply import undeploy as remove

    with _open_cluster(cluster) as (objects, namespace):
        for done in remove(objects, name, namespace):
            console.print_note(f"{done.kind} {done.name} {done.word}")
    console.print_note(f"{name} is gone from {namespace}; its replicas finish what they have")


@contextmanager
def _open_cluster(cluster: Cluster) -> "Iterator[tuple[DynamicClient, str]]":
    from pgpu.app.kubernetes_functions import open_objects, require_kubernetes

    # Checked before the next import, which needs the libraries and would fail with a traceback.
    require_kubernetes()
    from pgpu.kubernetes.deploy import check_namespace

    namespace = None if cluster.namespace is None else check_namespace(cluster.namespace)
    objects = open_objects(cluster.kubeconfig, cluster.context)
    try:
        yield objects, namespace or objects.namespace
    finally:
        objects.close()


def _apply_workload(deployment: ClusterDeployment, workload: "Workload", *, as_json: bool) -> None:
    from pgpu.cli.output import function_tables
    from pgpu.kubernetes.deploy.apply import deploy as apply

    with _open_cluster(deployment.cluster) as (objects, namespace):
        outcome: DeployOutcome = apply(objects, workload, namespace, is_forced=deployment.is_forced)
    for done in outcome.done:
        console.print_note(f"{done.kind} {done.name} {done.word}")
    for line in outcome.remarks:
        console.print_note(line)
    if as_json:
        console.print_json(function_tables.document_of_outcome(outcome))
    else:
        print(outcome.url)


def _print_manifests(output: str, workload: "Workload") -> None:
    from pgpu.kubernetes.deploy import as_json, as_yaml, manifests

    writers = {"yaml": as_yaml, "json": as_json}
    if output not in writers:
        raise RequestError(f"{quoted(output)} is not a format of manifests", hint="--output yaml or json")
    print(writers[output](manifests(workload)), end="")


def _refuse_server_options(deployment: ClusterDeployment, requirements: Path | None, *, rolls_out: bool) -> None:
    if requirements is not None:
        raise RequestError(
            "nothing is installed on a cluster: packages stand in the image",
            hint="pip install -r them in its Containerfile",
        )
    if not rolls_out:
        raise RequestError("a cluster rolls a new version out at once", hint="kubectl rollout pause")
    if deployment.flags.get("network") is not None:
        raise RequestError("a pod's network is the cluster's", hint="close it by a NetworkPolicy")
    if deployment.knative:
        raise RequestError(
            "functions are not deployed to Knative any more, which takes no claims of GPUs",
            hint="leave --knative out: a Deployment, with --autoscale",
        )
    if deployment.cpu is not None:
        number = deployment.cpu.removesuffix("m")
        if not (number.isascii() and number.isdecimal() and int(number[:9]) > 0):
            raise RequestError(f"{quoted(deployment.cpu)} is not an amount of CPU time", hint="write it like 2 or 500m")
