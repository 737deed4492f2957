"""`pgpu kubernetes`: what runs on a cluster's nodes and beside its scheduler."""

import dataclasses
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgpu.cli.invocation import invocation_of
from pgpu.cli.output import console
from pgpu.cli.verbs import kubernetes_score
from pgpu.distribution import extra_hint
from pgpu.errors import NodeError, RequestError
from pgpu.units import parse_memory_bytes

if TYPE_CHECKING:
    from pgpu.app.settings import Settings
    from pgpu.kubernetes.driver_mode import Mode

verbs = typer.Typer(help="Slices for the pods of a Kubernetes cluster.", no_args_is_help=True, rich_markup_mode=None)
verbs.command()(kubernetes_score.score)

_MOST_PORT = 65_535


@verbs.command()
def driver(
    context: typer.Context,
    *,
    node_name: Annotated[
        str,
        typer.Option(
            "--node-name", metavar="NAME", envvar="NODE_NAME", help="Of this node, as the cluster calls it (NODE_NAME)."
        ),
    ],
    mode: Annotated[
        str,
        typer.Option(
            "--mode", metavar="dra|device-plugin", help="How the kubelet asks; device-plugin for clusters before 1.36."
        ),
    ] = "dra",
    simulate: Annotated[
        str | None, typer.Option("--simulate", metavar="MODEL[xN]", help="Offer simulated GPUs (PGPU_SIMULATE).")
    ] = None,
    kubelet_dir: Annotated[
        Path, typer.Option("--kubelet-dir", metavar="DIR", help="The kubelet's own directory.")
    ] = Path("/var/lib/kubelet"),
    cdi_dir: Annotated[
        Path, typer.Option("--cdi-dir", metavar="DIR", help="Where the container runtime looks for CDI files.")
    ] = Path("/var/run/cdi"),
    state_dir: Annotated[
        str | None,
        typer.Option("--state-dir", metavar="DIR", help="Where the ledger lies [/var/lib/pgpu/kubernetes]."),
    ] = None,
    runtime_dir: Annotated[
        str | None,
        typer.Option("--runtime-dir", metavar="DIR", help="A tmpfs of the host, for the slices [/run/pgpu]."),
    ] = None,
    metrics: Annotated[
        str | None, typer.Option("--metrics", metavar="HOST:PORT", help="Serve /metrics, /healthz and /readyz there.")
    ] = None,
    default_memory: Annotated[
        str | None,
        typer.Option("--default-memory", metavar="SIZE", help="What a claim that names no memory gets [4GiB]."),
    ] = None,
    oversubscribe: Annotated[
        bool,
        typer.Option(
            "--oversubscribe",
            help="Offer GPUs also to claims whose memory may lie on the host (setting oversubscription).",
        ),
    ] = False,
    kubeconfig: Annotated[
        Path | None,
        typer.Option("--kubeconfig", metavar="FILE", help="How the API server is reached [the pod's service account]."),
    ] = None,
) -> None:
    """Give the pods of this node slices of its GPUs, until SIGTERM; slices stay, and the next driver goes on.

    For a DaemonSet: one on each node, as root. Log lines go to stderr.
    """
    if importlib.util.find_spec("grpc") is None or importlib.util.find_spec("lightkube") is None:
        raise NodeError("the libraries for Kubernetes are not installed", hint=extra_hint("kubernetes"))
    from pgpu.app.node_driver import NodeOptions, drive

    flags = {"simulate": simulate, "state_dir": state_dir, "runtime_dir": runtime_dir}
    settings = invocation_of(context).settings(**{name: text for name, text in flags.items() if text is not None})
    options = NodeOptions(
        node_name,
        _mode(mode),
        kubelet_dir.absolute(),
        cdi_dir.absolute(),
        kubeconfig,
        _metrics(metrics),
        None if default_memory is None else parse_memory_bytes(default_memory),
        oversubscribe,
    )
    drive(_of_node(settings), options, console.print_note)


def _of_node(settings: "Settings") -> "Settings":
    """A node's driver keeps its state apart from everybody's, and its slices where containers can be given them."""
    from pgpu.app.node_driver import RUNTIME_DIRECTORY, STATE_DIRECTORY
    from pgpu.app.settings import Settings

    usual = Settings()
    state_dir = STATE_DIRECTORY if settings.state_dir == usual.state_dir else settings.state_dir
    return dataclasses.replace(settings, state_dir=state_dir, runtime_dir=settings.runtime_dir or RUNTIME_DIRECTORY)


def _mode(words: str) -> "Mode":
    from pgpu.kubernetes.driver_mode import Mode

    if words not in {*Mode}:
        raise RequestError(f"--mode {words!r} is no mode", hint=f"write {' or '.join(Mode)}")
    return Mode(words)


def _metrics(words: str | None) -> str | None:
    address, _, port = (words or "").rpartition(":")
    if words is not None and not (address and port.isdecimal() and int(port) <= _MOST_PORT):
        raise RequestError(f"--metrics {words!r} is not HOST:PORT", hint="write --metrics 0.0.0.0:9410")
    return words
