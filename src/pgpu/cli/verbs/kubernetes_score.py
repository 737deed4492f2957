"""`pgpu kubernetes score`: which node a pod should rather get."""

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from pgpu.cli.output import console
from pgpu.distribution import extra_hint
from pgpu.errors import NodeError, RequestError

_LIBRARIES = ("lightkube", "uvicorn")
_MOST_PORT = 65_535


def score(
    *,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where the scheduler asks; port 0 takes a free one.")
    ] = "127.0.0.1:9411",
    kubeconfig: Annotated[
        Path | None,
        typer.Option("--kubeconfig", metavar="FILE", help="How the API server is reached [the pod's service account]."),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="Answer over TLS with this certificate.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Its key.")] = None,
    client_ca: Annotated[
        Path | None,
        typer.Option("--client-ca", metavar="FILE", help="Answer only who has a certificate of this authority."),
    ] = None,
) -> None:
    """Score nodes for the cluster's scheduler, so that pods fill GPUs, until SIGTERM; without it everything works.

    A scheduler extender that prioritizes and does nothing else. Beyond this machine it answers over TLS only. Log lines go
    to stderr.
    """
    missing = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise NodeError(f"the libraries for Kubernetes are not installed: {missing[0]}", hint=extra_hint("kubernetes"))
    from pgpu.kubernetes.extender.extender_process import run
    from pgpu.kubernetes.extender.extender_server import ListenOptions

    host, port = _address(listen)
    run(kubeconfig, ListenOptions(host, port, tls_cert, tls_key, client_ca), console.print_note)


def _address(words: str) -> tuple[str, int]:
    host, _, port = words.rpartition(":")
    if not (host and port.isascii() and port.isdecimal() and int(port) <= _MOST_PORT):
        raise RequestError(f"--listen {words!r} is not HOST:PORT", hint="write --listen 127.0.0.1:9411")
    return host.removeprefix("[").removesuffix("]"), int(port)
