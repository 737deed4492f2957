"""`pgpu function deploy|ls|rollout|rollback|undeploy|token`: versions of functions, their traffic and their tokens.

The user's code is never imported in this process: another process imports it and reports what it declares.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal, cast

import typer

from pgpu.cli import options
from pgpu.cli.invocation import Invocation, invocation_of
from pgpu.cli.output import console
from pgpu.cli.verbs import cluster_functions as cluster
from pgpu.cli.verbs.function_calls import read_declaration, require_libraries
from pgpu.errors import NodeError, RequestError
from pgpu.units import is_number, quoted

if TYPE_CHECKING:
    from pgpu.client import Client
    from pgpu.client.remote_service import HttpFunctions
    from pgpu.model import Function, Replica, Version
    from pgpu.services.messages import GpuReport

_WHOLE_PERCENT = 100
_POLL_SECONDS = 1.0
"""Between two looks at a version whose cache is being filled."""
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of one of your functions.")]


def deploy(
    context: typer.Context,
    app: Annotated[
        str,
        typer.Argument(
            metavar="FUNCTION", help="path/app.py:Detector, package.module:Detector, or its name in pgpu.toml."
        ),
    ],
    *,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name of the function [from the callable's name].")
    ] = None,
    memory: Annotated[
        str | None, typer.Option("--memory", "-m", metavar="AMOUNT", help="GPU memory of each replica, such as 4GiB.")
    ] = None,
    compute: Annotated[
        str | None, typer.Option("--compute", metavar="SHARE", help="Share of each GPU's time, such as 25%.")
    ] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", metavar="N", help="GPUs of each replica; 0 for none.")] = None,
    host_memory: Annotated[
        str | None,
        typer.Option("--host-memory", metavar="AMOUNT", help="Host memory of each replica's container [4GiB]."),
    ] = None,
    image: options.Image = None,
    requirements: Annotated[
        Path | None,
        typer.Option(
            "--requirements", metavar="FILE", help="Requirements file; pip installs it once for all replicas."
        ),
    ] = None,
    min_replicas: Annotated[
        int | None, typer.Option("--min-replicas", "--min", metavar="N", help="Least number of replicas.")
    ] = None,
    max_replicas: Annotated[
        int | None, typer.Option("--max-replicas", "--max", metavar="N", help="Largest number of replicas.")
    ] = None,
    scale_to_zero_after: Annotated[
        str | None,
        typer.Option(
            "--scale-to-zero-after",
            "--idle",
            metavar="TIME",
            help="End a replica after this long without calls, such as 5m.",
        ),
    ] = None,
    target_concurrency: Annotated[
        int | None,
        typer.Option(
            "--target-concurrency", metavar="N", help="Calls for which one replica suffices [its concurrency]."
        ),
    ] = None,
    max_wait: Annotated[
        str | None,
        typer.Option("--max-wait", metavar="TIME", help="Start another replica when calls wait this long [100ms]."),
    ] = None,
    keep_warm: Annotated[str | None, typer.Option("--keep-warm", hidden=True)] = None,
    runtime: Annotated[
        str | None,
        typer.Option("--runtime", metavar="RUNTIME", help="process, docker or kubernetes [docker with --image]."),
    ] = None,
    environment: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", metavar="KEY[=VALUE]", help="Set a variable; KEY alone passes on yours."),
    ] = None,
    environment_files: Annotated[
        list[str] | None, typer.Option("--env-file", metavar="FILE", help="Read variables from a file.")
    ] = None,
    mounts: Annotated[
        list[str] | None,
        typer.Option(
            "--mount", metavar="DIR:PLACE[:rw]", help="Mount a directory of the server's machine, by default read-only."
        ),
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option(
            "--cache", metavar="NAME:PLACE", help="Mount a cache of yours, such as weights:/cache, read-only."
        ),
    ] = None,
    fill: Annotated[
        str | None,
        typer.Option("--fill", metavar="COMMAND", help="Fill it first, by this command in a container with a network."),
    ] = None,
    fill_secrets: Annotated[
        list[str] | None,
        typer.Option("--fill-secret", metavar="NAME[:env]", help="Give a secret to that command alone."),
    ] = None,
    secrets: Annotated[
        list[str] | None,
        typer.Option(
            "--secret", metavar="NAME[:env]", help="Give it a secret: /run/secrets/NAME, with :env a variable, too."
        ),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option("--network", metavar="NETWORK", help="Network of the container, such as bridge [none]."),
    ] = None,
    public: Annotated[
        bool | None, typer.Option("--public/--private", help="Allow calls without a token, or require one.")
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
    """Deploy a function as a new version; print NAME@VERSION.

    The source directory is packed without hidden files, caches and what .pgpuignore names. Flags override pgpu.toml,
    which overrides @pgpu.function. With --runtime kubernetes it becomes a Deployment of a cluster, and its URL is
    printed.
    """
    require_libraries()
    from pgpu.cli.job_arguments import read_environment

    flags = {
        "memory": memory, "compute": compute, "gpus": gpus, "host_memory": host_memory, "min_replicas": min_replicas,
        "max_replicas": max_replicas, "scale_to_zero_after": scale_to_zero_after, "target_concurrency": target_concurrency,
        "max_wait": max_wait, "keep_warm": keep_warm, "network": network, "public": public,
        "env": dict(read_environment(environment_files or (), environment or ())) or None,
        "secrets": secrets, "mounts": [*map(_with_absolute_source, mounts)] if mounts else None,
        "cache": cache, "fill": fill, "fill_secrets": fill_secrets,
    }  # fmt: skip
    given = {word: value for word, value in flags.items() if value is not None}
    if cluster.is_on_cluster(
        runtime, namespace=namespace, context=kube_context, kubeconfig=kubeconfig, source_in_image=source_in_image, cpu=cpu,
        autoscale=autoscale, knative=knative, recreate=recreate, force=force, dry_run=dry_run, output=output,
    ):  # fmt: skip
        where = cluster.Cluster(namespace, kube_context, kubeconfig)
        deployment = cluster.ClusterDeployment(
            app, name, image, given, where, source_in_image, cpu, autoscale, knative, recreate, force,
            output or ("yaml" if dry_run else None),
        )  # fmt: skip
        cluster.deploy(deployment, requirements=requirements, rolls_out=rollout, as_json=as_json)
        return
    _deploy_to_server(
        invocation_of(context), app, name, given, image=image, runtime=_read_runtime(runtime, image),
        requirements=requirements, rolls_out=rollout, as_json=as_json,
    )  # fmt: skip


def _wait_for_cache(client: "Client", functions: "HttpFunctions", version: "Version") -> "Version":
    """Wait until a version's cache is filled, print the output of its command to stderr, and return the version.

    Raises:
        RequestError: It failed.
    """
    import threading

    from pgpu.functions.deploy.version_jobs import FILL

    name, printed = version.function, set[str]()
    if version.state.value == "pending":
        console.print_note(f"its cache is being filled; after Ctrl-C: pgpu function rollout {version.label}")
    while True:
        # The state first: the jobs of a version that is judged are all known.
        version = functions.function(name).version(version.number)
        for job in (report.job for report in client.jobs(include_final=True)):
            is_fill = job.spec.serves == name and job.spec.command[:2] == FILL
            if is_fill and job.created_at_seconds >= version.created_at_seconds and job.id not in printed:
                printed.add(job.id)
                for _, data in client.logs(job.id, follow=True):
                    sys.stderr.buffer.write(data)
                    sys.stderr.buffer.flush()
        if version.state.value == "failed":
            raise RequestError(f"{version.label} failed: {version.reason}", hint="the traffic is as it was")
        if version.state.value == "ready":
            return version
        threading.Event().wait(_POLL_SECONDS)


def _with_absolute_source(mount: str) -> str:
    source, separator, rest = mount.partition(":")
    # Other words are absolute, or names of a cluster's volumes.
    return f"{Path(source).expanduser().absolute()}{separator}{rest}" if source.startswith((".", "~")) else mount


def _deploy_to_server(
    invocation: Invocation,
    app: str,
    name: str | None,
    flags: Mapping[str, object],
    *,
    image: str | None,
    runtime: Literal["process", "docker"],
    requirements: Path | None,
    rolls_out: bool,
    as_json: bool,
) -> None:
    import tempfile

    from pgpu.functions.api import dump_declaration
    from pgpu.functions.deploy.source_bundle import pack_tree
    from pgpu.model import Deployment
    from pgpu.services.messages import Rollout
    from pgpu.units import format_memory

    # Server and requirements first: importing the user's code may take a minute.
    functions = invocation.functions()
    lock = None if requirements is None else _read_text(requirements)
    source, function_name, declaration = read_declaration(app, name, flags)
    for secret in (*declaration.secrets, *declaration.fill_secrets):
        if secret.variable is not None:
            console.print_note(
                f"{secret.variable} is inherited by every process that the function starts; /run/secrets/{secret.name} is not"
            )
    # Packed into a file before the upload: the request begins with the bundle's digest, which is known only at its end.
    with tempfile.TemporaryFile() as file:
        bundle = cast("BinaryIO", file)
        packed = pack_tree(source.source, bundle)
        bundle.seek(0)
        count = f"{len(packed.paths)} files" if len(packed.paths) > 1 else "1 file"
        console.print_note(f"{source.source} is packed: {count}, {format_memory(packed.size_bytes)}")
        deployment = Deployment(
            function_name,
            source.app,
            packed.digest,
            json.dumps(dump_declaration(declaration)),
            image=image,
            runtime=runtime,
            requirements="\n".join([*declaration.requirements, *([] if lock is None else [lock])]) or None,
            # A version whose cache is to be filled gets its traffic once it can be served.
            rolls_out=rolls_out and declaration.fill is None,
        )
        version = functions.deploy(deployment, bundle)
    if declaration.fill is not None:
        version = _wait_for_cache(invocation.client(), functions, version)
        # A function's first version has all of the traffic already.
        if rolls_out and version.number > 1:
            functions.roll_out(version.function, Rollout(version.number))
    if as_json:
        from pgpu.cli.output import function_tables

        console.print_json(function_tables.document_of_version(version))
        return
    print(version.label)
    if version.state.value == "pending":
        console.print_note(
            f"its packages are being installed; `pgpu function ls {version.function}` shows the progress"
        )


def _read_runtime(runtime: str | None, image: str | None) -> Literal["process", "docker"]:
    if runtime not in {None, "process", "docker"}:
        raise RequestError(f"{runtime!r} is not a runtime of functions", hint="process, docker or kubernetes")
    if runtime == "docker" and image is None:
        raise RequestError(
            "the runtime docker needs an image", hint="name one that has python3: --image python:3.11-slim"
        )
    if runtime == "process" and image is not None:
        raise RequestError("the runtime process takes no image", hint="leave --image or --runtime process out")
    return "process" if image is None else "docker"


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as exc:
        raise RequestError(f"{path} cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise RequestError(f"{path} is not UTF-8") from exc


def functions(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One function; default: all of yours.")] = None,
    *,
    cold_starts: Annotated[
        bool, typer.Option("--cold-starts", help="Show how long the last starts took, phase by phase.")
    ] = False,
    runtime: cluster.Runtime = None,
    namespace: cluster.Namespace = None,
    all_namespaces: cluster.AllNamespaces = False,
    kube_context: cluster.Context = None,
    kubeconfig: cluster.Kubeconfig = None,
    as_json: options.Json = False,
) -> None:
    """List functions with their versions, traffic and replicas."""
    from pgpu.cli.output import function_tables

    if _is_on_cluster(
        runtime, namespace=namespace, context=kube_context, kubeconfig=kubeconfig, all_namespaces=all_namespaces
    ):
        if cold_starts:
            raise RequestError("a cluster does not report how long starts took", hint="leave --cold-starts out")
        where = cluster.Cluster(namespace, kube_context, kubeconfig, all_namespaces)
        cluster.list_functions(where, name, as_json=as_json)
        return
    invocation = invocation_of(context)
    client = invocation.functions()
    if cold_starts:
        if name is None:
            raise RequestError("--cold-starts needs a function", hint="pgpu function ls NAME --cold-starts")
        starts = client.cold_starts(name)
        if as_json:
            console.print_json(function_tables.document_of_starts(starts))
        else:
            console.print_table(function_tables.of_starts(starts, _simulated_models(invocation)))
        return
    found = client.functions() if name is None else [client.function(name)]
    served = [(each, client.replicas(each.name)) for each in found]
    if as_json:
        console.print_json(function_tables.document_of(served))
    elif name is None:
        console.print_table(function_tables.of_functions(served, _simulated_models(invocation)))
    else:
        console.print_table(function_tables.of_versions(*served[0], _simulated_models(invocation)))


def _simulated_models(invocation: Invocation) -> Sequence[str]:
    """Return the models of the server's GPUs that are simulated; none where its driver does not answer."""
    with suppress(NodeError):
        return [report.gpu.name for report in invocation.client().gpus() if report.gpu.is_simulated]
    return ()


def rollout(
    context: typer.Context,
    version: Annotated[str, typer.Argument(metavar="NAME@VERSION", help="The version, such as detector@2.")],
    *,
    canary: Annotated[
        str | None, typer.Option("--canary", metavar="PART", help="Give it only a part of the traffic, such as 10%.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Give a version all of its function's traffic, or a part.

    Versions that do not fit side by side serve by turns, each for its part of the time.
    """
    from pgpu.services.messages import Rollout
    from pgpu.units import parse_compute_share

    name, _, number = version.rpartition("@")
    if not name or not (number.isascii() and is_number(number)):
        raise RequestError(f"{quoted(version)} names no version", hint="write it like detector@2")
    percent = _WHOLE_PERCENT if canary is None else round(parse_compute_share(canary) * _WHOLE_PERCENT)
    invocation = invocation_of(context)
    functions = invocation.functions()
    function = functions.roll_out(name, Rollout(int(number), percent))
    _print_traffic(function, as_json=as_json)
    with suppress(NodeError):  # the driver does not answer
        if canary is not None and not _fits(function, functions.replicas(name), invocation.client().gpus()):
            console.print_note(
                f"{version} does not fit beside the other version now: each serves for its part of the time, until both fit"
            )


def _fits(function: "Function", replicas: "Sequence[Replica]", gpus: "Sequence[GpuReport]") -> bool:
    """Whether GPUs have room for the declared memory of all versions with traffic, beside what is granted now."""
    free = [report.capacity_bytes - report.granted_bytes for report in gpus]
    placed = {replica.version for replica in replicas if replica.state.value in {"hot", "draining"}}
    for share in function.traffic if gpus else ():
        declaration = json.loads(function.version(share.version).declaration)
        if share.version not in placed and "memory" in declaration:
            free.sort(reverse=True)
            for index in range(declaration.get("gpus", 1)):
                if index >= len(free) or free[index] < declaration["memory"]:
                    return False
                free[index] -= declaration["memory"]
    return True


def rollback(context: typer.Context, name: Name, *, as_json: options.Json = False) -> None:
    """Restore the traffic from before the version rolled out last."""
    _print_traffic(invocation_of(context).functions().roll_back(name), as_json=as_json)


def _print_traffic(function: "Function", *, as_json: bool) -> None:
    from pgpu.cli.output import function_tables

    if as_json:
        console.print_json(function_tables.document_of([(function, ())]))
    else:
        print(function_tables.traffic(function))


def undeploy(
    context: typer.Context,
    name: Name,
    *,
    runtime: cluster.Runtime = None,
    namespace: cluster.Namespace = None,
    kube_context: cluster.Context = None,
    kubeconfig: cluster.Kubeconfig = None,
) -> None:
    """Remove a function with its versions, tokens and replicas."""
    if _is_on_cluster(runtime, namespace=namespace, context=kube_context, kubeconfig=kubeconfig):
        cluster.undeploy(cluster.Cluster(namespace, kube_context, kubeconfig), name)
        return
    ended = invocation_of(context).functions().undeploy(name)
    ending = {0: "", 1: "; its replica ends"}.get(len(ended), f"; its {len(ended)} replicas end")
    console.print_note(f"{name} is gone{ending}")


def _is_on_cluster(runtime: str | None, **options: object) -> bool:
    if runtime not in {None, cluster.RUNTIME}:
        raise RequestError(f"--runtime {runtime} selects nothing here", hint="leave --runtime out, or use kubernetes")
    return cluster.is_on_cluster(runtime, **options)


def token(
    context: typer.Context,
    name: Name,
    action: Annotated[str, typer.Argument(metavar="create|list|revoke", help="What to do.")],
    token_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="The token to revoke.")] = None,
    *,
    label: Annotated[str, typer.Option("--label", metavar="TEXT", help="Note for `list`, such as the caller.")] = "",
    expires: options.Expires = None,
    as_json: options.Json = False,
) -> None:
    """Create, list or revoke tokens for calls of one function.

    A token allows calls of this function and nothing else. It is printed once, when it is created.
    """
    client = invocation_of(context).functions()
    if (action == "revoke") != (token_id is not None):
        raise RequestError("revoke, and only revoke, takes a token's ID", hint=f"pgpu function token {name} revoke ID")
    if action == "create":
        created = client.create_token(name, label, options.read_expires(expires))
        options.check_end(expires, created.expires_at_seconds, lambda: client.revoke_token(name, created.id))
        if as_json:
            known = {"id": created.id, "function": name, "expires_at_seconds": created.expires_at_seconds}
            console.print_json({**known, "token": created.text})
        else:
            print(created.text)
    elif action == "list":
        from pgpu.cli.output import function_tables

        found = client.tokens(name)
        if as_json:
            console.print_json(function_tables.document_of_tokens(found))
        elif found:
            console.print_table(function_tables.of_tokens(found))
    elif token_id is not None:
        client.revoke_token(name, token_id)
    else:
        raise RequestError(f"{action!r} is not an action on tokens", hint="create, list or revoke")
