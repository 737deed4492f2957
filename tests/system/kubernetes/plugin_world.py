"""A kubelet that asks our device plugin over real sockets, over claims in memory."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.claims import FakeClaims, gpu
from tests.fakes.kubelet_pods import FakeKubelet, FakePod
from tests.kubernetes_log import logged
from tests.waiting import until

from pgpu.engine.claims import ClaimableGpu
from pgpu.kubernetes.device_plugin.device_plugin import SUBJECTS, DevicePlugin
from pgpu.kubernetes.device_plugin.slice_delivery import MountDelivery
from pgpu.kubernetes.node_health import DriverReadiness
from pgpu.kubernetes.pod_resources import KubeletPods
from pgpu.kubernetes.unit_ids import uid_of, unit_of
from pgpu.model import Claim, Delivery, Gpu, HeldClaim
from pgpu.units import GIB


class CountingClaims(FakeClaims):
    """Claims that know of processes, and say whose slices were taken away."""

    def __init__(self, directory: Path, gpus: Sequence[Gpu]) -> None:
        super().__init__(directory, gpus)
        self.freed: list[str] = []
        self.after_gpus: Callable[[], object] = lambda: None
        self.meanwhile: Callable[[], object] = lambda: None
        """Happens when a slice was made or freed, before anybody hears of it."""

    def gpus(self) -> Sequence[ClaimableGpu]:
        offers = super().gpus()
        self.after_gpus()
        return offers

    def hold(self, claim: Claim, gpus: Sequence[ClaimableGpu] | None = None) -> HeldClaim:
        held = super().hold(claim, gpus)
        self.meanwhile()
        return held

    def free(self, uid: str) -> None:
        self.freed.append(uid)
        super().free(uid)
        self.meanwhile()


@dataclass
class Node:
    """A kubelet, and our plugin beside it."""

    home: Path
    claims: CountingClaims
    kubelet: FakeKubelet
    said: list[str]
    grace_seconds: float = 0.0
    plugin: DevicePlugin | None = None

    def start_plugin(self) -> None:
        self.readiness = DriverReadiness(SUBJECTS)
        self.plugin = DevicePlugin(
            claims=self.claims,
            pods=KubeletPods(self.kubelet.directory),
            delivery=MountDelivery(self.home / "links", edits),
            readiness=self.readiness,
            kubelet_directory=self.kubelet.directory,
            grace_seconds=self.grace_seconds,
            poll_seconds=0.02,
        )
        self.plugin.start()

    def stop_plugin(self) -> None:
        if self.plugin is not None:
            self.plugin.close()
            self.plugin = None

    def until_known(self, units: int) -> None:
        until(lambda: len(self.kubelet.healthy) == units, lambda: (len(self.kubelet.healthy), self.said))

    def run(self, pod: FakePod, container: str = "c") -> None:
        """Start a container that uses its GPU."""
        self.kubelet.start_container(pod, container)
        self.claims.processes[uid_of(unit_of(each) for each in self.kubelet.ids(pod, container))] = 1

    def remove(self, pod: FakePod) -> None:
        """Let a pod end."""
        for name in self.kubelet.allocated.get((pod.namespace, pod.name), {}):
            self.claims.processes.pop(uid_of(unit_of(each) for each in self.kubelet.ids(pod, name)), None)
        self.kubelet.remove(pod)

    def slices(self) -> list[int]:
        """How many GiB each slice has."""
        return sorted(each.claim.slices[0].memory_bytes // GIB for each in self.claims.held())


def edits(delivery: Delivery, seal: Path) -> dict[str, list[Any]]:
    return {
        "env": ["A=1=2"],
        "mounts": [
            {"hostPath": str(delivery.slice_directory), "containerPath": "/.pgpu", "options": ["bind", "ro"]},
            {"hostPath": str(delivery.usage_path), "containerPath": "/.pgpu/usage", "options": ["bind", "rw"]},
            {"hostPath": str(seal), "containerPath": "/seal", "options": ["bind", "ro"]},
        ],
        "deviceNodes": [{"path": "/dev/nvidia0", "permissions": "rw"}, {"path": "/dev/a", "hostPath": "/dev/b"}],
        "hooks": [{"hookName": "createContainer", "path": "/bin/true"}],
    }


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """Return one whose sockets' paths are not too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="k") as name:
        yield Path(name)


@pytest.fixture
def make(tmp_path: Path, short_directory: Path) -> Iterator[Callable[..., Node]]:
    made: list[Node] = []

    def node(gpus: int = 1, gib: int = 80, grace_seconds: float = 0.0) -> Node:
        claims = CountingClaims(tmp_path / "slices", [gpu(index, gib * GIB) for index in range(gpus)])
        made.append(Node(tmp_path, claims, FakeKubelet(short_directory), said, grace_seconds))
        made[-1].kubelet.start()
        made[-1].start_plugin()
        made[-1].until_known(gpus * gib)
        return made[-1]

    with logged() as said:
        yield node
        for each in made:
            each.stop_plugin()
            each.kubelet.stop()


Make = Callable[..., Node]


def until_looked(node: Node) -> None:
    """Wait until the plugin has asked the kubelet twice for its pods."""
    before = node.kubelet.lists
    until(lambda: node.kubelet.lists >= before + 3)
