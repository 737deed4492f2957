"""Translates a function's declaration into a workload for a cluster: `functions` and `kubernetes` do not import each other.

Differences between a cluster and a server of pgpu are listed as one line each; what a cluster cannot do is refused.
"""

import json
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from pgpu.distribution import extra_hint
from pgpu.errors import NodeError, RequestError
from pgpu.structs import Struct
from pgpu.units import quoted

if TYPE_CHECKING:
    from pgpu.functions.api import Declaration
    from pgpu.functions.dev.function_source import FunctionSource
    from pgpu.kubernetes.api import DynamicClient
    from pgpu.kubernetes.deploy import SourceFile, Workload

_MOST_GPUS = 16
"""Limit of one claim."""


class Packaging(Struct, frozen=True):
    """How a function becomes a pod, in addition to its declaration."""

    image: str
    source_in_image: str | None = None
    """Directory of the source in the image; None: the source is stored in a ConfigMap."""

    namespace: str | None = None
    cpu: str | None = None
    is_autoscaled: bool = False
    ends_before_it_starts: bool = False


def open_objects(kubeconfig: Path | None, context: str | None) -> "DynamicClient":
    """Connect to a cluster.

    Raises:
        NodeError: The libraries for Kubernetes are not installed.
        ClusterAccessError: There is no kubeconfig, or it is invalid.
    """
    require_kubernetes()
    from pgpu.kubernetes.api import DynamicClient

    return DynamicClient.from_kubeconfig(kubeconfig, context)


def require_kubernetes() -> None:
    """Check that the client library of Kubernetes is installed.

    Raises:
        NodeError: It is not.
    """
    from importlib.util import find_spec

    if find_spec("lightkube") is None:
        raise NodeError("the libraries for Kubernetes are not installed", hint=extra_hint("kubernetes"))


def workload_of(place: "FunctionSource", name: str, declaration: "Declaration", packaging: Packaging) -> "Workload":
    """Translate a function for a cluster.

    Args:
        place: Its source directory and its name in it.
        name: Name of the function, and of its objects on the cluster.
        declaration: Its resources and limits.
        packaging: Options that only a cluster has.

    Raises:
        RequestError: It needs something that no cluster offers, or its source cannot be sent.
    """
    from pgpu.functions.api import dump_served
    from pgpu.kubernetes.deploy import ReplicaSlice, Scaling, VolumeMount, Workload

    _check_limits(declaration, packaging)
    return Workload(
        name=name,
        image=packaging.image,
        app=place.app,
        declaration=json.dumps(dump_served(declaration)),
        environment=tuple(declaration.environment.items()),
        secrets=tuple(map(str, declaration.secrets)),
        volumes=tuple(VolumeMount(each.source, each.target, each.is_writable) for each in declaration.mounts),
        source=() if packaging.source_in_image else tuple(_source_files(place.source)),
        source_directory=packaging.source_in_image or "/function",
        namespace=packaging.namespace,
        share=ReplicaSlice(declaration.gpus, declaration.memory_bytes, declaration.compute_share)
        if declaration.gpus
        else None,
        scaling=Scaling(declaration.min_replicas, declaration.max_replicas, packaging.is_autoscaled),
        timeout_seconds=declaration.timeout_seconds,
        startup_timeout_seconds=declaration.startup_timeout_seconds,
        host_memory_bytes=declaration.host_memory_bytes,
        cpu=packaging.cpu,
        ends_before_it_starts=packaging.ends_before_it_starts,
    )


def differences(declaration: "Declaration", packaging: Packaging) -> Iterator[str]:
    """Yield a line for each part of a declaration that a cluster handles differently from a server of pgpu."""
    if declaration.requirements:
        yield f"its packages must be in the image: {', '.join(declaration.requirements)}"
    if declaration.network is not None:
        yield f"network {declaration.network!r} is ignored: pods use the cluster's network, and a NetworkPolicy can close it"
    if not packaging.is_autoscaled and declaration.max_replicas > max(1, declaration.min_replicas):
        yield f"{max(1, declaration.min_replicas)} of {declaration.max_replicas} replicas: more come with --autoscale"
    if not declaration.is_public:
        yield "calls need no token: every pod that can reach its Service may call it"


def _check_limits(declaration: "Declaration", packaging: Packaging) -> None:
    if declaration.gpus > _MOST_GPUS:
        raise RequestError(
            f"a claim has {_MOST_GPUS} GPUs at most, not {declaration.gpus}", hint=f"--gpus {_MOST_GPUS}"
        )
    if declaration.cache is not None:
        raise RequestError(
            "a cluster has no caches of functions", hint="--mount CLAIM:/cache, and a Job that fills the volume"
        )
    place = packaging.source_in_image
    if place is not None and (not place.startswith("/") or place == "/" or ":" in place):
        raise RequestError(f"{quoted(place)} is no directory of an image", hint="write it like --source-in-image /app")
    if packaging.is_autoscaled and declaration.max_replicas < max(1, declaration.min_replicas):
        raise RequestError("--autoscale needs a maximum above the minimum", hint="--max 4")


def _source_files(root: Path) -> "Iterator[SourceFile]":
    """Yield the files of a function's source: the same that a server would get."""
    from pgpu.functions.deploy.source_bundle import pack_tree
    from pgpu.kubernetes.deploy import SourceFile

    # The same packing as for a server, so that .pgpuignore and the size limit have the same effect here.
    with tempfile.TemporaryFile() as bundle:
        pack_tree(root, cast("BinaryIO", bundle))
        bundle.seek(0)
        with tarfile.open(fileobj=bundle, mode="r:", encoding="utf-8") as archive:
            for member in archive:
                if member.issym():
                    raise RequestError(
                        f"{quoted(member.name)} is a link, which a ConfigMap cannot hold",
                        hint="copy what it leads to, or leave it out by .pgpuignore",
                    )
                content = archive.extractfile(member)
                if content is not None:
                    yield SourceFile(member.name, content.read(), is_executable=bool(member.mode & 0o100))
