"""The part of kube-scheduler that concerns GPUs: its allocator for devices of one driver, and its default scores.

Devices are tried in the order of their slices and the first that fits is taken; capacity is consumed in steps; a counter
is taken once by a device, however many claims share it. Nodes get the scores of NodeResourcesFit (least allocated) and
NodeResourcesBalancedAllocation, in whole points as in Kubernetes, and ties are broken at random. An extender's scores count
ten times their weight. There are no other filters, no preemption, no expressions: a class is its name.

Source: k8s.io/dynamic-resource-allocation/structured; pkg/scheduler (selectHost, prioritizeNodes); a real 1.36 scheduler.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightkube.utils.quantity import parse_quantity

from pgpu.kubernetes.names import DRIVER, WHOLE_CLASS

Object = dict[str, Any]
Scores = Callable[[Object, list[str]], Sequence[int]]
"""Scores of an extender: 0 to 10."""

POINTS_OF_A_SCORE = 10
"""MaxNodeScore / MaxExtenderPriority."""

USUAL_CPU_MILLI, USUAL_MEMORY_BYTES = 100, 200 << 20
"""Requests that scores assume for a pod without any."""


def amount(quantity: Any) -> int:
    return int(parse_quantity(str(quantity)) or 0)


@dataclass
class Device:
    """One device of a node and its allocations."""

    pool: str
    found: Object
    consumed: Counter[str] = field(default_factory=Counter)
    claims: int = 0

    @property
    def name(self) -> str:
        return str(self.found["name"])

    @property
    def is_shared(self) -> bool:
        return bool(self.found.get("allowMultipleAllocations"))

    def consumption(self, asked: Object) -> dict[str, int] | None:
        """Return what a request takes of each capacity; None: there is less."""
        if not self.is_shared:
            return None if self.claims else {}
        taken = {}
        for name, capacity in self.found["capacity"].items():
            rounded = _rounded(asked.get(name), capacity)
            if rounded is None or self.consumed[name] + rounded > amount(capacity["value"]):
                return None
            taken[name] = rounded
        return taken


@dataclass
class Machine:
    """One node."""

    name: str
    devices: list[Device]
    counters: Counter[tuple[str, str]]
    """Remaining counters, by set and counter."""

    cpu_milli: int
    memory_bytes: int
    used_cpu_milli: int = 0
    used_memory_bytes: int = 0

    def points(self) -> int:
        """Return the sum of the default scores for another pod without CPU and memory requests."""
        cpu = (self.used_cpu_milli + USUAL_CPU_MILLI) / self.cpu_milli
        memory = (self.used_memory_bytes + USUAL_MEMORY_BYTES) / self.memory_bytes
        if max(cpu, memory) > 1:
            return 0
        least = (int(100 * (1 - cpu)) + int(100 * (1 - memory))) // 2
        return least + int(100 * (1 - abs(cpu - memory) / 2))

    @property
    def gpus_used(self) -> int:
        return sum(device.claims > 0 for device in self.devices)


class Allocator:
    """Nodes with devices, and the claims on them."""

    def __init__(self, nodes: Sequence[Object], slices: Sequence[Object], seed: int = 0) -> None:
        self.dice = random.Random(seed)
        self.machines = [_machine(node, slices) for node in nodes]
        self._held: dict[str, list[tuple[Device, dict[str, int]]]] = {}
        self._where: dict[str, Machine] = {}

    @property
    def gpus_used(self) -> int:
        return sum(machine.gpus_used for machine in self.machines)

    def schedule(self, pod: Object, claim: Object, scores: Scores | None = None, weight: int = 1) -> str | None:
        """Choose a node for a pod with one claim, and allocate it there; returns its name, or None if it fits nowhere."""
        fitting = [machine for machine in self.machines if self._tried(machine, claim) is not None]
        if not fitting:
            return None
        points = [machine.points() for machine in fitting]
        if scores is not None:
            extra = scores(pod, [machine.name for machine in fitting])
            points = [one + weight * POINTS_OF_A_SCORE * more for one, more in zip(points, extra, strict=True)]
        most = max(points)
        chosen = self.dice.choice([one for one, its in zip(fitting, points, strict=True) if its == most])
        self.allocate(chosen, claim)
        return chosen.name

    def allocate(self, machine: Machine, claim: Object) -> None:
        """Allocate a claim, and write its status."""
        results = self._tried(machine, claim)
        assert results is not None, f"{claim['metadata']['name']} does not fit on {machine.name}"
        for device, consumed in results:
            if not device.claims:
                machine.counters.subtract(_counters(device))
            device.claims += 1
            device.consumed.update(consumed)
        machine.used_cpu_milli += USUAL_CPU_MILLI
        machine.used_memory_bytes += USUAL_MEMORY_BYTES
        self._held[claim["metadata"]["uid"]] = results
        self._where[claim["metadata"]["uid"]] = machine
        written = [
            {"driver": DRIVER, "pool": device.pool, "device": device.name, "request": "gpu"}
            | ({"consumedCapacity": {name: str(value) for name, value in consumed.items()}} if consumed else {})
            for device, consumed in results
        ]
        claim["status"] = {"allocation": {"devices": {"results": written}}}

    def free(self, claim: Object) -> None:
        """Deallocate a claim."""
        uid = claim["metadata"]["uid"]
        machine = self._where.pop(uid)
        for device, consumed in self._held.pop(uid):
            device.consumed.subtract(consumed)
            device.claims -= 1
            if not device.claims:
                machine.counters.update(_counters(device))
        machine.used_cpu_milli -= USUAL_CPU_MILLI
        machine.used_memory_bytes -= USUAL_MEMORY_BYTES
        claim["status"] = {}

    def check(self) -> None:
        """Assert that nothing is allocated twice."""
        for machine in self.machines:
            assert min(machine.counters.values(), default=0) >= 0, machine.name
            for device in machine.devices:
                assert device.is_shared or device.claims <= 1, device.name
                for name, consumed in device.consumed.items():
                    assert 0 <= consumed <= amount(device.found["capacity"][name]["value"]), device.name

    def _tried(self, machine: Machine, claim: Object) -> list[tuple[Device, dict[str, int]]] | None:
        """Return the first devices of a machine that fit a claim; a claim gets one share of a GPU."""
        chosen: list[tuple[Device, dict[str, int]]] = []
        for request in claim["spec"]["devices"]["requests"]:
            exact = request["exactly"]
            fitting = self._fitting(machine, exact, [device for device, _ in chosen])
            found = [one for one, _ in zip(fitting, range(exact.get("count", 1)), strict=False)]
            if len(found) < exact.get("count", 1):
                return None
            chosen += found
        return chosen

    @staticmethod
    def _fitting(machine: Machine, exact: Object, chosen: list[Device]) -> Iterator[tuple[Device, dict[str, int]]]:
        is_whole = exact["deviceClassName"] == WHOLE_CLASS
        asked = (exact.get("capacity") or {}).get("requests") or {}
        for device in machine.devices:
            is_free = device.claims or all(machine.counters[key] >= n for key, n in _counters(device).items())
            if device.is_shared is not is_whole and is_free and device not in chosen:
                consumed = device.consumption(asked)
                if consumed is not None:
                    yield device, consumed


def _machine(node: Object, slices: Sequence[Object]) -> Machine:
    name = node["metadata"]["name"]
    own = sorted(
        (one["spec"] | {"as": one["metadata"]["name"]} for one in slices if one["spec"].get("nodeName") == name),
        key=lambda spec: str(spec["as"]),
    )
    counters: Counter[tuple[str, str]] = Counter()
    for spec in own:
        for one in spec.get("sharedCounters") or ():
            for counter, value in one["counters"].items():
                counters[one["name"], counter] = amount(value["value"])
    has = node["status"]["allocatable"]
    devices = [Device(spec["pool"]["name"], found) for spec in own for found in spec.get("devices") or ()]
    cpu_milli = int(1000 * (parse_quantity(str(has["cpu"])) or 0))
    return Machine(name, devices, counters, cpu_milli, amount(has["memory"]))


def _counters(device: Device) -> Counter[tuple[str, str]]:
    taken: Counter[tuple[str, str]] = Counter()
    for use in device.found.get("consumesCounters") or ():
        for counter, value in use["counters"].items():
            taken[use["counterSet"], counter] += amount(value["value"])
    return taken


def _rounded(asked: Any, capacity: Object) -> int | None:
    """Return the consumed amount of a capacity; None: the request is not valid."""
    policy = capacity.get("requestPolicy") or {}
    if asked is None:
        return amount(policy.get("default", capacity["value"]))
    valid = policy.get("validRange") or {}
    wanted = max(amount(asked), amount(valid.get("min", 0)))
    step, least = amount(valid.get("step", 1)), amount(valid.get("min", 0))
    rounded = least + -(-(wanted - least) // step) * step
    return None if rounded > amount(valid.get("max", capacity["value"])) else rounded


def gpus_by_node(claims: Sequence[Object]) -> dict[str, set[str]]:
    """Return the allocated GPUs, by pool."""
    used: dict[str, set[str]] = defaultdict(set)
    for claim in claims:
        for result in ((claim.get("status") or {}).get("allocation") or {"devices": {}})["devices"].get("results", ()):
            used[result["pool"]].add(result["device"].removesuffix("-whole"))
    return used
