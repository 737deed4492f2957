"""What is asked about the leases of replicas: offered, given away, claimed, one after the other of each.

A replica without a GPU has no lease to give away: it ends its worker instead, and starts one when it is woken. This module
refuses to decide whose turn it is.
"""

from pgpu.errors import PgpuError
from pgpu.functions.control.background_calls import BackgroundCalls
from pgpu.functions.replica.worker_supervisor import log
from pgpu.functions.router.control_plane import ControlPlane
from pgpu.functions.router.function_router import FunctionRouter
from pgpu.functions.router.replica_connection import ReplicaConnection
from pgpu.functions.scaling import Phase, ValueClock


class ReplicaLeases:
    """Of all functions of one gateway."""

    def __init__(self, desk: ControlPlane, asking: BackgroundCalls) -> None:
        self._desk, self._asking = desk, asking
        self.clock = ValueClock()

    def offer(self, link: ReplicaConnection, value: float) -> None:
        """Let the engine take it."""
        link.offered_value = value
        self._asking.do(self._offered(link, value))

    def park(self, hall: FunctionRouter, link: ReplicaConnection) -> None:
        """Have an idle replica do without it."""
        link.become(Phase.PARKED)
        if hall.loads[link.version].declaration.gpus:
            link.offered_value = None  # nobody took it
            self._asking.do(self._parked(link))
        else:
            link.ask("park")

    def claim(self, hall: FunctionRouter, link: ReplicaConnection) -> None:
        """Keep it, or have it again."""
        self._asking.do(self._claimed(hall, link))

    def note_end(self, hall: FunctionRouter, link: ReplicaConnection) -> None:
        """Take note of one that was on offer and is nobody's any more, without having been asked: it was taken."""
        if link.offered_value is not None:
            self.clock.taken(link.offered_value, hall.loads[link.version].size_bytes)
            link.offered_value = None

    async def _offered(self, link: ReplicaConnection, value: float) -> None:
        async with link.turn:
            try:
                await self._asking.in_thread(self._desk.offer, link.job_id, value)
            except PgpuError as error:
                log(f"{link.job_id} is not on offer: {error}")
                link.offered_value = None

    async def _parked(self, link: ReplicaConnection) -> None:
        async with link.turn:
            try:
                await self._asking.in_thread(self._desk.park, link.job_id)
            except PgpuError as error:
                log(f"{link.job_id} is not parked: {error}")
                link.become(Phase.DRAINING)

    async def _claimed(self, hall: FunctionRouter, link: ReplicaConnection) -> None:
        async with link.turn:
            hall.claimed(link, await self._asking.asked(self._desk.claim, link.job_id))
