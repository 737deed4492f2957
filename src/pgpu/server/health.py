"""Health of the server for service managers and Prometheus: liveness, readiness and metrics.

Ready means that a request would be accepted and started. An unreachable container engine is reported and leaves the server
ready: processes still start, and containers wait.
"""

import threading
import time
from dataclasses import dataclass, replace
from typing import Any, cast

from fastapi import APIRouter, Request
from starlette.responses import Response

from pgpu.engine.context import EngineContext
from pgpu.errors import PgpuError, UnauthenticatedError
from pgpu.ledger import Ledger
from pgpu.server.maintenance import Maintenance
from pgpu.server.metrics import CONTENT_TYPE, ServerMetrics
from pgpu.server.responses import JsonResponse
from pgpu.server.routes import JobServiceDep, authenticate

routes = APIRouter(tags=["health"])

_LEDGER_TIMEOUT_SECONDS = 1.0
_CACHE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Life:
    """That the server answers."""

    is_alive: bool


@dataclass(frozen=True, slots=True)
class Check:
    """One part of the server."""

    name: str
    """`ledger`, `gpus`, `jobs` or `docker`."""

    is_good: bool
    is_needed: bool
    """Whether nothing can be accepted without it."""

    message: str | None
    """Why it is not good, in one line; None if it is, or if the caller is not authenticated."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """All parts at one moment."""

    is_ready: bool
    checks: tuple[Check, ...]


class ReadinessProbe:
    """Checks one server at most once a second, however many requests come."""

    def __init__(self, engine: EngineContext, maintenance: Maintenance) -> None:
        self._engine = engine
        self._maintenance = maintenance
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
                trouble = self._maintenance.docker_trouble
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


_UNREADY: dict[int | str, dict[str, Any]] = {503: {"model": Readiness, "description": "It cannot work now."}}


@routes.get("/healthz", response_model=Life)
async def healthz() -> Response:
    """Answer; a service manager restarts a server that does not. Needs no authentication."""
    return JsonResponse(Life(is_alive=True))


@routes.get("/readyz", response_model=Readiness, responses=_UNREADY)
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
