"""The controller: looks at what there is, has it decided, and does it.

What a desk is asked takes a while and may fail; meanwhile the loop goes on and the next look sees how it stands. A server
that is away changes nothing for replicas that live. It refuses to decide: `pgpu.functions.scaling` does.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Sequence

from pgpu.errors import PgpuError
from pgpu.functions.control.background_calls import BackgroundCalls
from pgpu.functions.control.change_feed import ChangeFeed
from pgpu.functions.control.cold_start_phases import cold_start
from pgpu.functions.control.host_memory import is_host_short
from pgpu.functions.control.package_builds import PackageBuilds
from pgpu.functions.control.replica_leases import ReplicaLeases
from pgpu.functions.replica.worker_supervisor import log
from pgpu.functions.router.control_plane import ControlPlane, ReplicaJob
from pgpu.functions.router.function_router import FunctionRouter
from pgpu.functions.router.gateway_metrics import GatewayMetrics
from pgpu.functions.router.replica_connection import ReplicaConnection
from pgpu.functions.router.router_table import RouterTable
from pgpu.functions.scaling import (
    Drain,
    Fail,
    MarkEvictable,
    Park,
    Phase,
    Start,
    Step,
    Stop,
    Wake,
    excess_parked,
    plan_steps,
)
from pgpu.model import JobState, ReplicaState

_LOOK_SECONDS = 1.0
_STARTING_LOOK_SECONDS = 0.25
"""Between two looks at how jobs stand, while one is awaited; between two decisions likewise."""

_RARE_LOOK_SECONDS = 15.0
"""The same where changes are told: nothing should be found then."""

_NOT_YET = "asked-"
_STATES = {
    Phase.HOT: ReplicaState.HOT,
    Phase.PARKED: ReplicaState.PARKED,
    Phase.WAITING: ReplicaState.STARTING,
    Phase.DRAINING: ReplicaState.DRAINING,
    Phase.FAILED: ReplicaState.FAILED,
}


class ReplicaController:
    """Of all functions of one gateway."""

    def __init__(self, halls: RouterTable, desk: ControlPlane, metrics: GatewayMetrics) -> None:
        self._halls, self._desk, self._metrics = halls, desk, metrics
        self._asking = BackgroundCalls()
        self._leases = ReplicaLeases(desk, self._asking)
        self._dirty: set[FunctionRouter] = set()
        self._woken = asyncio.Event()
        self._ids = itertools.count(1)
        self._starting = 0
        """Replicas that were asked for and are not known by their jobs yet."""

        self._builds = PackageBuilds(desk, self._asking.in_thread, self._asking.do, self._learn)
        self._stopping: set[str] = set()
        self._gone: set[str] = set()
        """Jobs that are asked to end, and those that ended since the last look began: what it says of them is no news."""

        self._news = ChangeFeed(desk, self._hear)
        self._has_news = asyncio.Event()
        self._is_stale = True
        """Whether functions may be others than those known."""

        self._looked_seconds = 0.0
        self._is_memory_short = False
        halls.wake, halls.claim, halls.on_first_answer = self._wake, self._leases.claim, self._note_start
        halls.on_phase = self._note_phase

    async def run(self) -> None:
        """Work until it is cancelled; what a server is slow to say holds up nothing that is known."""
        self._news.start()
        try:
            async with asyncio.TaskGroup() as working:
                working.create_task(self._keep_looking())
                working.create_task(self._keep_deciding())
                working.create_task(self._keep_time())
        finally:
            self._news.close()
            self._asking.close()

    async def _keep_looking(self) -> None:
        while True:
            self._has_news.clear()
            await self._look()
            self._decide_all()
            is_told = self._news.is_told and not self._is_stale
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RARE_LOOK_SECONDS if is_told else self._pause_seconds):
                    await self._has_news.wait()

    async def _keep_time(self) -> None:
        """Decide now and then: a replica becomes idle, or late, without any news."""
        while True:
            await asyncio.sleep(self._pause_seconds)
            self._decide_all()

    @property
    def _pause_seconds(self) -> float:
        is_awaiting = any(_is_coming(link) for hall in self._halls for link in hall.links.values())
        return _STARTING_LOOK_SECONDS if is_awaiting else _LOOK_SECONDS

    def _decide_all(self) -> None:
        for hall in self._halls:
            self._decide(hall)
        self._end_parked()

    def _end_parked(self) -> None:
        """End parked replicas beyond those that the host has room for."""
        now = time.monotonic()
        parked = {
            link.job_id: (hall, link)
            for hall in self._halls
            for link in hall.links.values()
            if link.phase is Phase.PARKED and not link.is_claiming
        }
        values = {
            job_id: hall.loads[link.version].view(now, self._leases.clock).value
            for job_id, (hall, link) in parked.items()
        }
        for job_id in excess_parked(values, is_host_short=bool(parked) and is_host_short()):
            self._apply(parked[job_id][0], Stop(job_id))

    def _hear(self, change: str) -> None:
        """Look at what has changed, where it is of functions or of a job that serves one."""
        self._is_stale = self._is_stale or not change
        if not change or any(change in hall.links for hall in self._halls):
            self._has_news.set()

    async def _keep_deciding(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            dirty, self._dirty = self._dirty, set()
            for hall in dirty:
                self._decide(hall)

    async def open(self) -> bool:
        """Learn what there is before anything is decided; False: the server does not answer."""
        await self._learn()
        if not self._asking.is_away:
            await self._look()
        return not self._asking.is_away

    async def refresh(self) -> bool:
        """Learn of the server's functions now, as when somebody called one that is not known; False: it does not answer."""
        await self._learn()
        return not self._asking.is_away

    def _wake(self, hall: FunctionRouter) -> None:
        self._dirty.add(hall)
        self._woken.set()

    async def _look(self) -> None:
        known = {link.job_id for hall in self._halls for link in hall.links.values()}
        is_asking = self._starting > 0
        self._gone.clear()
        if self._is_stale or time.monotonic() - self._looked_seconds >= _LOOK_SECONDS:
            await self._learn()
        standings = await self._asking.asked(self._desk.standings)
        if standings is not None:
            self._is_memory_short = any(each.state is JobState.WAITING for each in standings)
            self._adopt(standings, known, is_asking=is_asking or self._starting > 0)

    async def _learn(self) -> None:
        self._is_stale = False
        functions = await self._asking.asked(self._desk.functions)
        if functions is None:
            self._is_stale = True
        else:
            self._looked_seconds = time.monotonic()
            self._halls.adopt(functions)
            self._builds.see_to(functions)

    def _adopt(self, standings: Sequence[ReplicaJob], known: set[str], *, is_asking: bool) -> None:
        """Let links be as their jobs stand; one that nobody knows is another gateway's, and lives."""
        by_id = {standing.job_id: standing for standing in standings}
        for hall in self._halls:
            for link in [*hall.links.values()]:
                if link.job_id in known and not link.job_id.startswith(_NOT_YET):
                    self._follow(hall, link, by_id.get(link.job_id))
        linked = {link.job_id for hall in self._halls for link in hall.links.values()} | self._stopping | self._gone
        for standing in standings if not is_asking else ():
            if standing.job_id not in linked:
                self._take_in(standing)

    def _follow(self, hall: FunctionRouter, link: ReplicaConnection, standing: ReplicaJob | None) -> None:
        if standing is None or standing.state.is_final:
            self._ended(hall, link, standing)
        elif link.phase is Phase.WAITING and standing.state is not JobState.WAITING and not link.is_woken:
            link.become(Phase.STARTING)

    def _ended(self, hall: FunctionRouter, link: ReplicaConnection, standing: ReplicaJob | None) -> None:
        """A replica's job is over, asked or not."""
        load = hall.loads[link.version]
        if not link.hot_since_seconds and link.phase is not Phase.DRAINING:
            load.note_failure()
            reason = standing.reason if standing is not None else "its job is gone"
            log(f"a replica of {hall.name}@{link.version} ended before it was ready: {reason}")
        self._remove(hall, link)
        hall.refuse_waiting(link.version)
        self._stop(link.job_id)

    def _take_in(self, standing: ReplicaJob) -> None:
        hall = self._halls.get(standing.function)
        if hall is None or standing.version not in hall.loads or standing.state.is_final:
            self._stop(standing.job_id)
            return
        link = ReplicaConnection(standing.job_id, standing.version, hall)
        hall.add(link)
        if standing.state is not JobState.WAITING:
            link.become(Phase.STARTING)
        link.has_answered = True
        link.offered_value = 0.0  # the gateway of before may have offered it: it is claimed before its first call
        link.connect(standing.directory)

    def _decide(self, hall: FunctionRouter) -> None:
        if hall.is_closed:
            return
        for step in plan_steps(hall.view(self._leases.clock, is_memory_short=self._is_memory_short)):
            self._apply(hall, step)

    def _apply(self, hall: FunctionRouter, step: Step) -> None:
        if isinstance(step, Start):
            self._start(hall, step.version)
        elif isinstance(step, Fail):
            self._asking.do(self._failed(hall, step))
        else:
            self._apply_to_link(hall, hall.links[step.job_id], step)

    def _apply_to_link(
        self, hall: FunctionRouter, link: ReplicaConnection, step: Drain | Stop | Park | Wake | MarkEvictable
    ) -> None:
        if isinstance(step, Drain):
            link.offered_value = None  # nobody took it
            link.become(Phase.DRAINING)
        elif isinstance(step, Stop):
            self._remove(hall, link)
            if not link.job_id.startswith(_NOT_YET):
                self._stop(link.job_id)
        elif isinstance(step, Park):
            self._leases.park(hall, link)
        elif isinstance(step, Wake):
            link.wake()
            self._leases.claim(hall, link)
        else:
            self._leases.offer(link, step.value)

    def _remove(self, hall: FunctionRouter, link: ReplicaConnection) -> None:
        """A replica is no more."""
        self._leases.note_end(hall, link)
        hall.remove(link)

    def _start(self, hall: FunctionRouter, number: int) -> None:
        link = ReplicaConnection(f"{_NOT_YET}{next(self._ids)}", number, hall)
        hall.add(link)
        self._metrics.starts[hall.name] += 1
        self._asking.do(self._started(hall, link))

    async def _started(self, hall: FunctionRouter, link: ReplicaConnection) -> None:
        self._starting += 1
        standing = None
        try:
            standing = await self._asking.in_thread(self._desk.start, hall.function.version(link.version))
        except PgpuError as error:
            log(f"no replica of {hall.name}@{link.version} can be had: {error}")
        finally:
            self._starting -= 1
            is_wanted = hall.links.pop(link.job_id, None) is not None
            if standing is None:
                self._not_started(hall, link)
        if standing is not None and is_wanted:
            link.job_id = standing.job_id
            hall.add(link)
            link.connect(standing.directory)
            self._has_news.set()  # what was told of its job before was nobody's
        elif standing is not None:
            self._stop(standing.job_id)

    def _not_started(self, hall: FunctionRouter, link: ReplicaConnection) -> None:
        hall.loads[link.version].note_failure()
        hall.refuse_waiting(link.version)

    def _stop(self, job_id: str) -> None:
        """Have a job end; if that cannot be asked now, the next look finds it and takes it in again."""
        self._stopping.add(job_id)
        self._asking.do(self._stopped(job_id))

    async def _stopped(self, job_id: str) -> None:
        try:
            await self._asking.in_thread(self._desk.stop, job_id)
            self._gone.add(job_id)
        except PgpuError as error:
            log(f"{job_id} does not end: {error}")
        finally:
            self._stopping.discard(job_id)

    async def _failed(self, hall: FunctionRouter, step: Fail) -> None:
        log(f"{hall.name}@{step.version} is given up: {step.reason}")
        await self._asking.asked(self._desk.fail, hall.function.version(step.version), step.reason)
        await self._learn()

    def _note_start(self, hall: FunctionRouter, link: ReplicaConnection) -> None:
        self._asking.do(self._noted(hall.name, link, time.monotonic()))

    async def _noted(self, name: str, link: ReplicaConnection, answered_seconds: float) -> None:
        standings = await self._asking.asked(self._desk.standings) or ()
        standing = next((each for each in standings if each.job_id == link.job_id), None)
        start = cold_start(name, link, standing, answered_seconds)
        await self._asking.asked(self._desk.note_start, start)

    def _note_phase(self, link: ReplicaConnection) -> None:
        hall = next((hall for hall in self._halls if hall.links.get(link.job_id) is link), None)
        if hall is not None and link.phase is Phase.PARKED and hall.loads[link.version].declaration.gpus:
            self._leases.note_end(hall, link)
        state = _STATES.get(link.phase)
        if state is not None and not link.job_id.startswith(_NOT_YET):
            self._asking.do(self._noted_phase(link.job_id, state))

    async def _noted_phase(self, job_id: str, state: ReplicaState) -> None:
        await self._asking.asked(self._desk.note, job_id, state)


def _is_coming(link: ReplicaConnection) -> bool:
    return link.phase in {Phase.WAITING, Phase.STARTING}
