"""A node's publisher before a fake API server, for tests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.fakes.api_objects import Object
from tests.fakes.api_server import EVENTS, SLICES, ApiServer
from tests.fakes.claims import FakeClaims, gpu
from tests.kubernetes_log import logged

from pgpu.engine.claims import ClaimableGpu
from pgpu.errors import NodeError
from pgpu.kubernetes.api import ClusterClient, connect
from pgpu.kubernetes.cluster_events import EventRecorder
from pgpu.kubernetes.node_health import DriverReadiness, HealthReport
from pgpu.kubernetes.resource_slices import Pace, PoolPlanner, Publisher
from pgpu.model import Claim, Slice

NODE = "node1"
SHARED = gpu(0).uuid.lower()


@dataclass
class Ills:
    """Says what a test says of the GPUs."""

    known: dict[str, HealthReport] = field(default_factory=dict)

    def health(self) -> Mapping[str, HealthReport]:
        return self.known


class Unreadable(FakeClaims):
    """Claims whose GPUs cannot be read while it is on."""

    on = False
    has_bug = False

    def gpus(self) -> Sequence[ClaimableGpu]:
        if self.has_bug:
            raise ZeroDivisionError
        if self.on:
            raise NodeError("the node lost its driver")
        return super().gpus()


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


class World:
    """An API server, a node with two GPUs, and their publisher."""

    def __init__(self, server: ApiServer, directory: Path, token: str = "") -> None:
        self.server = server
        self.claims = self.unreadable = Unreadable(directory, [gpu(0), gpu(1)])
        self.ills, self.clock = Ills(), Clock()
        self._log = logged()
        self.said = self._log.__enter__()
        self.readiness = DriverReadiness()
        self.cluster = ClusterClient(connect(server.kubeconfig(directory, token)), pause=lambda _: False)
        self.events = EventRecorder(self.cluster, NODE, self.clock)
        self.events.start()
        self.publisher = self.another()

    def another(self) -> Publisher:
        """Return the publisher of the driver that comes next."""
        pace = Pace(poll_seconds=3600, first_pause_seconds=0.01, longest_pause_seconds=0.02)
        looking = PoolPlanner(self.claims, self.ills)
        return Publisher(
            self.cluster, NODE, looking, events=self.events, readiness=self.readiness, pace=pace, clock=self.clock
        )

    def hold(self, index: int, memory_bytes: int) -> None:
        self.claims.hold(Claim(f"uid-{index}", "default", "claim", (Slice(gpu(index).uuid, memory_bytes),)))

    def end(self) -> None:
        self.publisher.stop()
        self.events.stop()
        self.cluster.close()
        self._log.__exit__(None, None, None)

    @property
    def devices(self) -> dict[str, Object]:
        return {each["name"]: each for found in self.server.slices() for each in found["spec"].get("devices") or []}

    @property
    def generations(self) -> set[int]:
        return {found["spec"]["pool"]["generation"] for found in self.server.slices()}

    @property
    def writes(self) -> int:
        return sum(verb in {"create", "update", "delete", "patch"} for verb in self.server.verbs())

    def reasons(self) -> list[str]:
        return [event["reason"] for event in self.server.objects.all(EVENTS)]


def wipe(server: ApiServer) -> None:
    """As a kubelet does when it starts."""
    for found in server.slices():
        server.objects.delete(SLICES, "", found["metadata"]["name"])
