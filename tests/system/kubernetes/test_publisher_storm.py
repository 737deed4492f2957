"""A publisher in a storm of wipes, edits, faults and changes: what any scheduler sees is always safe, and right in the end."""

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from tests import waiting
from tests.fakes.api_objects import Happening, Object, RefusalError
from tests.fakes.api_rules import wrongs
from tests.fakes.api_server import SLICES, Fault, running
from tests.fakes.claims import gpu
from tests.system.kubernetes.publisher_world import NODE, World, wipe

from pgpu.kubernetes.node_health import HealthReport, HealthState
from pgpu.units import GIB

_CODES = (404, 409, 429, 500, 503)
_VERBS = ("list", "create", "update", "delete", "watch")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with running() as server:
        server.add_node(NODE)
        made = World(server, tmp_path)
        yield made
        made.end()


class Storm:
    """What may happen to a node's slices, drawn by lot."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._lot = random.Random(seed)

    def strike(self) -> None:
        blows: Sequence[Callable[[], object]] = (
            lambda: wipe(self._world.server),
            self._delete_one,
            self._edit_one,
            self._fault,
            self._outsider,
            self._illness,
            self._world.server.break_watches,
            self._world.server.objects.forget_history,
            self._world.publisher.registered,
            self._time,
        )
        self._lot.choice(blows)()

    def _delete_one(self) -> None:
        for found in self._world.server.slices()[:1]:
            self._quietly(partial(self._world.server.objects.delete, SLICES, "", found["metadata"]["name"]))

    def _edit_one(self) -> None:
        found = self._world.server.slices()
        if found:
            chosen = self._lot.choice(found)
            chosen["spec"]["pool"]["generation"] += self._lot.choice((-1, 0, 5))
            chosen["spec"].pop("devices", None)
            self._quietly(lambda: self._world.server.objects.update(SLICES, "", chosen))

    def _fault(self) -> None:
        after = self._lot.random() < 0.5
        fault = Fault(self._lot.choice(_CODES), self._lot.randint(1, 3), self._lot.choice(_VERBS), after=after)
        self._world.server.faults.append(fault)

    def _outsider(self) -> None:
        self._world.claims.outsiders_bytes[gpu(self._lot.randint(0, 1)).uuid] = self._lot.randint(0, 40) * GIB

    def _illness(self) -> None:
        state = self._lot.choice((HealthState.HEALTHY, HealthState.UNHEALTHY, HealthState.UNKNOWN))
        self._world.ills.known = {gpu(0).uuid: HealthReport(gpu(0).uuid, state, "by lot", 79)}

    def _time(self) -> None:
        self._world.clock.now += 40

    @staticmethod
    def _quietly(act: Callable[[], object]) -> None:
        try:
            act()
        except RefusalError:
            return  # the publisher was faster


@pytest.mark.parametrize("seed", range(3))
def test_a_short_storm_leaves_the_slices_right(world: World, seed: int) -> None:
    weather(world, seed, blows=40)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 105))
def test_a_long_storm_leaves_the_slices_right(world: World, seed: int) -> None:
    weather(world, seed, blows=400)


def weather(world: World, seed: int, blows: int) -> None:
    history = Recording(world)
    world.publisher.start()
    storm = Storm(world, seed)
    for _ in range(blows):
        asked = len(world.server.asked)
        storm.strike()
        world.publisher.wake()
        waiting.until(partial(has_asked, world, asked))
    calm_down(world)

    waiting.until(lambda: is_right(world), lambda: (world.said[-3:], world.server.slices()))
    waiting.until(lambda: not world.readiness.problems(), lambda: world.said[-3:])
    assert history.complaints() == []


def has_asked(world: World, before: int) -> bool:
    return len(world.server.asked) > before


def calm_down(world: World) -> None:
    for fault in world.server.faults:
        fault.times = 0
    world.claims.outsiders_bytes.clear()
    world.ills.known = {}
    world.clock.now += 40
    world.publisher.wake()


def is_right(world: World) -> bool:
    world.clock.now += 40
    world.publisher.wake()
    slices = world.server.slices()
    devices = world.devices
    return (
        len(slices) == 2
        and len(world.generations) == 1
        and len(devices) == 4
        and not any("taints" in device for device in devices.values())
        and all(device["capacity"]["memory"]["value"] == "80Gi" for device in devices.values())
    )


class Recording:
    """Every slice that was ever stored, by whom ever."""

    def __init__(self, world: World) -> None:
        self._happened: list[Happening] = world.server.objects.everything

    def complaints(self) -> list[str]:
        """Say which moments were unsafe for a scheduler."""
        told = [each for each in self._happened if each.kind == SLICES and each.what != "DELETED"]
        said = [str(wrongs(each.found)) for each in told if wrongs(each.found)]
        shared = [device for each in told for device in each.found["spec"].get("devices") or []]
        return said + [device["name"] for device in shared if not is_safe(device)]


def is_safe(device: Object) -> bool:
    """Whether a device excludes the others of its GPU, and is given in shares unless it is the whole."""
    is_shared = bool(device.get("allowMultipleAllocations"))
    return is_shared != device["name"].endswith("-whole") and bool(device["consumesCounters"])
