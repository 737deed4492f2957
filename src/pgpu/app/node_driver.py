"""Joins the parts of `pgpu kubernetes driver`: the engine, its claims, and what speaks with the kubelet and the API server.

It refuses to decide: the room `kubernetes` does.
"""

import contextlib
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
from pgpu.kubernetes.driver_mode import Mode, enter_mode

if TYPE_CHECKING:
    from pgpu.engine.claims import Claims
    from pgpu.kubernetes.api import Cluster, ResourceClaim
    from pgpu.kubernetes.cluster_events import EventRecorder
    from pgpu.kubernetes.device_plugin.slice_delivery import SliceDelivery
    from pgpu.kubernetes.dra.cdi_files import CdiFiles
    from pgpu.kubernetes.dra.claim_events import ClaimEvents
    from pgpu.kubernetes.dra.dra_driver import Companion
    from pgpu.kubernetes.dra.plugin_sockets import KubeletPlugin
    from pgpu.kubernetes.driver_readiness import Readiness
    from pgpu.kubernetes.gpu_health import HealthSource
    from pgpu.kubernetes.pod_resources import KubeletPods
    from pgpu.kubernetes.resource_slices import Publisher
    from pgpu.model import Delivery

STATE_DIRECTORY = Path("/var/lib/pgpu/kubernetes")
RUNTIME_DIRECTORY = Path("/run/pgpu")

_SEALS = "seals"
_LINKS = "plugin"


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Where a node's driver finds its neighbours."""

    node_name: str
    mode: Mode = Mode.DRA
    kubelet_directory: Path = Path("/var/lib/kubelet")
    cdi_directory: Path = Path("/var/run/cdi")
    kubeconfig: Path | None = None
    """None: what the environment or the pod's own service account says."""

    metrics: str | None = None
    """HOST:PORT where metrics are served; None for nowhere."""

    default_memory_bytes: int | None = None
    """What a claim that names no memory gets; None for the usual."""

    oversubscribes: bool = False
    """Whether GPUs are also offered to claims whose memory may lie on the host."""


def drive(settings: Settings, options: NodeOptions, say: Callable[[str], None]) -> None:
    """Be a node's driver until SIGTERM or SIGINT; slices stay.

    Args:
        settings: Of the engine; its state directory is the driver's alone.
        options: Of the node.
        say: Called with each line of the log.

    Raises:
        PgpuError: It cannot begin: another driver is there, or slices of the other mode; the cluster does not answer; the
            runtime knows no CDI.
    """
    from pgpu.engine.claims.engine_claims import EngineClaims
    from pgpu.kubernetes.api import Cluster
    from pgpu.kubernetes.dra.dra_driver import alone_on_node

    with alone_on_node(settings.state_dir), contextlib.ExitStack() as stack:
        cluster = Cluster.at(options.kubeconfig)
        stack.callback(cluster.close)
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        begin = _Dra if options.mode is Mode.DRA else _DevicePlugin
        driver = begin(settings, options, say, cluster, stop)
        driver.check()
        claims = EngineClaims(make_engine(settings))
        stack.callback(claims.close)
        enter_mode(options.mode, claims, driver.pods)
        driver.run(claims)
    say("the driver ended; slices stay as they are")


@dataclass
class _Parts:
    """What both modes need; each part is made when it is first asked for."""

    settings: Settings
    options: NodeOptions
    say: Callable[[str], None]
    cluster: "Cluster"
    stop: threading.Event

    @cached_property
    def runtime_path(self) -> Path:
        return runtime_directory(self.settings.runtime_dir, self.settings.state_dir)

    @cached_property
    def files(self) -> "CdiFiles":
        from pgpu.kubernetes.dra.cdi_files import CdiFiles

        return CdiFiles(self.options.cdi_directory, self.runtime_path / _SEALS)

    @cached_property
    def health(self) -> "HealthSource":
        from pgpu.kubernetes.gpu_health import GpuHealth

        source = gpu_source(simulated_gpus(self.settings, self.runtime_path))
        return GpuHealth(source.gpus, source.watch_xids().seen)

    @cached_property
    def readiness(self) -> "Readiness":
        from pgpu.kubernetes.driver_readiness import Readiness

        return Readiness(self.say, self.subjects)

    @property
    def subjects(self) -> tuple[str, ...]:
        raise NotImplementedError

    @cached_property
    def pods(self) -> "KubeletPods":
        from pgpu.kubernetes.pod_resources import KubeletPods

        return KubeletPods(self.options.kubelet_directory)

    def web(self, claims: "Claims") -> "tuple[Companion, ...]":
        """Return who serves metrics, where somebody shall."""
        from pgpu.kubernetes.driver_http import DriverHttpServer
        from pgpu.kubernetes.node_view import NodeView

        if self.options.metrics is None:
            return ()
        return (DriverHttpServer(self.options.metrics, NodeView(claims, self.pods), self.readiness),)

    def gpu_edits(self, delivery: "Delivery") -> Mapping[str, list[Any]] | None:
        """Return what real GPUs need in a container; simulated ones need nothing."""
        from pgpu.app.oci.cdi import gpu_edits

        return None if self.settings.simulate else gpu_edits(gpu_uuids=delivery.gpu_uuids)[0]


class _Dra(_Parts):
    """Claims of DRA."""

    @property
    def subjects(self) -> tuple[str, ...]:
        from pgpu.kubernetes.dra.dra_driver import SUBJECTS

        return SUBJECTS

    def check(self) -> None:
        """Refuse a runtime that would start pods without their slice."""
        from pgpu.kubernetes.node_requirements import check_runtime

        warning = check_runtime(self.cluster.node(self.options.node_name).runtime)
        if warning:
            self.say(warning)

    def run(self, claims: "Claims") -> None:
        """Serve until it is told to stop."""
        from pgpu.kubernetes.dra.claim_events import ClaimEvents
        from pgpu.kubernetes.dra.claim_preparation import ClaimPreparer
        from pgpu.kubernetes.dra.dra_driver import Driver
        from pgpu.kubernetes.dra.orphaned_claims import OrphanCollector
        from pgpu.kubernetes.gpu_health import HealthChangeNotifier

        telling = ClaimEvents(self.say, self._warn)
        preparer = ClaimPreparer(
            claims,
            self.cluster,
            self.files,
            node=self.options.node_name,
            teller=telling,
            gpu_edits=self.gpu_edits,
        )
        publisher = self._publisher(claims)
        Driver(
            preparer,
            lambda heard: self._plugin(preparer, telling, heard),
            self.readiness,
            (self.events, publisher, *self.web(claims)),
            chores={"health of GPUs": HealthChangeNotifier(self.health, publisher.wake).look},
            slow_chores={
                "forgotten claims": OrphanCollector(preparer, self.cluster, claims.uses, self.say, time.monotonic).look
            },
            stop=self.stop,
        ).run()

    @cached_property
    def events(self) -> "EventRecorder":
        from pgpu.kubernetes.cluster_events import EventRecorder

        return EventRecorder(self.cluster, self.options.node_name)

    def _warn(self, found: "ResourceClaim", reason: str, note: str) -> None:
        self.events.warn(found.object_name, reason, note)

    def _publisher(self, claims: "Claims") -> "Publisher":
        from pgpu.kubernetes.names import DeviceKind
        from pgpu.kubernetes.resource_slices import DEFAULT_MEMORY_BYTES, USUAL_KINDS, PoolPlanner, Publisher

        kinds = tuple(DeviceKind) if self.options.oversubscribes else USUAL_KINDS
        looking = PoolPlanner(claims, self.health, self.options.default_memory_bytes or DEFAULT_MEMORY_BYTES, kinds)
        node_name = self.options.node_name
        return Publisher(self.cluster, node_name, looking, events=self.events, readiness=self.readiness)

    def _plugin(self, preparer: "Any", telling: "ClaimEvents", heard: Callable[[str | None], None]) -> "KubeletPlugin":
        from pgpu.kubernetes.dra import dra_service, health_stream
        from pgpu.kubernetes.dra.plugin_sockets import KubeletPlugin
        from pgpu.kubernetes.names import DRIVER

        services = (
            dra_service.ClaimService(preparer, telling),
            health_stream.HealthService(self.health, self.options.node_name, self.stop),
        )
        versions = (*dra_service.VERSIONS, health_stream.VERSION)
        return KubeletPlugin(self.options.kubelet_directory, DRIVER, services, versions, heard)


class _DevicePlugin(_Parts):
    """GiB of memory as a countable resource, for clusters without shared devices of DRA."""

    @property
    def subjects(self) -> tuple[str, ...]:
        from pgpu.kubernetes.device_plugin.device_plugin import SUBJECTS

        return SUBJECTS

    def check(self) -> None:
        """Any runtime will do: where it may not read CDI files there are mounts."""

    def run(self, claims: "Claims") -> None:
        """Serve until it is told to stop."""
        from pgpu.kubernetes.device_plugin.device_plugin import DevicePlugin
        from pgpu.kubernetes.dra.dra_driver import look_after_files

        plugin = DevicePlugin(
            claims=claims,
            pods=self.pods,
            delivering=self._delivering(),
            readiness=self.readiness,
            kubelet_directory=self.options.kubelet_directory,
            health=self.health,
            say=self.say,
        )
        with contextlib.ExitStack() as stack:
            for companion in self.web(claims):
                companion.start()
                stack.callback(companion.stop)
            plugin.start()
            stack.callback(plugin.close)
            look_after_files(self.files, self.readiness, self.stop)

    def _delivering(self) -> "SliceDelivery":
        from pgpu.kubernetes.device_plugin.slice_delivery import CdiDelivery, MountDelivery
        from pgpu.kubernetes.node_requirements import hands_on_cdi_of_plugins

        node = self.cluster.node(self.options.node_name)
        if hands_on_cdi_of_plugins(node.runtime, node.kubelet):
            return CdiDelivery(self.files, self._edits)
        return MountDelivery(self.runtime_path / _LINKS, self._edits)

    def _edits(self, delivery: "Delivery", seal: Path) -> Mapping[str, list[Any]]:
        from pgpu.kubernetes.dra.container_edits import container_edits

        return container_edits(delivery, seal, os.uname().machine, self.gpu_edits(delivery))
