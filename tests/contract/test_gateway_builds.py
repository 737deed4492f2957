"""Packages of functions are installed as fast as each owner's own allow: nobody waits for another's."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

from tests.waiting import until

from pgpu.client.functions import Judgement, ReplicaAsk
from pgpu.errors import RequestError
from pgpu.functions.gateway.controlling.controller import Controller
from pgpu.functions.gateway.controlling.halls import Halls
from pgpu.functions.gateway.metrics import Metrics
from pgpu.functions.gateway.server_desk import ServerDesk
from pgpu.model import Function, JobState, Share, Version, VersionState

ALICE, BOB = 61001, 61002


def waiting(name: str, owner_uid: int, count: int) -> Function:
    one = Version(name, 1, owner_uid, "app:F", "0", "{}", "docker", "i", "x", VersionState.PENDING, None, 1.0)
    versions = tuple(replace(one, number=number + 1) for number in range(count))
    return Function(name, owner_uid, 1.0, versions, (Share(1, 100),))


@dataclass
class Builder:
    """Of a desk only what a build needs; each takes until it is let go."""

    known: list[Function]
    begun: list[str] = field(default_factory=list)
    may_end: dict[str, threading.Event] = field(default_factory=dict)

    def functions(self) -> Sequence[Function]:
        return self.known

    def standings(self) -> Sequence[object]:
        return ()

    def build(self, version: Version) -> None:
        end = self.may_end.setdefault(version.label, threading.Event())
        self.begun.append(version.label)
        end.wait()
        function = next(each for each in self.known if each.name == version.function)
        versions = tuple(
            replace(each, state=VersionState.READY) if each.number == version.number else each
            for each in function.versions
        )
        self.known[self.known.index(function)] = replace(function, versions=versions)


def test_an_owners_packages_are_installed_one_after_the_other_and_hold_up_nobody_elses() -> None:
    desk = Builder([waiting("a", ALICE, 30), waiting("b", BOB, 1)])

    async def installing() -> None:
        metrics = Metrics()
        controller = Controller(Halls(metrics), desk, metrics)  # type: ignore[arg-type]
        for _ in range(3):
            await controller.refresh()
        await asyncio.to_thread(until, lambda: len(desk.begun) > 1)
        assert sorted(desk.begun) == ["a@1", "b@1"]
        desk.may_end["a@1"].set()
        await asyncio.to_thread(until, lambda: len(desk.begun) > 2)
        assert desk.begun[2:] == ["a@2"]
        ended = asyncio.ensure_future(controller.run())
        ended.cancel()

    try:
        asyncio.run(installing())
    finally:
        for end in desk.may_end.values():
            end.set()


class Server:
    """Where a build ends well and has installed nothing."""

    def __init__(self) -> None:
        self.judged: list[Judgement] = []

    def build(self, ask: ReplicaAsk) -> object:
        return SimpleNamespace(id=ask.function)

    def wait(self, job_id: str) -> object:
        return SimpleNamespace(id=job_id, state=JobState.EXITED, exit_code=0)

    def judge(self, _name: str, judgement: Judgement) -> None:
        if judgement.state is VersionState.READY:
            raise RequestError("the packages were not installed")
        self.judged.append(judgement)


def test_a_lock_file_that_installs_nothing_is_judged_once() -> None:
    server = Server()
    ServerDesk(server, server).build(waiting("a", ALICE, 1).versions[0])  # type: ignore[arg-type]
    assert server.judged == [Judgement(1, VersionState.FAILED, "the packages were not installed", 1.0)]
