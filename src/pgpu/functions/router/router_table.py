"""The routers of all functions of a gateway, by name, kept in step with the server's functions."""

import logging
from collections.abc import Callable, Iterable, Iterator

from pgpu.errors import RequestError
from pgpu.functions.requests.prometheus_metrics import GatewayMetrics
from pgpu.functions.router.function_router import FunctionRouter
from pgpu.functions.router.replica_connection import ReplicaConnection, RoutedRequest
from pgpu.model import Function

_log = logging.getLogger(__name__)


class RouterTable:
    """Functions that can be called; on the event loop only."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self.metrics = metrics
        self._routers: dict[str, FunctionRouter] = {}
        self.wake: Callable[[FunctionRouter], None] = lambda _router: None
        """Called with each function about whose replicas the policy should decide."""

        self.on_send: Callable[[RoutedRequest], None] = lambda _request: None
        self.on_closed: Callable[[str], None] = lambda _identity: None
        """Called with the identity of each removed function, after its requests were answered."""

        self.on_phase: Callable[[ReplicaConnection], None] = lambda _replica: None
        self.on_first_answer: Callable[[FunctionRouter, ReplicaConnection], None] = lambda _router, _replica: None
        self.reacquire: Callable[[FunctionRouter, ReplicaConnection], None] = lambda _router, _replica: None
        metrics.gauges = self._gauges

    def get(self, name: str) -> FunctionRouter | None:
        """Return a function's router; None: there is no such function."""
        return self._routers.get(name)

    def of(self, identity: str) -> FunctionRouter | None:
        """Return the router of exactly this function, not of a later one of the same name; see `Function.identity`."""
        router = self._routers.get(identity.partition("@")[0])
        return router if router is not None and router.function.identity == identity else None

    def __iter__(self) -> Iterator[FunctionRouter]:
        return iter([*self._routers.values()])

    def adopt(self, functions: Iterable[Function]) -> None:
        """Create, update and close routers to match these functions."""
        known = {function.name: function for function in functions}
        for name in [*self._routers]:
            function = known.get(name)
            if function is None or function.created_at_seconds != self._routers[name].function.created_at_seconds:
                gone = self._routers.pop(name)
                gone.close()
                self.metrics.forget(name)
                self.on_closed(gone.function.identity)
        for name, function in known.items():
            try:
                router = self._routers.get(name)
                if router is None:
                    self._routers[name] = self._create(function)
                elif router.function != function:
                    router.adopt(function)
                    self.wake(router)
            except RequestError as error:
                _log.info("%s cannot be served: %s", name, error)

    def _create(self, function: Function) -> FunctionRouter:
        router = FunctionRouter(function, self.metrics, lambda: self.wake(router))
        router.watch_deadlines(router.check_deadline)
        router.on_send = self.on_send
        router.on_replica_phase = self.on_phase
        router.on_first_answer = lambda replica: self.on_first_answer(router, replica)
        router.reacquire = lambda replica: self.reacquire(router, replica)
        self.wake(router)
        return router

    def _gauges(self) -> Iterator[tuple[str, str, int]]:
        for router in self:
            yield router.name, "queued", sum(len(load.queue) for load in router.loads.values())
            yield router.name, "in_flight", sum(replica.in_flight for replica in router.replicas.values())
            phases = [replica.phase for replica in router.replicas.values()]
            for phase in sorted(set(phases)):
                yield router.name, f"replicas_{phase}", phases.count(phase)
