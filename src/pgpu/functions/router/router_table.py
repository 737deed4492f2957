"""All halls of a gateway, by their functions' names, kept as the server's functions are.

It refuses to ask: what the server knows is told to it.
"""

from collections.abc import Callable, Iterable, Iterator

from pgpu.errors import RequestError
from pgpu.functions.replica.worker_supervisor import log
from pgpu.functions.router.function_router import FunctionRouter
from pgpu.functions.router.gateway_metrics import GatewayMetrics
from pgpu.functions.router.replica_connection import ReplicaConnection
from pgpu.functions.router.routed_request import RoutedRequest
from pgpu.functions.router.router_deadlines import RouterDeadlines
from pgpu.model import Function


class RouterTable:
    """Functions that can be called."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self.metrics = metrics
        self._halls: dict[str, FunctionRouter] = {}
        self.wake: Callable[[FunctionRouter], None] = lambda _hall: None
        """Told of each hall where something is to be decided."""

        self.on_begun: Callable[[RoutedRequest], None] = lambda _errand: None
        self.on_closed: Callable[[str], None] = lambda _identity: None
        """Told of the identity of each function that is no more, once everybody in its hall was answered."""

        self.on_phase: Callable[[ReplicaConnection], None] = lambda _link: None
        self.on_first_answer: Callable[[FunctionRouter, ReplicaConnection], None] = lambda _hall, _link: None
        self.claim: Callable[[FunctionRouter, ReplicaConnection], None] = lambda _hall, _link: None
        metrics.gauges = self._gauges

    def get(self, name: str) -> FunctionRouter | None:
        """Return a function's hall; None: there is no such function."""
        return self._halls.get(name)

    def of(self, identity: str) -> FunctionRouter | None:
        """Return the hall of one function and of none that got its name later; see `Function.identity`."""
        hall = self._halls.get(identity.partition("@")[0])
        return hall if hall is not None and hall.function.identity == identity else None

    def __iter__(self) -> Iterator[FunctionRouter]:
        return iter([*self._halls.values()])

    def adopt(self, functions: Iterable[Function]) -> None:
        """Open, change and close halls so that they are these functions'."""
        told = {function.name: function for function in functions}
        for name in [*self._halls]:
            known = told.get(name)
            if known is None or known.created_at_seconds != self._halls[name].function.created_at_seconds:
                gone = self._halls.pop(name)
                gone.close()
                self.metrics.forget(name)
                self.on_closed(gone.function.identity)
        for name, function in told.items():
            try:
                self._adopt_one(name, function)
            except RequestError as error:
                log(f"{name} cannot be served: {error}")

    def _adopt_one(self, name: str, function: Function) -> None:
        hall = self._halls.get(name)
        if hall is None:
            self._halls[name] = self._opened(function)
        elif hall.function != function:
            hall.adopt(function)
            self.wake(hall)

    def _opened(self, function: Function) -> FunctionRouter:
        hall = FunctionRouter(function, self.metrics, lambda: self.wake(hall))
        hall.on_admitted = RouterDeadlines(hall).watch
        hall.on_begun = self.on_begun
        hall.on_phase_noted = self.on_phase
        hall.on_first_answer = lambda link: self.on_first_answer(hall, link)
        hall.claim = lambda link: self.claim(hall, link)
        self.wake(hall)
        return hall

    def _gauges(self) -> Iterator[tuple[str, str, int]]:
        for hall in self:
            yield hall.name, "queued", sum(len(load.queue) for load in hall.loads.values())
            yield hall.name, "in_flight", sum(link.in_flight for link in hall.links.values())
            phases = [link.phase for link in hall.links.values()]
            for phase in sorted(set(phases)):
                yield hall.name, f"replicas_{phase}", phases.count(phase)
