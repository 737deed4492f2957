"""A node with a driver on it: an API server with claims, a kubelet that asks, and what the driver is made of."""

import json
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.clearing import clear
from tests.fakes.api_server import CLAIMS, ApiServer, running
from tests.fakes.claims import FakeClaims, gpu
from tests.fakes.kubelet import FakeKubelet
from tests.kubernetes_log import logged
from tests.waiting import until

from pgpu.errors import NodeError, PgpuError
from pgpu.kubernetes import names
from pgpu.kubernetes.api import ClusterClient
from pgpu.kubernetes.cdi_files import CdiFiles
from pgpu.kubernetes.dra.claim_events import ClaimEvents
from pgpu.kubernetes.dra.claim_preparation import ClaimPreparer
from pgpu.kubernetes.dra.dra_driver import SUBJECTS, Companion, Driver
from pgpu.kubernetes.dra.dra_service import ClaimService, HealthService
from pgpu.kubernetes.dra.plugin_registration import KubeletPlugin, Service
from pgpu.kubernetes.generated import dra_v1_pb2 as dra
from pgpu.kubernetes.node_health import DriverReadiness, HealthReport, HealthState
from pgpu.model import Delivery

NODE = "node1"
GPU = gpu(0)


def result(memory: str = "30Gi", request: str = "gpu", **words: Any) -> dict[str, Any]:
    """Return one result of an allocation, as a 1.36 cluster writes it."""
    device = names.shared_device(GPU.uuid)
    shared = {"consumedCapacity": {"memory": memory}, "shareID": "share-1"}
    return {"driver": names.DRIVER, "pool": NODE, "device": device, "request": request, **shared} | words


def allocated(
    name: str, results: Sequence[Mapping[str, Any]] | None = None, config: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return a claim that the scheduler allocated."""
    devices = {"results": [result()] if results is None else list(results), "config": list(config)}
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.pgpu.io"}}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [request]}},
        "status": {"allocation": {"devices": devices}},
    }


@dataclass
class KnownHealth:
    """Says what a test wants it to say."""

    known: dict[str, HealthReport]

    def health(self) -> Mapping[str, HealthReport]:
        return dict(self.known)


@dataclass
class World:
    """One node, its kubelet, its cluster."""

    root: Path
    api: ApiServer
    claims: FakeClaims
    said: list[str]
    health: dict[str, HealthReport] = field(default_factory=dict)
    companions: list[Companion] = field(default_factory=list)
    slow_chores: dict[str, Callable[[], None]] = field(default_factory=dict)
    node_error: PgpuError | None = None
    """What the driver reads of its node's container runtime; None: it will do."""

    undescribed: set[str] = field(default_factory=set)
    """UUIDs of GPUs of which nothing says what they need in a container."""

    def __post_init__(self) -> None:
        self.kubelet = FakeKubelet(self.root / "k")
        self.cdi = self.root / "cdi"
        self.health[GPU.uuid] = HealthReport(GPU.uuid, HealthState.HEALTHY, since_seconds=5.0)

    def gpu_edits(self, delivery: Delivery) -> None:
        if self.undescribed & set(delivery.gpu_uuids):
            raise NodeError("no description of the machine's GPUs")

    def check_node(self) -> None:
        if self.node_error is not None:
            raise self.node_error

    def add(self, found: dict[str, Any]) -> dra.Claim:
        """Let the API server know a claim, and return what the kubelet says of it."""
        stored = self.api.objects.create(CLAIMS, "default", found)["metadata"]
        return dra.Claim(namespace="default", name=stored["name"], uid=stored["uid"])

    def cdi_file(self, claim: dra.Claim) -> Path:
        return self.cdi / f"pgpu.io-claim-{claim.uid}.json"

    def edits(self, claim: dra.Claim) -> dict[str, Any]:
        """Return what a claim's CDI file changes in a container."""
        (device,) = json.loads(self.cdi_file(claim).read_text())["devices"]
        found: dict[str, Any] = device["containerEdits"]
        return found

    def driver(self) -> tuple[Driver, ClusterClient]:
        cluster = ClusterClient.at(self.api.kubeconfig(self.root))
        events = ClaimEvents(lambda found, reason, note: self.said.append(f"{found.name} {reason}: {note}"))
        files = CdiFiles(self.cdi, self.root / "seals")
        preparer = ClaimPreparer(
            self.claims,
            cluster,
            files,
            node=NODE,
            events=events,
            gpu_edits=self.gpu_edits,
            check_node=self.check_node,
        )
        stop = threading.Event()
        services: list[Service] = [
            ClaimService(preparer, events, stop),
            HealthService(KnownHealth(self.health), NODE, stop),
        ]

        def plugin(heard: Any) -> KubeletPlugin:
            return KubeletPlugin(self.kubelet.directory, names.DRIVER, services, ["v1.DRAPlugin"], heard)

        self.readiness = DriverReadiness(SUBJECTS)
        driver = Driver(
            preparer,
            plugin,
            self.readiness,
            self.check_node,
            self.companions,
            slow_chores=self.slow_chores,
            poll_seconds=0.02,
            stop=stop,
        )
        return driver, cluster

    @contextmanager
    def running(self) -> Iterator[Driver]:
        """Run the driver until the block ends, and have the kubelet take it."""
        driver, cluster = self.driver()
        thread = threading.Thread(target=driver.run)
        thread.start()
        try:
            until(self.kubelet.sockets)
            self.kubelet.register()
            yield driver
        finally:
            driver.stop.set()
            thread.join()
            cluster.close()


@contextmanager
def world(gpus: int = 1) -> Iterator[World]:
    """Make one, on a tmpfs with short paths."""
    root = Path(tempfile.mkdtemp(prefix="pgpu-k-", dir="/dev/shm"))
    try:
        with running() as api, logged() as said:
            yield World(root, api, FakeClaims(root / "slices", [gpu(number) for number in range(gpus)]), said)
    finally:
        clear(root)
