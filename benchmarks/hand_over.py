"""How soon the next pod's claim is prepared on a full GPU once the former pods are deleted (`python -m benchmarks.hand_over`).

A driver process on a simulated H100, before a fake API server and a fake kubelet (`tests/fakes`). Pods fill the GPU, each with a
process that holds a context. A forced deletion: pods and claims vanish from the API server, and the kubelet prepares the next
pods' claims at the same moment. After the grace period each process is killed, and the kubelet unprepares its claim one second
later, as it lists containers once a second. The time is from the deletion to the answer of each first Prepare; a refused one
counts as failed. Then ten claims are prepared at once on an empty GPU. Run as root; writes one JSON file into benchmarks/results.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.shim_overhead import RESULTS, circumstances
from tests.fakes.api_server import CLAIMS, PODS
from tests.fakes.kubelet import Prepared
from tests.slice_holder import holder_in
from tests.system.kubernetes.driver_process import Node, node
from tests.system.kubernetes.driver_world import allocated, result
from tests.waiting import until

from pgpu.kubernetes import names
from pgpu.kubernetes.generated import dra_v1_pb2 as dra

TARGET_SECONDS = 2.0
"""From deletion to answer with a grace period of 1 s: 3 s to a running pod, of which its containers' start takes one."""

TARGET_AT_ONCE_SECONDS = 1.0
"""For ten claims: ten pods without claims took 2.0 s on a real node, and those with claims may take half as much again."""

UNPREPARE_SECONDS = 1.0
LOAD = 8


@dataclass
class HandOvers:
    """Deletions on one node, of the same kind."""

    machine: Node
    gpu_uuid: str
    pods: int = 1
    memory: str = "72Gi"
    grace_seconds: float = 0.0
    seconds: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def run(self, rounds: int) -> Mapping[str, Any]:
        """Delete the pods so often, and return the figures."""
        for _ in range(rounds):
            self._hand_over()
        return {
            "first_prepares": len(self.seconds),
            "failed": len(self.failed),
            "median_seconds": round(statistics.median(self.seconds), 3),
            "longest_seconds": round(max(self.seconds), 3),
        }

    def _hand_over(self) -> None:
        machine = self.machine
        old = [self._claim(has_pod=True) for _ in range(self.pods)]
        new = [self._claim() for _ in range(self.pods)]
        _raise_errors(machine.kubelet.prepare(*old))
        with ThreadPoolExecutor(self.pods) as kubelet, contextlib.ExitStack() as stack:
            processes = [stack.enter_context(holder_in(machine.delivery(each))) for each in old]
            until(lambda: all(machine.holders(each) for each in old))
            for each in old:
                machine.api.objects.delete(PODS, "default", each.name)
                machine.api.objects.delete(CLAIMS, "default", each.name)
            began = time.monotonic()
            calls = [kubelet.submit(self._prepare, each, began) for each in new]
            threading.Event().wait(self.grace_seconds)
            for process in processes:
                process.kill()
            threading.Event().wait(UNPREPARE_SECONDS)
            machine.kubelet.unprepare(*old)
            for call in calls:
                call.result()
        machine.kubelet.unprepare(*new)

    def _prepare(self, claim: dra.Claim, began_seconds: float) -> None:
        error = self.machine.kubelet.prepare(claim)[claim.uid].error
        self.seconds.append(time.monotonic() - began_seconds)
        if error:
            self.failed.append(error)

    def _claim(self, *, has_pod: bool = False) -> dra.Claim:
        name = uuid.uuid4().hex
        found = allocated(name, [result(self.memory, device=names.shared_device(self.gpu_uuid))])
        if has_pod:
            pod = {"metadata": {"name": name}, "spec": {"containers": [{"name": "c"}]}, "status": {"phase": "Running"}}
            uid = self.machine.api.objects.create(PODS, "default", pod)["metadata"]["uid"]
            found["status"]["reservedFor"] = [{"resource": "pods", "name": name, "uid": uid}]
        return self.machine.add(found)


def prepare_at_once(machine: Node, gpu_uuid: str, count: int = 10) -> float:
    """Prepare claims that fit, each in a call of its own, and return how long all took together, in s."""
    device = names.shared_device(gpu_uuid)
    claims = [machine.add(allocated(uuid.uuid4().hex, [result("4Gi", device=device)])) for _ in range(count)]
    began = time.monotonic()
    calls = [machine.kubelet.begin_prepare(each) for each in claims]
    answers = [call.result().claims for call in calls]
    seconds = time.monotonic() - began
    for each in answers:
        _raise_errors(each)
    machine.kubelet.unprepare(*claims)
    return round(seconds, 3)


def _raise_errors(answers: Prepared) -> None:
    if errors := [each.error for each in answers.values() if each.error]:
        raise RuntimeError(f"{len(errors)} of {len(answers)} claims were refused: {errors[0]}")


@contextlib.contextmanager
def loaded(processes: int) -> Iterator[None]:
    """Keep so many processes busy for the block."""
    busy = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(processes)]
    try:
        yield
    finally:
        for each in busy:
            each.kill()
            each.wait()


def main() -> int:
    """Measure, print, write; 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    with node() as machine:
        machine.start()
        gpu_uuid = machine.gpu_uuid()
        HandOvers(machine, gpu_uuid).run(1)  # the context of a GPU is measured once, and the agent is started
        at_once = statistics.median(prepare_at_once(machine, gpu_uuid) for _ in range(3))
        found = {
            "one pod, grace 0 s": HandOvers(machine, gpu_uuid).run(arguments.rounds),
            "one pod, grace 1 s": HandOvers(machine, gpu_uuid, grace_seconds=1.0).run(arguments.rounds),
            "twelve pods, grace 1 s": HandOvers(machine, gpu_uuid, 12, "6Gi", 1.0).run(2),
        }
        with loaded(LOAD):
            found |= {
                f"twelve pods, grace 1 s, {LOAD} busy processes": HandOvers(machine, gpu_uuid, 12, "6Gi", 1.0).run(2)
            }
    report = {
        **circumstances(),
        "driver": "simulated H100",
        "hand_overs": found,
        "ten_at_once_seconds": at_once,
        "targets": {"failed": 0, "longest_seconds": TARGET_SECONDS, "ten_at_once_seconds": TARGET_AT_ONCE_SECONDS},
    }
    path = arguments.output / f"hand-over-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    print(json.dumps(report, indent=2))
    idle = [figures for name, figures in found.items() if "busy" not in name]
    is_missed = (
        any(figures["failed"] for figures in found.values())
        or any(figures["longest_seconds"] > TARGET_SECONDS for figures in idle)
        or at_once > TARGET_AT_ONCE_SECONDS
    )
    return int(is_missed)


if __name__ == "__main__":
    raise SystemExit(main())
