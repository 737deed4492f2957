"""`pgpu kubernetes`: the driver of a node, and the scheduler extender of a cluster."""

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from pgpu.cli import options
from pgpu.cli.invocation import invocation_of
from pgpu.cli.output import console
from pgpu.cli.typer_app import Group
from pgpu.distribution import extra_hint
from pgpu.errors import NodeError, RequestError
from pgpu.structs import replace
from pgpu.units import parse_memory_bytes

verbs = typer.Typer(
    cls=Group, help="Give slices to the pods of a Kubernetes cluster.", no_args_is_help=True, rich_markup_mode=None
)

_SCORER_LIBRARIES = ("lightkube", "uvicorn")


@verbs.command()
def driver(
    context: typer.Context,
    *,
    node_name: Annotated[
        str,
        typer.Option(
            "--node-name", metavar="NAME", envvar="NODE_NAME", help="Name of this node in the cluster (NODE_NAME)."
        ),
    ],
    mode: Annotated[
        str,
        typer.Option(
            "--mode",
            metavar="dra|device-plugin",
            help="The kubelet's API: dra, or device-plugin before Kubernetes 1.36.",
        ),
    ] = "dra",
    simulate: Annotated[
        str | None, typer.Option("--simulate", metavar="MODEL[xN]", help="Offer simulated GPUs (PGPU_SIMULATE).")
    ] = None,
    kubelet_dir: Annotated[Path, typer.Option("--kubelet-dir", metavar="DIR", help="Directory of the kubelet.")] = Path(
        "/var/lib/kubelet"
    ),
    cdi_dir: Annotated[
        Path, typer.Option("--cdi-dir", metavar="DIR", help="Directory of CDI files for the container runtime.")
    ] = Path("/var/run/cdi"),
    state_dir: Annotated[
        str | None,
        typer.Option("--state-dir", metavar="DIR", help="Directory of the ledger [/var/lib/pgpu/kubernetes]."),
    ] = None,
    runtime_dir: Annotated[
        str | None,
        typer.Option("--runtime-dir", metavar="DIR", help="Directory on a tmpfs of the host, for slices [/run/pgpu]."),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option("--metrics", metavar="HOST:PORT", help="Serve /metrics, /healthz and /readyz on this address."),
    ] = None,
    default_memory: Annotated[
        str | None,
        typer.Option("--default-memory", metavar="SIZE", help="GPU memory of claims that name none [4GiB]."),
    ] = None,
    oversubscribe: Annotated[
        bool,
        typer.Option(
            "--oversubscribe",
            help="Also accept claims whose memory may move to the host (setting oversubscription).",
        ),
    ] = False,
    kubeconfig: Annotated[
        Path | None,
        typer.Option("--kubeconfig", metavar="FILE", help="Access to the API server [the pod's service account]."),
    ] = None,
) -> None:
    """Run the driver that gives this node's pods slices.

    For a DaemonSet: one on each node, as root, until SIGTERM. Slices outlive it, and the next driver takes them over.
    Log lines go to stderr.
    """
    # find_spec does not import: the error is this line, not a traceback out of a library.
    if importlib.util.find_spec("grpc") is None or importlib.util.find_spec("lightkube") is None:
        raise NodeError("the libraries for Kubernetes are not installed", hint=extra_hint("kubernetes"))
    from pgpu.app.node_driver import RUNTIME_DIRECTORY, STATE_DIRECTORY, NodeOptions, drive
    from pgpu.app.settings import Settings
    from pgpu.kubernetes.driver_mode import Mode

    flags = {"simulate": simulate, "state_dir": state_dir, "runtime_dir": runtime_dir}
    settings = invocation_of(context).settings(**{name: text for name, text in flags.items() if text is not None})
    if mode not in {*Mode}:
        raise RequestError(f"--mode {mode!r} is not a mode", hint=f"write {' or '.join(Mode)}")
    if metrics is not None:
        options.read_address("--metrics", metrics, "write --metrics 0.0.0.0:9410", "HOST:PORT")
    node = NodeOptions(
        node_name,
        Mode(mode),
        kubelet_dir.absolute(),
        cdi_dir.absolute(),
        kubeconfig,
        metrics,
        None if default_memory is None else parse_memory_bytes(default_memory),
        oversubscribe,
    )
    console.print_log("pgpu.kubernetes")
    # State and slices lie in places of the node, since containers get mounts of the slices.
    if settings.state_dir == Settings().state_dir:
        settings = replace(settings, state_dir=STATE_DIRECTORY)
    drive(replace(settings, runtime_dir=settings.runtime_dir or RUNTIME_DIRECTORY), node)


@verbs.command()
def score(
    *,
    listen: Annotated[
        str,
        typer.Option("--listen", metavar="HOST:PORT", help="Address for the scheduler; port 0 takes a free one."),
    ] = "127.0.0.1:9411",
    kubeconfig: Annotated[
        Path | None,
        typer.Option("--kubeconfig", metavar="FILE", help="Access to the API server [the pod's service account]."),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="PEM certificate to answer over TLS.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", help="PEM key of the certificate.")
    ] = None,
    client_ca: Annotated[
        Path | None,
        typer.Option("--client-ca", metavar="FILE", help="Require client certificates of this authority."),
    ] = None,
) -> None:
    """Run the scheduler extender that packs pods onto GPUs.

    It scores nodes until SIGTERM and does nothing else; without it, pods are placed without regard to packing. Beyond
    this machine it answers over TLS only. Log lines go to stderr.
    """
    missing = [name for name in _SCORER_LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise NodeError(f"the libraries for Kubernetes are not installed: {missing[0]}", hint=extra_hint("kubernetes"))
    from pgpu.kubernetes.extender.extender_server import ListenOptions, run

    host, port = options.read_address("--listen", listen, "write --listen 127.0.0.1:9411", "HOST:PORT")
    console.print_log("pgpu.kubernetes")
    run(kubeconfig, ListenOptions(host, port, tls_cert, tls_key, client_ca))
