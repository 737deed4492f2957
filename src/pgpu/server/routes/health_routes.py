"""Routes for whoever keeps the server running: whether it lives, whether it can work, and what it counts."""

from dataclasses import dataclass, replace
from typing import Any, cast

from fastapi import APIRouter, Request
from starlette.responses import Response

from pgpu.errors import UnauthenticatedError
from pgpu.server.metrics import CONTENT_TYPE, ServerMetrics
from pgpu.server.readiness_probe import Readiness, ReadinessProbe
from pgpu.server.responses import JsonResponse
from pgpu.server.routes.request_context import CallerDep, JobServiceDep, caller_of

routes = APIRouter(tags=["health"])


@dataclass(frozen=True, slots=True)
class Life:
    """That the server answers."""

    is_alive: bool


_UNREADY: dict[int | str, dict[str, Any]] = {503: {"model": Readiness, "description": "It cannot work now."}}


@routes.get("/healthz", response_model=Life)
async def healthz() -> Response:
    """Answer: whoever gets none restarts the server. Asks for no proof of who calls."""
    return JsonResponse(Life(is_alive=True))


@routes.get("/readyz", response_model=Readiness, responses=_UNREADY)
def readyz(request: Request) -> Response:
    """Say whether a job would be accepted and started now. Why not is told to callers that the server knows."""
    found = cast("ReadinessProbe", request.app.state.examiner).examine()
    try:
        caller_of(request)
    except UnauthenticatedError:
        found = replace(found, checks=tuple(replace(check, message=None) for check in found.checks))
    return JsonResponse(found, 200 if found.is_ready else 503)


@routes.get("/metrics", response_class=Response, responses={200: {"content": {CONTENT_TYPE: {}}}})
def metrics(request: Request, desk: JobServiceDep, caller: CallerDep) -> Response:
    """Return what Prometheus scrapes: GPUs, and of jobs those that the caller sees."""
    meters = cast("ServerMetrics", request.app.state.meters)
    return Response(meters.text(desk, caller), media_type=CONTENT_TYPE)
