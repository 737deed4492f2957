"""Packages of functions are installed as fast as each owner's own allow: nobody waits for another's."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from tests.waiting import until

from pgpu.errors import RequestError
from pgpu.functions.control.control_plane import HttpControlPlane
from pgpu.functions.control.replica_controller import ReplicaController
from pgpu.functions.deploy.version_jobs import FILL
from pgpu.functions.requests.prometheus_metrics import GatewayMetrics
from pgpu.functions.router.function_router import RouterTable
from pgpu.model import Function, JobSpec, JobState, Mount, Share, Version, VersionState
from pgpu.services.messages import Judgement, ReplicaAsk
from pgpu.structs import replace

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
    ended: set[str] = field(default_factory=set)

    def functions(self) -> Sequence[Function]:
        return self.known

    def replica_jobs(self) -> Sequence[object]:
        return ()

    def build(self, version: Version) -> str:
        self.begun.append(version.label)
        return version.label

    def is_built(self, version: Version, job_id: str) -> bool:
        if job_id in self.ended:
            self._judge(version)
        return job_id in self.ended

    def _judge(self, version: Version) -> None:
        function = next(each for each in self.known if each.name == version.function)
        versions = tuple(
            replace(each, state=VersionState.READY) if each.number == version.number else each
            for each in function.versions
        )
        self.known[self.known.index(function)] = replace(function, versions=versions)


def test_an_owners_packages_are_installed_one_after_the_other_and_hold_up_nobody_elses() -> None:
    desk = Builder([waiting("a", ALICE, 30), waiting("b", BOB, 1)])

    async def installing() -> None:
        metrics = GatewayMetrics()
        controller = ReplicaController(RouterTable(metrics), desk, metrics)  # type: ignore[arg-type]
        for _ in range(3):
            await controller.refresh()
        await asyncio.to_thread(until, lambda: len(desk.begun) > 1)
        assert sorted(desk.begun) == ["a@1", "b@1"]
        desk.ended.add("a@1")
        await asyncio.to_thread(until, lambda: len(desk.begun) > 2)
        assert desk.begun[2:] == ["a@2"]
        ended = asyncio.ensure_future(controller.run())
        ended.cancel()

    asyncio.run(installing())


def test_packages_of_a_hundred_owners_that_hang_hold_up_nobody() -> None:
    hanging = [waiting(f"h{number}", 62000 + number, 2) for number in range(100)]
    desk = Builder([*hanging, waiting("b", BOB, 2)], ended={"b@1", "b@2"})

    async def installing() -> None:
        metrics = GatewayMetrics()
        controller = ReplicaController(RouterTable(metrics), desk, metrics)  # type: ignore[arg-type]
        await controller.refresh()
        await asyncio.to_thread(
            until, lambda: all(each.state is VersionState.READY for each in desk.known[-1].versions)
        )
        assert len(desk.begun) == 102
        ended = asyncio.ensure_future(controller.run())
        ended.cancel()

    asyncio.run(installing())


_PIP = JobSpec(("pip",), "docker", image="i")


class Server:
    """Where a build runs since an hour, or ended well and has installed nothing."""

    def __init__(self, state: JobState = JobState.EXITED, spec: JobSpec = _PIP) -> None:
        self.state, self.spec = state, spec
        self.judged: list[Judgement] = []

    def build(self, ask: ReplicaAsk) -> object:
        return SimpleNamespace(id=ask.function)

    def job(self, job_id: str) -> object:
        started_at_seconds = time.time() - 3600
        job = SimpleNamespace(
            id=job_id, state=self.state, exit_code=0, started_at_seconds=started_at_seconds, spec=self.spec
        )
        return SimpleNamespace(job=job)

    def stop(self, _job_id: str, *, grace_seconds: float) -> None:
        assert grace_seconds == 0
        self.state = JobState.EXITED

    def judge(self, _name: str, judgement: Judgement) -> None:
        if judgement.state is VersionState.READY:
            raise RequestError("the packages were not installed")
        self.judged.append(judgement)


def test_a_lock_file_that_installs_nothing_is_judged_once() -> None:
    server = Server()
    desk, version = HttpControlPlane(server, server), waiting("a", ALICE, 1).versions[0]  # type: ignore[arg-type]
    assert desk.is_built(version, desk.build(version))
    assert server.judged == [Judgement(1, VersionState.FAILED, "the packages were not installed", 1.0)]


def test_a_cache_that_grows_beyond_all_bounds_is_ended_and_judged(tmp_path: Path) -> None:
    fill = replace(_PIP, command=(*FILL, "fetch"), provisions=(Mount(str(tmp_path), "/cache", "rw"),))
    server, version = Server(JobState.RUNNING, fill), waiting("a", ALICE, 1).versions[0]
    desk = HttpControlPlane(server, server, 7200.0, most_cache_bytes=1 << 30)  # type: ignore[arg-type]
    small = HttpControlPlane(server, server, 7200.0, most_cache_bytes=1 << 14)  # type: ignore[arg-type]
    (tmp_path / "model").write_bytes(bytes(1 << 15))
    assert not desk.is_built(version, "a")
    assert small.is_built(version, "a")
    assert server.state is JobState.EXITED
    assert [each.state for each in server.judged] == [VersionState.FAILED]


def test_packages_that_fill_the_servers_disk_are_ended_and_judged() -> None:
    server, version, free = Server(JobState.RUNNING), waiting("a", ALICE, 1).versions[0], [2 << 30]
    desk = HttpControlPlane(server, server, 7200.0, lambda: free[0])  # type: ignore[arg-type]
    assert not desk.is_built(version, "a")
    free[0] -= 1
    assert desk.is_built(version, "a")
    assert server.state is JobState.EXITED
    assert [(each.state, "disk was nearly full" in (each.reason or "")) for each in server.judged] == [
        (VersionState.FAILED, True)
    ]


def test_packages_that_take_too_long_are_ended_and_judged() -> None:
    server, version = Server(JobState.RUNNING), waiting("a", ALICE, 1).versions[0]
    assert not HttpControlPlane(server, server, 7200.0).is_built(version, "a")  # type: ignore[arg-type]
    assert (server.state, server.judged) == (JobState.RUNNING, [])
    assert HttpControlPlane(server, server, 1800.0).is_built(version, "a")  # type: ignore[arg-type]
    assert server.state is JobState.EXITED
    assert [(each.state, each.reason) for each in server.judged] == [
        (VersionState.FAILED, "it was not built in 1800 s: pgpu logs a")
    ]
