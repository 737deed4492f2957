"""The driver as it runs on a node: a process of its own, with the real engine on simulated GPUs, before a fake kubelet and cluster."""

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.clearing import clear, kill_at_work
from tests.fakes.api_server import CLAIMS, NODES, ApiServer, running
from tests.fakes.kubelet import FakeKubelet
from tests.forked_commands import Process, run_command, start_command
from tests.waiting import until

from pgpu.enforcement import limit_file, meter
from pgpu.kubernetes.generated import dra_v1_pb2 as dra
from pgpu.model import Delivery
from pgpu.runtimes.claim_runtime import read_delivery

NODE = "node1"
_SERVES = "sockets for the kubelet: in order"


@dataclass
class Node:
    """A machine with a driver process that can be killed and started again."""

    root: Path
    api: ApiServer
    simulate: str = "h100"
    process: Process | None = None

    def __post_init__(self) -> None:
        self.kubelet = FakeKubelet(self.root / "k")
        self.cdi = self.root / "cdi"
        self.state = self.root / "state"
        self.log_path = self.root / "log"

    def start(self) -> None:
        """Start a driver, and have the kubelet take it."""
        before = self.log().count(_SERVES) if self.log_path.exists() else 0
        self.launch()
        until(lambda: self.log().count(_SERVES) > before, self.log)
        self.kubelet.register()

    def launch(self, *more: str) -> Process:
        """Start a driver and do not wait for it."""
        words = ["kubernetes", "driver", "--node-name", NODE, "--simulate", self.simulate]
        words += ["--kubelet-dir", str(self.kubelet.directory), "--cdi-dir", str(self.cdi)]
        words += ["--state-dir", str(self.state), "--runtime-dir", str(self.root)]
        words += ["--kubeconfig", str(self.api.kubeconfig(self.root)), *more]
        with self.log_path.open("ab") as log:
            environment = {name: os.environ[name] for name in os.environ if not name.startswith("PGPU_")}
            self.process = start_command(words, environment, stdout=log, stderr=log)
        return self.process

    def end(self, number: int = signal.SIGTERM) -> int:
        """End the driver, and return how it ended."""
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait()
        self.process = None
        self.kubelet.restart()
        return code

    def reboot(self) -> None:
        """Lose what a machine loses: its processes, its mounts and every tmpfs; the disk keeps the state."""
        if self.process is not None:
            self.process.kill()  # it has no words on its command line
        kill_at_work(self.root)
        kept = {path.name for path in (self.state, self.kubelet.directory, self.log_path)}
        for path in self.root.iterdir():
            if path.name not in kept:
                clear(path)
                path.unlink(missing_ok=True)
        for link in self.state.glob("runtime"):
            link.unlink()

    def log(self) -> str:
        return self.log_path.read_text()

    def add(self, found: dict[str, Any]) -> dra.Claim:
        """Let the API server know a claim, and return what the kubelet says of it."""
        stored = self.api.objects.create(CLAIMS, "default", found)["metadata"]
        return dra.Claim(namespace="default", name=stored["name"], uid=stored["uid"])

    def gpu_uuid(self) -> str:
        """Return the UUID of the first simulated GPU."""
        words = ("--state-dir", str(self.state), "--simulate", self.simulate, "gpus", "--json")
        environment = os.environ | {"PGPU_RUNTIME_DIR": str(self.root), "PGPU_HOST": "embedded"}
        found = run_command(words, environment)
        uuid: str = json.loads(found.stdout)["gpus"][0]["uuid"]
        return uuid

    def cdi_file(self, claim: dra.Claim) -> Path:
        return self.cdi / f"pgpu.io-claim-{claim.uid}.json"

    def edits(self, claim: dra.Claim) -> dict[str, Any]:
        (device,) = json.loads(self.cdi_file(claim).read_text())["devices"]
        found: dict[str, Any] = device["containerEdits"]
        return found

    def delivery(self, claim: dra.Claim) -> Delivery:
        """Return what a claim's containers get."""
        (view,) = (each["hostPath"] for each in self.edits(claim)["mounts"] if each["containerPath"] == "/.pgpu")
        found = read_delivery(Path(view))
        assert found is not None
        return found

    def holders(self, claim: dra.Claim) -> int:
        """Return how many processes have a context in a claim's slice."""
        delivery = self.delivery(claim)
        limit = limit_file.read_limit(delivery.slice_directory / "limit")
        return meter.read_use(limit, delivery.usage_path)[0].processes

    def close(self) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.kill()
            self.process.wait()


@contextmanager
def node(runtime: str = "containerd://2.1.9") -> Iterator[Node]:
    """Make a machine on a tmpfs with short paths."""
    root = Path(tempfile.mkdtemp(prefix="pgpu-k-", dir="/dev/shm"))
    try:
        with running() as api:
            info = node_info() | {"containerRuntimeVersion": runtime}
            api.objects.create(NODES, "", {"metadata": {"name": NODE}, "spec": {}, "status": {"nodeInfo": info}})
            made = Node(root, api)
            try:
                yield made
            finally:
                made.close()
    finally:
        clear(root)


def node_info() -> dict[str, str]:
    """Return all fields that a kubelet reports of its node, unknown."""
    words = ("architecture", "bootID", "kernelVersion", "kubeProxyVersion", "kubeletVersion", "machineID")
    return dict.fromkeys((*words, "operatingSystem", "osImage", "systemUUID"), "?")
