"""Joins the parts of `pgpu kubernetes driver`: the engine, its claims, and what speaks with the kubelet and the API server.

It refuses to decide: the room `kubernetes` does.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgpu.app.runtime_directory import runtime_directory
from pgpu.app.settings import Settings
from pgpu.app.wiring import gpu_source, make_engine, simulated_gpus

if TYPE_CHECKING:
    from pgpu.engine.claims import Claims
    from pgpu.kubernetes.api import Cluster, ResourceClaim
    from pgpu.kubernetes.claims.preparing import Preparer
    from pgpu.kubernetes.driver import Companion, Driver
    from pgpu.kubernetes.health import HealthSource
    from pgpu.kubernetes.kubelet.plugin import KubeletPlugin
    from pgpu.kubernetes.kubelet.telling import Telling
    from pgpu.kubernetes.readiness import Readiness
    from pgpu.model import Delivery

STATE_DIRECTORY = Path("/var/lib/pgpu/kubernetes")
RUNTIME_DIRECTORY = Path("/run/pgpu")

_SEALS = "seals"


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Where a node's driver finds its neighbours."""

    node_name: str
    kubelet_directory: Path = Path("/var/lib/kubelet")
    cdi_directory: Path = Path("/var/run/cdi")
    kubeconfig: Path | None = None
    """None: what the environment or the pod's own service account says."""

    metrics: str | None = None
    """HOST:PORT where metrics are served; None for nowhere."""


def drive(settings: Settings, options: NodeOptions, say: Callable[[str], None]) -> None:
    """Be a node's driver until SIGTERM or SIGINT; slices stay.

    Args:
        settings: Of the engine; its state directory is the driver's alone.
        options: Of the node.
        say: Called with each line of the log.

    Raises:
        PgpuError: It cannot begin: another driver is there, the cluster does not answer, the runtime knows no CDI.
    """
    from pgpu.engine.claims.keeping import EngineClaims
    from pgpu.kubernetes.api import Cluster
    from pgpu.kubernetes.driver import alone_on_node

    with alone_on_node(settings.state_dir), contextlib.ExitStack() as stack:
        cluster = Cluster.at(options.kubeconfig)
        stack.callback(cluster.close)
        _check_runtime(cluster, options.node_name, say)
        claims = EngineClaims(make_engine(settings))
        stack.callback(claims.close)
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        _driver(settings, options, say, (claims, cluster), stop).run()
        say("the driver ends; slices stay as they are")


def _check_runtime(cluster: "Cluster", node_name: str, say: Callable[[str], None]) -> None:
    from pgpu.kubernetes.kubelet.container_runtime import check_runtime

    warning = check_runtime(cluster.node(node_name).runtime)
    if warning:
        say(warning)


def _driver(
    settings: Settings,
    options: NodeOptions,
    say: Callable[[str], None],
    parts: "tuple[Claims, Cluster]",
    stop: threading.Event,
) -> "Driver":
    from pgpu.kubernetes.driver import SUBJECTS, Driver
    from pgpu.kubernetes.kubelet.telling import Telling
    from pgpu.kubernetes.readiness import Readiness

    runtime_path = runtime_directory(settings.runtime_dir, settings.state_dir)
    readiness = Readiness(say, SUBJECTS)
    telling = Telling(say, _no_event)
    preparer = _preparer(options, parts, telling, runtime_path / _SEALS, is_simulated=settings.simulate is not None)
    health = _health(settings, runtime_path)

    def plugin(heard: Callable[[str | None], None]) -> "KubeletPlugin":
        return _plugin(options, preparer, telling, health, stop, heard)

    return Driver(preparer, plugin, readiness, _companions(options, parts, health, readiness), stop=stop)


def _preparer(
    options: NodeOptions, parts: "tuple[Claims, Cluster]", telling: "Telling", seals: Path, *, is_simulated: bool
) -> "Preparer":
    from pgpu.kubernetes.claims.cdi_files import CdiFiles
    from pgpu.kubernetes.claims.preparing import Preparer

    files = CdiFiles(options.cdi_directory, seals)
    edits = _no_edits if is_simulated else _gpu_edits
    return Preparer(*parts, files, node=options.node_name, teller=telling, gpu_edits=edits)


def _plugin(  # noqa: PLR0917 - the parts that are joined
    options: NodeOptions,
    preparer: "Preparer",
    telling: "Telling",
    health: "HealthSource",
    stop: threading.Event,
    heard: Callable[[str | None], None],
) -> "KubeletPlugin":
    from pgpu.kubernetes.kubelet import health_stream, preparing
    from pgpu.kubernetes.kubelet.plugin import KubeletPlugin
    from pgpu.kubernetes.names import DRIVER

    services = (
        preparing.ClaimServices(preparer, telling),
        health_stream.HealthService(health, options.node_name, stop),
    )
    versions = (*preparing.VERSIONS, health_stream.VERSION)
    return KubeletPlugin(options.kubelet_directory, DRIVER, services, versions, heard)


def _health(settings: Settings, runtime_path: Path) -> "HealthSource":
    from pgpu.kubernetes.health import GpuHealth

    source = gpu_source(simulated_gpus(settings, runtime_path))
    return GpuHealth(source.gpus, source.watch_xids().seen)


def _companions(
    _options: NodeOptions, _parts: "tuple[Claims, Cluster]", _health: "HealthSource", _readiness: "Readiness"
) -> "tuple[Companion, ...]":
    return ()


def _no_event(_found: "ResourceClaim", _reason: str, _note: str) -> None:
    """Nobody is told."""


def _no_edits(_delivery: "Delivery") -> None:
    """A simulated GPU needs no device."""


def _gpu_edits(delivery: "Delivery") -> Mapping[str, list[Any]]:
    from pgpu.app.oci.cdi import gpu_edits

    return gpu_edits(gpu_uuids=delivery.gpu_uuids)[0]
