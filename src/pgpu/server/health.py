"""Maintenance of a server and its health: periodic work, liveness, readiness, and the route of the metrics.

Two daemon threads recover jobs, keep the agent alive, tidy volumes and check the container engine, each second or few while
jobs wait or run; without a server each command does it in passing. While there are none, both sleep until the ledger changes, the
agent ends or a probe of readiness comes. A temporary failure (a full disk, a locked ledger, a container engine that is down) is retried in the
next round; its begin and its end are logged once each.

Ready means that a request would be accepted and started. An unreachable container engine is reported and leaves the server
ready: processes still start, and containers wait.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from fastapi import APIRouter, Request
from starlette.responses import Response

from pgpu.engine.agent.door import STAY
from pgpu.engine.context import EngineContext
from pgpu.engine.leases.recovery import recover
from pgpu.errors import PgpuError, UnauthenticatedError
from pgpu.ledger import ChangeWatch, Ledger
from pgpu.runtimes.docker.docker_engine import DockerEngine, engine_url
from pgpu.server.metrics import CONTENT_TYPE, ServerMetrics
from pgpu.server.peer_credentials import has_hung_up
from pgpu.server.responses import JsonResponse, described
from pgpu.server.routes import JobServiceDep, authenticate
from pgpu.structs import Struct, replace

_LOG = logging.getLogger(__name__)

_ROUND_SECONDS = 1.0
_DOCKER_SECONDS = 5.0


class Maintenance:
    """Two daemon threads of one server: one for jobs, one for the container engine."""

    def __init__(self, engine: EngineContext, tidy: Callable[[], None] = lambda: None) -> None:
        """Do not start yet.

        Args:
            engine: Its jobs are recovered.
            tidy: Removes what killed processes left of volumes.
        """
        self._engine = engine
        self._tidy = tidy
        self._is_over = threading.Event()
        self._agent: socket.socket | None = None
        """The connection for which the agent stays; at its end there is no agent any more."""

        self._docker_is_needed = threading.Event()
        self._has_docker = False
        self.trouble: str | None = None
        """Why the last round failed, in one line; None if it did not, or before the first one."""

        self.docker_trouble: str | None = None
        """Why no container can be started now; None if one can."""

    def start(self) -> None:
        """Start the threads."""
        threading.Thread(target=self._keep_recovering, daemon=True).start()
        threading.Thread(target=self._keep_checking_docker, daemon=True).start()

    def stop(self) -> None:
        """Begin no other round."""
        self._is_over.set()

    def examine_docker(self) -> str | None:
        """Return `docker_trouble`, and have the container engine checked again."""
        self._docker_is_needed.set()
        return self.docker_trouble

    def _keep_recovering(self) -> None:
        with ChangeWatch(self._engine.ledger.path) as watch:
            is_idle = False
            while not self._is_over.is_set():
                if is_idle:
                    watch.wait(beside=None if self._agent is None else self._agent.fileno())
                watch.clear()
                is_idle = not self._recover_jobs() and self._agent is not None
                if not is_idle:
                    self._docker_is_needed.set()
                self._is_over.wait(_ROUND_SECONDS)

    def _keep_checking_docker(self) -> None:
        while not self._is_over.is_set():
            self._docker_is_needed.clear()
            self._check_docker()
            self._is_over.wait(_DOCKER_SECONDS)
            self._docker_is_needed.wait()

    def _recover_jobs(self) -> bool:
        """Run a round; return whether another one is due in any case: a job waits or runs, or this one has failed."""
        # Logged when it begins and when it ends, not in each round.
        before, is_needed = self.trouble, True
        try:
            is_needed = recover(self._engine)
            self._keep_agent()
            self.trouble = None
        except PgpuError as exc:
            self.trouble = str(exc)
            if before is None:
                _LOG.warning(f"pgpu: not ready: {exc}" + (f"\npgpu: hint: {exc.hint}" if exc.hint else ""))
        if before is not None and self.trouble is None:
            _LOG.warning("pgpu: ready again")
        return is_needed or self.trouble is not None

    def _keep_agent(self) -> None:
        # An agent ends some seconds after the last job. The server keeps it: a job starts in a tenth of the time that a new
        # process needs.
        if self._agent is not None and has_hung_up(self._agent):
            self._agent.close()
            self._agent = None
        if self._agent is None:
            model = self._engine.settings.gpu_model
            self._engine.agents.ensure(model)
            with suppress(OSError):  # It is starting: the next round connects.
                self._agent = self._engine.agents.connect(model)
                self._agent.sendall(f"{STAY}\n".encode())

    def _check_docker(self) -> None:
        self._tidy()
        try:
            DockerEngine(engine_url()).version()
            if self.docker_trouble is not None and self._has_docker:
                _LOG.warning("pgpu: the container engine answers again")
            self.docker_trouble, self._has_docker = None, True
        except PgpuError as exc:
            # Logged only if an engine answered before: a machine may have none, which is no failure.
            if self.docker_trouble is None and self._has_docker:
                _LOG.warning(f"pgpu: no container can be started: {exc}")
            self.docker_trouble = str(exc)


routes = APIRouter(tags=["health"])

_LEDGER_TIMEOUT_SECONDS = 1.0
_CACHE_SECONDS = 1.0


class Life(Struct, frozen=True):
    """That the server answers."""

    is_alive: bool


class Check(Struct, frozen=True):
    """One part of the server."""

    name: str
    """`ledger`, `gpus`, `jobs` or `docker`."""

    is_good: bool
    is_needed: bool
    """Whether nothing can be accepted without it."""

    message: str | None
    """Why it is not good, in one line; None if it is, or if the caller is not authenticated."""


class Readiness(Struct, frozen=True):
    """All parts at one moment."""

    is_ready: bool
    checks: tuple[Check, ...]


class ReadinessProbe:
    """Checks one server at most once a second, however many requests come."""

    def __init__(self, engine: EngineContext, maintenance: Maintenance) -> None:
        self._engine = engine
        self._maintenance = maintenance
        # Connections of its own, with a short time limit: a probe gets an answer even if a writer hangs.
        self._ledger = Ledger(engine.ledger.path, busy_timeout_seconds=_LEDGER_TIMEOUT_SECONDS)
        self._guard = threading.Lock()
        self._found: tuple[float, Readiness] | None = None

    def examine(self) -> Readiness:
        """Return the state of at most one second ago; blocks."""
        # Probes of a load balancer and of monitoring share one write to the ledger each second.
        with self._guard:
            if self._found is None or time.monotonic() - self._found[0] > _CACHE_SECONDS:
                needed = [
                    ("ledger", self._check_ledger()),
                    ("gpus", self._check_gpus()),
                    ("jobs", self._maintenance.trouble),
                ]
                checks = [Check(name, trouble is None, is_needed=True, message=trouble) for name, trouble in needed]
                trouble = self._maintenance.examine_docker()
                docker = Check("docker", trouble is None, is_needed=False, message=trouble)
                is_ready = all(check.is_good for check in checks)
                self._found = time.monotonic(), Readiness(is_ready, (*checks, docker))
            return self._found[1]

    def _check_ledger(self) -> str | None:
        # Only a write detects a full disk, a lock that is never released and a read-only file system.
        try:
            self._ledger.facts.put("server examined", str(time.time()))
        except PgpuError as exc:
            return str(exc)
        return None

    def _check_gpus(self) -> str | None:
        try:
            return None if self._engine.gpus.gpus() else "no GPU was found"
        except PgpuError as exc:
            return str(exc)


_UNREADY: dict[int | str, dict[str, Any]] = {503: {"model": described(Readiness), "description": "It cannot work now."}}


@routes.get("/healthz", response_model=described(Life))
async def healthz() -> Response:
    """Answer; a service manager restarts a server that does not. Needs no authentication."""
    return JsonResponse(Life(is_alive=True))


@routes.get("/readyz", response_model=described(Readiness), responses=_UNREADY)
def readyz(request: Request) -> Response:
    """Return whether a job would be accepted and started now. Reasons are included for authenticated callers."""
    found = cast("ReadinessProbe", request.app.state.readiness).examine()
    try:
        authenticate(request)
    except UnauthenticatedError:
        found = replace(found, checks=tuple(replace(check, message=None) for check in found.checks))
    return JsonResponse(found, 200 if found.is_ready else 503)


@routes.get("/metrics", response_class=Response, responses={200: {"content": {CONTENT_TYPE: {}}}})
def metrics(request: Request, service: JobServiceDep) -> Response:
    """Return metrics for Prometheus: GPUs, and of jobs those that the caller may see."""
    server_metrics = cast("ServerMetrics", request.app.state.metrics)
    return Response(server_metrics.text(service), media_type=CONTENT_TYPE)
