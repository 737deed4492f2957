"""`pgpu kubernetes driver`: joins the engine and its claims with the rooms that serve the kubelet and the API server."""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgpu.app.composition import gpu_source, make_engine, simulated_gpus
from pgpu.app.runtime_directory import runtime_directory
from pgpu.app.settings import Settings
from pgpu.kubernetes.driver_mode import Mode, alone_on_node, enter_mode
from pgpu.structs import Struct

if TYPE_CHECKING:
    from pgpu.engine.claims import Claims
    from pgpu.kubernetes.api import ClusterClient, Node, ResourceClaim
    from pgpu.kubernetes.cdi_files import CdiFiles
    from pgpu.kubernetes.device_plugin.slice_delivery import SliceDelivery
    from pgpu.kubernetes.dra.dra_driver import Companion
    from pgpu.kubernetes.node_health import DriverReadiness, HealthSource
    from pgpu.kubernetes.pod_resources import KubeletPods
    from pgpu.kubernetes.resource_slices import PoolPlanner
    from pgpu.model import Delivery

_log = logging.getLogger("pgpu.kubernetes.driver")

STATE_DIRECTORY = Path("/var/lib/pgpu/kubernetes")
RUNTIME_DIRECTORY = Path("/run/pgpu")

_SEALS = "seals"
_LINKS = "plugin"


class NodeOptions(Struct, frozen=True):
    """Options of a node's driver."""

    node_name: str
    mode: Mode = Mode.DRA
    kubelet_directory: Path = Path("/var/lib/kubelet")
    cdi_directory: Path = Path("/var/run/cdi")
    kubeconfig: Path | None = None
    """None: the pod's service account."""

    metrics: str | None = None
    """HOST:PORT of the HTTP server; None: there is none."""

    default_memory_bytes: int | None = None
    """Size of claims that name no memory; None: the usual."""

    oversubscribes: bool = False
    """Whether GPUs are also offered to claims with memory that may lie on the host."""


def drive(settings: Settings, options: NodeOptions) -> None:
    """Run a node's driver until SIGTERM or SIGINT; slices stay.

    Args:
        settings: Of the engine; nothing else may use its state directory.
        options: Of the node.

    Raises:
        PgpuError: It cannot start: another driver runs, slices of the other mode are held, or the container runtime does not
            support CDI. While the API server is away, or refuses that the node is read, it retries.
    """
    from pgpu.engine.claims.engine_claims import EngineClaims
    from pgpu.kubernetes.api import ClusterClient

    # The lock of the node comes first: during a rolling update of the DaemonSet two drivers may be alive for a moment.
    with alone_on_node(settings.state_dir), contextlib.ExitStack() as stack:
        cluster = ClusterClient.at(options.kubeconfig)
        stack.callback(cluster.close)
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        # From here on a SIGTERM only sets `stop`: what was started is closed in order, in reverse.
        driver = (_DraMode if options.mode is Mode.DRA else _DevicePluginMode)(settings, options, cluster, stop)
        claims = EngineClaims(make_engine(settings))
        stack.callback(claims.close)
        # After the engine: slices that an earlier driver granted in the other mode are in its ledger.
        enter_mode(options.mode, claims, driver.pods)
        driver.run(claims)
    _log.info("the driver ended; slices stay as they are")


@dataclass
class _Parts:
    """Parts of both modes, each made at its first use."""

    settings: Settings
    options: NodeOptions
    cluster: "ClusterClient"
    stop: threading.Event

    @cached_property
    def runtime_path(self) -> Path:
        return runtime_directory(self.settings.runtime_dir, self.settings.state_dir)

    @cached_property
    def files(self) -> "CdiFiles":
        from pgpu.kubernetes.cdi_files import CdiFiles

        return CdiFiles(self.options.cdi_directory, self.runtime_path / _SEALS)

    @cached_property
    def health(self) -> "HealthSource":
        from pgpu.kubernetes.node_health import GpuHealth

        source = gpu_source(simulated_gpus(self.settings, self.runtime_path))
        return GpuHealth(source.gpus, source.watch_xids().fatal_xids)

    @cached_property
    def pods(self) -> "KubeletPods":
        from pgpu.kubernetes.pod_resources import KubeletPods

        return KubeletPods(self.options.kubelet_directory)

    def http(self, claims: "Claims", readiness: "DriverReadiness") -> "tuple[Companion, ...]":
        """Return the HTTP server, if `--metrics` names an address."""
        from pgpu.kubernetes.driver_http import DriverHttpServer, NodeView

        if self.options.metrics is None:
            return ()
        return (DriverHttpServer(self.options.metrics, NodeView(claims, self.pods), readiness),)

    def gpu_edits(self, delivery: "Delivery") -> Mapping[str, list[Any]] | None:
        """Return what real GPUs need in a container; None: they are simulated."""
        from pgpu.app.oci.cdi import gpu_edits

        return None if self.settings.simulate else gpu_edits(gpu_uuids=delivery.gpu_uuids)[0]


class _DraMode(_Parts):
    """Serves ResourceClaims."""

    is_checked: bool = False
    """Whether the container runtime reads CDI files."""

    def check(self) -> None:
        """Refuse a container runtime that would start pods without their slice; no request after the first success."""
        from pgpu.kubernetes.node_requirements import check_runtime

        if self.is_checked:
            return
        warning = check_runtime(self.cluster.node(self.options.node_name).runtime)
        self.is_checked = True
        if warning:
            _log.warning("%s", warning)

    def run(self, claims: "Claims") -> None:
        """Serve until `stop` is set."""
        from pgpu.kubernetes import names
        from pgpu.kubernetes.cluster_events import EventRecorder
        from pgpu.kubernetes.dra.claim_events import ClaimEvents
        from pgpu.kubernetes.dra.claim_preparation import ClaimPreparer
        from pgpu.kubernetes.dra.dra_driver import SUBJECTS, Driver
        from pgpu.kubernetes.dra.dra_service import DRA_VERSIONS, HEALTH_VERSION, ClaimService, HealthService
        from pgpu.kubernetes.dra.orphaned_claims import OrphanCollector
        from pgpu.kubernetes.dra.plugin_registration import KubeletPlugin
        from pgpu.kubernetes.node_health import DriverReadiness, HealthChangeNotifier
        from pgpu.kubernetes.resource_slices import Publisher

        options, node_name = self.options, self.options.node_name
        readiness = DriverReadiness(SUBJECTS)
        recorder = EventRecorder(self.cluster, node_name)

        def warn(found: "ResourceClaim", reason: str, note: str) -> None:
            recorder.warn(found.object_name, reason, note)

        events = ClaimEvents(warn)
        preparer = ClaimPreparer(
            claims,
            self.cluster,
            self.files,
            node=node_name,
            events=events,
            gpu_edits=self.gpu_edits,
            check_node=self.check,
        )
        planner = self._planner(claims)
        publisher = Publisher(self.cluster, node_name, planner, events=recorder, readiness=readiness)
        services = (ClaimService(preparer, events, self.stop), HealthService(self.health, node_name, self.stop))
        versions = (*(each.name for each in DRA_VERSIONS), HEALTH_VERSION)

        def make_plugin(registered: Callable[[str | None], None]) -> KubeletPlugin:
            return KubeletPlugin(options.kubelet_directory, names.DRIVER, services, versions, registered)

        orphans = OrphanCollector(preparer, self.cluster, claims.uses, time.monotonic)
        Driver(
            preparer,
            make_plugin,
            readiness,
            self.check,
            # Stopped in reverse: the recorder last, so that the others can still write events.
            (recorder, publisher, *self.http(claims, readiness)),
            chores={"health of GPUs": HealthChangeNotifier(self.health, publisher.wake).poll},
            slow_chores={"forgotten claims": orphans.collect},
            stop=self.stop,
        ).run()

    def _planner(self, claims: "Claims") -> "PoolPlanner":
        from pgpu.kubernetes.names import DeviceKind
        from pgpu.kubernetes.resource_slices import DEFAULT_MEMORY_BYTES, USUAL_KINDS, PoolPlanner

        kinds = tuple(DeviceKind) if self.options.oversubscribes else USUAL_KINDS
        return PoolPlanner(claims, self.health, self.options.default_memory_bytes or DEFAULT_MEMORY_BYTES, kinds)


class _DevicePluginMode(_Parts):
    """Serves GiB of memory as a countable resource, for clusters without shared DRA devices; any container runtime will do."""

    def run(self, claims: "Claims") -> None:
        """Serve until `stop` is set."""
        from pgpu.kubernetes.device_plugin.device_plugin import SUBJECTS, DevicePlugin
        from pgpu.kubernetes.dra.dra_driver import FILES, POLL_SECONDS
        from pgpu.kubernetes.node_health import DriverReadiness

        readiness = DriverReadiness(SUBJECTS)
        plugin = DevicePlugin(
            claims=claims,
            pods=self.pods,
            delivery=self._delivery(),
            readiness=readiness,
            kubelet_directory=self.options.kubelet_directory,
            health=self.health,
        )
        with contextlib.ExitStack() as stack:
            # HTTP before the plugin: the kubelet's probes get an answer while the plugin still registers.
            for companion in self.http(claims, readiness):
                companion.start()
                stack.callback(companion.stop)
            plugin.start()
            stack.callback(plugin.close)
            # Other programs write to the directory of CDI files, too: ours are compared and written again in each round.
            while not self.stop.is_set():
                readiness.attempt(FILES, lambda: self.files.mend(is_complete=True))
                self.stop.wait(POLL_SECONDS)

    def _delivery(self) -> "SliceDelivery":
        from pgpu.kubernetes.device_plugin.slice_delivery import CdiDelivery, MountDelivery
        from pgpu.kubernetes.dra.container_edits import container_edits
        from pgpu.kubernetes.node_requirements import passes_cdi_of_plugins

        def edits(delivery: "Delivery", seal: Path) -> Mapping[str, list[Any]]:
            return container_edits(delivery, seal, os.uname().machine, self.gpu_edits(delivery))

        # The kubelet passes CDI names of device plugins to the runtime only from some version on; before, files are mounted.
        node = self._node()
        if passes_cdi_of_plugins(node.runtime, node.kubelet):
            return CdiDelivery(self.files, edits)
        return MountDelivery(self.runtime_path / _LINKS, edits)

    def _node(self) -> "Node":
        """Read this node; again and again while the API server is away or refuses, as one that starts does."""
        from pgpu.errors import ClusterError
        from pgpu.kubernetes.dra.dra_driver import CHECK_SECONDS

        while True:
            try:
                return self.cluster.node(self.options.node_name)
            except ClusterError as exc:
                _log.warning("no unit is offered yet: %s", exc)
                if self.stop.wait(CHECK_SECONDS):
                    raise
