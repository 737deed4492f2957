"""`pgpu deploy` and what follows it: versions and traffic of functions, the end of them, and the tokens that may call.

It refuses to import the user's code: a process of its own is asked what it declares.
"""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal, cast

import typer

from pgpu.cli import options
from pgpu.cli.invocation import invocation_of
from pgpu.cli.output import console
from pgpu.cli.verbs import cluster_functions as cluster
from pgpu.cli.verbs.declaring import read_declaration
from pgpu.cli.verbs.function_dev import require_libraries
from pgpu.errors import RequestError

if TYPE_CHECKING:
    from pgpu.functions.api import Declaration
    from pgpu.functions.dev import FunctionSource
    from pgpu.model import ColdStart, Deployment, Function, Version
    from pgpu.services.function_messages import Functions

_WHOLE_PERCENT = 100
Name = Annotated[str, typer.Argument(metavar="NAME", help="A function of yours.")]


def deploy(
    context: typer.Context,
    app: Annotated[
        str,
        typer.Argument(
            metavar="FUNCTION", help="path/app.py:Detector, package.module:Detector, or its name in pgpu.toml."
        ),
    ],
    *,
    name: Annotated[str | None, typer.Option("--name", help="What to call it [made of the callable's name].")] = None,
    memory: Annotated[
        str | None, typer.Option("--memory", "-m", metavar="AMOUNT", help="GPU memory of each replica, such as 4GiB.")
    ] = None,
    compute: Annotated[
        str | None, typer.Option("--compute", metavar="SHARE", help="Share of each GPU's time, such as 25%.")
    ] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", metavar="N", help="GPUs of each replica; 0 for none.")] = None,
    host_memory: Annotated[
        str | None,
        typer.Option(
            "--host-memory", metavar="AMOUNT", help="The machine's memory of each replica's container [4GiB]."
        ),
    ] = None,
    image: options.Image = None,
    requirements: Annotated[
        Path | None, typer.Option("--requirements", metavar="FILE", help="A lock file: pip installs it once for all.")
    ] = None,
    minimum: Annotated[int | None, typer.Option("--min", metavar="N", help="Replicas that stay.")] = None,
    maximum: Annotated[int | None, typer.Option("--max", metavar="N", help="Replicas at most.")] = None,
    idle: Annotated[
        str | None, typer.Option("--idle", metavar="TIME", help="How long a replica stays that nobody calls: 5m.")
    ] = None,
    keep_warm: Annotated[
        str | None, typer.Option("--keep-warm", metavar="auto", help="Learn from the calls when to stay warm.")
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option("--runtime", metavar="RUNTIME", help="process, docker or kubernetes [docker with --image]."),
    ] = None,
    network: Annotated[
        str | None, typer.Option("--network", metavar="NETWORK", help="The container's network, such as bridge [none].")
    ] = None,
    public: Annotated[
        bool | None, typer.Option("--public/--private", help="Whether anybody may call it, without a token.")
    ] = None,
    rollout: Annotated[bool, typer.Option("--rollout/--no-rollout", help="Give the new version all traffic.")] = True,
    namespace: cluster.Namespace = None,
    kube_context: cluster.Context = None,
    kubeconfig: cluster.Kubeconfig = None,
    source_in_image: cluster.SourceInImage = None,
    cpu: cluster.Cpu = None,
    autoscale: cluster.Autoscale = False,
    knative: cluster.Knative = None,
    recreate: cluster.Recreate = False,
    force: cluster.Force = False,
    dry_run: cluster.DryRun = False,
    output: cluster.Output = None,
    as_json: options.Json = False,
) -> None:
    """Send a function to the server, as a new version of its name, and print NAME@VERSION.

    The source directory is packed without hidden files, caches and what .pgpuignore names. Flags go over pgpu.toml, which goes
    over @pgpu.function. With --runtime kubernetes it becomes a Deployment of a cluster or a Knative Service, and its URL is printed.
    """
    import tempfile

    require_libraries()
    flags = {
        "memory": memory, "compute": compute, "gpus": gpus, "host_memory": host_memory, "minimum": minimum, "maximum": maximum,
        "idle": idle, "keep_warm": keep_warm, "network": network, "public": public,
    }  # fmt: skip
    said = {word: value for word, value in flags.items() if value is not None}
    if cluster.is_on_cluster(
        runtime, namespace=namespace, context=kube_context, kubeconfig=kubeconfig, source_in_image=source_in_image, cpu=cpu,
        autoscale=autoscale, knative=knative, recreate=recreate, force=force, dry_run=dry_run, output=output,
    ):  # fmt: skip
        where = cluster.Cluster(namespace, kube_context, kubeconfig)
        asked = cluster.ClusterDeployment(
            app, name, image, said, where, source_in_image, cpu, autoscale, knative, recreate, force,
            output or ("yaml" if dry_run else None),
        )  # fmt: skip
        cluster.deploy(asked, requirements=requirements, rolls_out=rollout, as_json=as_json)
        return
    chosen = _runtime(runtime, image)
    functions = invocation_of(context).functions()
    lock = None if requirements is None else _text_of(requirements)
    place, called, declaration = read_declaration(app, name, said)
    with tempfile.TemporaryFile() as bundle:
        deployment = _packed(place, called, declaration, cast("BinaryIO", bundle))
        deployment = dataclasses.replace(
            deployment,
            image=image,
            runtime=chosen,
            requirements="\n".join([*declaration.requirements, *([] if lock is None else [lock])]) or None,
            rolls_out=rollout,
        )
        version = functions.deploy(deployment, cast("BinaryIO", bundle))
    _tell(version, as_json=as_json)


def functions(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Left out: all of yours.")] = None,
    *,
    cold_starts: Annotated[
        bool, typer.Option("--cold-starts", help="How long its last starts took, phase by phase.")
    ] = False,
    runtime: cluster.Runtime = None,
    namespace: cluster.Namespace = None,
    all_namespaces: cluster.AllNamespaces = False,
    kube_context: cluster.Context = None,
    kubeconfig: cluster.Kubeconfig = None,
    as_json: options.Json = False,
) -> None:
    """List functions, their versions, who gets how much of the traffic, and what serves now."""
    from pgpu.cli.output import function_tables as shown

    if _is_on_cluster(
        runtime, namespace=namespace, context=kube_context, kubeconfig=kubeconfig, all_namespaces=all_namespaces
    ):
        if cold_starts:
            raise RequestError("a cluster does not tell how long starts took", hint="leave --cold-starts out")
        where = cluster.Cluster(namespace, kube_context, kubeconfig, all_namespaces)
        cluster.list_functions(where, name, as_json=as_json)
        return
    asked = invocation_of(context).functions()
    if cold_starts:
        if name is None:
            raise RequestError("whose cold starts?", hint="pgpu functions NAME --cold-starts")
        _show_starts(asked.cold_starts(name), as_json=as_json)
        return
    found = asked.functions() if name is None else [asked.function(name)]
    served = [(each, asked.replicas(each.name)) for each in found]
    if as_json:
        console.print_json(shown.document_of(served))
    else:
        console.print_table(shown.of_functions(served) if name is None else shown.of_versions(*served[0]))


def rollout(
    context: typer.Context,
    version: Annotated[str, typer.Argument(metavar="NAME@VERSION", help="Such as detector@2.")],
    *,
    canary: Annotated[
        str | None, typer.Option("--canary", metavar="PART", help="Only a part, such as 10%; the rest stays.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Give a version all of its function's traffic, or a part."""
    from pgpu.services.function_messages import Rollout
    from pgpu.units import parse_compute_share

    name, _, number = version.rpartition("@")
    if not name or not (number.isascii() and number.isdecimal()):
        raise RequestError(f"{version!r} names no version", hint="write it like detector@2")
    percent = _WHOLE_PERCENT if canary is None else round(parse_compute_share(canary) * _WHOLE_PERCENT)
    _show_traffic(invocation_of(context).functions().roll_out(name, Rollout(int(number), percent)), as_json=as_json)


def rollback(context: typer.Context, name: Name, *, as_json: options.Json = False) -> None:
    """Let a function's traffic be what it was before the last rollout."""
    _show_traffic(invocation_of(context).functions().roll_back(name), as_json=as_json)


def undeploy(
    context: typer.Context,
    name: Name,
    *,
    runtime: cluster.Runtime = None,
    namespace: cluster.Namespace = None,
    kube_context: cluster.Context = None,
    kubeconfig: cluster.Kubeconfig = None,
) -> None:
    """Forget a function with its versions and tokens, and end what serves it."""
    if _is_on_cluster(runtime, namespace=namespace, context=kube_context, kubeconfig=kubeconfig):
        cluster.undeploy(cluster.Cluster(namespace, kube_context, kubeconfig), name)
        return
    ended = invocation_of(context).functions().undeploy(name)
    ending = {0: "", 1: "; its replica ends"}.get(len(ended), f"; its {len(ended)} replicas end")
    console.print_note(f"{name} is gone{ending}")


def token(
    context: typer.Context,
    name: Name,
    action: Annotated[str, typer.Argument(metavar="create|list|revoke")],
    token_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="Of the token to revoke.")] = None,
    *,
    label: Annotated[str, typer.Option("--label", metavar="TEXT", help="Whom it is for; `list` shows it.")] = "",
    as_json: options.Json = False,
) -> None:
    """Make, list or revoke tokens that may call one function and nothing else; a new one is shown this once."""
    asked = invocation_of(context).functions()
    if (action == "revoke") != (token_id is not None):
        raise RequestError("only to revoke a token its ID is named", hint=f"pgpu token {name} revoke ID")
    if action == "create":
        made = asked.create_token(name, label)
        if as_json:
            console.print_json({"id": made.id, "function": name, "token": made.text})
        else:
            print(made.text)
    elif action == "list":
        _list_tokens(asked, name, as_json=as_json)
    elif token_id is not None:
        asked.revoke_token(name, token_id)
    else:
        raise RequestError(f"{action!r} is nothing that is done to tokens", hint="create, list or revoke")


def _list_tokens(asked: "Functions", name: str, *, as_json: bool) -> None:
    from pgpu.cli.output import function_tables as shown

    found = asked.tokens(name)
    if as_json:
        console.print_json(shown.document_of_tokens(found))
    elif found:
        console.print_table(shown.of_tokens(found))


def _is_on_cluster(runtime: str | None, **words: object) -> bool:
    if runtime not in {None, cluster.RUNTIME}:
        raise RequestError(
            f"{runtime!r} is not asked about its functions alone", hint="leave --runtime out, or say kubernetes"
        )
    return cluster.is_on_cluster(runtime, **words)


def _packed(place: "FunctionSource", name: str, declaration: "Declaration", bundle: BinaryIO) -> "Deployment":
    from pgpu.functions.api import dump_declaration
    from pgpu.functions.deploy import pack_tree
    from pgpu.model import Deployment
    from pgpu.units import format_memory

    packed = pack_tree(place.source, bundle)
    bundle.seek(0)
    count = f"{len(packed.paths)} files" if len(packed.paths) > 1 else "1 file"
    console.print_note(f"{place.source} is packed: {count}, {format_memory(packed.size_bytes)}")
    return Deployment(name, place.app, packed.digest, json.dumps(dump_declaration(declaration)))


def _runtime(said: str | None, image: str | None) -> Literal["process", "docker"]:
    if said not in {None, "process", "docker"}:
        raise RequestError(f"{said!r} is no runtime of functions", hint="process, docker or kubernetes")
    if said == "docker" and image is None:
        raise RequestError(
            "the runtime docker needs an image", hint="name one that has python3: --image python:3.11-slim"
        )
    if said == "process" and image is not None:
        raise RequestError("the runtime process takes no image", hint="leave --image or --runtime process out")
    return "process" if image is None else "docker"


def _text_of(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as exc:
        raise RequestError(f"{path} cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise RequestError(f"{path} is not UTF-8") from exc


def _tell(version: "Version", *, as_json: bool) -> None:
    from pgpu.cli.output import function_tables as shown

    if as_json:
        console.print_json(shown.document_of_version(version))
        return
    print(version.label)
    if version.state.value == "pending":
        console.print_note(f"its packages are installed first; `pgpu functions {version.function}` tells how that goes")


def _show_traffic(function: "Function", *, as_json: bool) -> None:
    from pgpu.cli.output import function_tables as shown

    if as_json:
        console.print_json(shown.document_of([(function, ())]))
    else:
        print(shown.traffic(function))


def _show_starts(starts: "Sequence[ColdStart]", *, as_json: bool) -> None:
    from pgpu.cli.output import function_tables as shown

    if as_json:
        console.print_json(shown.document_of_starts(starts))
    else:
        console.print_table(shown.of_starts(starts))
