"""Five hundred pods come one after the other to a model of the scheduler, which asks for scores or does not."""

import json
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from benchmarks.kubernetes_score import fleet
from lightkube.models import core_v1, resource_v1
from tests.fakes.allocator import Allocator, Machine

from pgpu.kubernetes.extender import scheduled_objects
from pgpu.kubernetes.extender.extender_server import parse_prioritize_args
from pgpu.kubernetes.extender.scheduled_objects import ClaimKey, GpuClass
from pgpu.kubernetes.extender.scorer import Scorer
from pgpu.kubernetes.names import SHARED_CLASS, gpu_of

WEIGHT = 20
"""As in deploy/kubernetes/scheduler."""


@dataclass
class Outcome:
    """What came of one crowd."""

    gpus_used: int = 0
    refused: int = 0
    seconds: list[float] = field(default_factory=list)
    """CPU time of each answer, from the question's JSON to the scores."""


class Asked:
    """The scorer as the scheduler sees it, with allocations reported some pods late."""

    def __init__(self, nodes: Sequence[fleet.Object], late: int) -> None:
        self.scorer = Scorer(time.monotonic)
        self.seconds: list[float] = []
        self._late = late
        self._untold: deque[fleet.Object] = deque()
        self.scorer.state.put_class(SHARED_CLASS, GpuClass(SHARED_CLASS, is_whole=False))
        for node in nodes:
            host = scheduled_objects.node_of(msgspec.convert(node, core_v1.Node))
            self.scorer.state.put_node(host.name, host)
            self.tell_slices(node)

    def tell_slices(self, node: fleet.Object) -> None:
        """Pass on a node's GPUs."""
        for each in fleet.slices(node):
            shelf = scheduled_objects.slice_of(msgspec.convert(each, resource_v1.ResourceSlice))
            self.scorer.state.put_slice(each["metadata"]["name"], shelf)

    def tell(self, claim: fleet.Object) -> None:
        """Pass on a waiting claim, and delayed allocations of others."""
        self._put(claim)
        while len(self._untold) > self._late:
            self._put(self._untold.popleft())

    def allocated(self, claim: fleet.Object) -> None:
        """Record an allocation, to be passed on later."""
        self._untold.append(claim)

    def _put(self, claim: fleet.Object) -> None:
        key = ClaimKey(claim["metadata"]["namespace"], claim["metadata"]["name"])
        self.scorer.put_claim(key, scheduled_objects.claim_of(msgspec.convert(claim, resource_v1.ResourceClaim)))

    def scores(self, pod: fleet.Object, names: list[str]) -> list[int]:
        """Answer one question."""
        body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}).encode()
        start = time.thread_time()
        asked = parse_prioritize_args(body)
        if asked.pod is None:
            raise AssertionError("the pod has not ended")
        scores = self.scorer.score(asked.pod, asked.nodes)
        self.seconds.append(time.thread_time() - start)
        return scores


def play(sizes_gib: Sequence[int], seed: int, *, is_scored: bool, late: int = 0) -> Outcome:
    """Let pods with claims of these sizes come.

    Args:
        sizes_gib: Of each.
        seed: Of the scheduler's lots.
        is_scored: Whether the scheduler asks for scores.
        late: Number of pods after which the scorer gets an allocation.

    Raises:
        AssertionError: A GPU was given out twice.
    """
    nodes = fleet.nodes()
    allocator = Allocator(nodes, [each for node in nodes for each in fleet.slices(node)], seed)
    asked = Asked(nodes, late) if is_scored else None
    outcome = Outcome()
    for number, gib in enumerate(sizes_gib):
        claim, pod = fleet.claim(number, gib), fleet.pod(number)
        if asked is not None:
            asked.tell(claim)
        node = allocator.schedule(pod, claim, asked.scores if asked else None, WEIGHT)
        if node is None:
            outcome.refused += 1
            continue
        _published_again(next(machine for machine in allocator.machines if machine.name == node))
        if asked is not None:
            asked.allocated(claim)
    allocator.check()
    outcome.gpus_used = allocator.gpus_used
    outcome.seconds = asked.seconds if asked else []
    return outcome


def _published_again(machine: Machine) -> None:
    """Put a node's devices into the order that its driver would publish now."""
    held = [(device.name, device.consumed["memory"]) for device in machine.devices if device.is_shared]
    place = {name: number for number, name in enumerate(fleet.densest_first(held))}
    machine.devices.sort(key=lambda device: (not device.is_shared, place[gpu_of(device.name)]))
