"""Routes of functions: bundles, versions, traffic, tokens; and those that the gateway alone may use.

A bundle comes first, as bytes, to the address of its content; a version names it. So what was accepted is durable in one
transaction, and what a lost connection left behind is nobody's.
"""

import asyncio
from typing import Annotated, cast

from fastapi import APIRouter, Depends, Query, Request
from fastapi.concurrency import contextmanager_in_threadpool
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection
from starlette.responses import Response

from pgpu.errors import RequestError
from pgpu.model import ColdStart, Deployment, Function, FunctionToken, Job, Replica, ReplicaState, Version
from pgpu.server.function_service import FunctionService
from pgpu.server.responses import JsonResponse, body_schema, parse_body
from pgpu.server.routes.request_context import CallerDep
from pgpu.services.function_messages import Bearer, Judgement, NewFunctionToken, ReplicaAsk, Rollout, Shown

routes = APIRouter(prefix="/v1", tags=["functions"])

BODIES = (Deployment, Rollout, ReplicaAsk, Judgement, Shown, ColdStart)

_BUNDLE_SECONDS = 600.0
"""In which a bundle must have come: a hundred megabytes over a slow line."""

_MOST_STARTS = 10_000
_BYTES = {"requestBody": {"required": True, "content": {"application/octet-stream": {"schema": {"type": "string"}}}}}


def _desk(connection: HTTPConnection) -> FunctionService:
    return cast("FunctionService", connection.app.state.functions)


AFunctionDesk = Annotated[FunctionService, Depends(_desk)]


@routes.get("/bundles/{digest}", status_code=204)
def has_bundle(desk: AFunctionDesk, caller: CallerDep, digest: str) -> Response:
    """Say whether the caller has sent a bundle of this SHA-256 before; 404 if not."""
    desk.has_bundle(caller, digest)
    return Response(status_code=204)


@routes.put("/bundles/{digest}", status_code=204, openapi_extra=_BYTES)
async def put_bundle(request: Request, desk: AFunctionDesk, caller: CallerDep, digest: str) -> Response:
    """Keep a packed source tree; its SHA-256 must be the address that it is sent to."""
    receiving = await run_in_threadpool(desk.receiving, caller)
    async with contextmanager_in_threadpool(receiving) as incoming:
        try:
            async with asyncio.timeout(_BUNDLE_SECONDS):
                async for chunk in request.stream():
                    await run_in_threadpool(incoming.write, chunk)
        except TimeoutError:
            raise RequestError(f"the bundle did not come within {_BUNDLE_SECONDS:.0f} seconds") from None
        await run_in_threadpool(incoming.keep, digest)
    return Response(status_code=204)


@routes.post("/functions", status_code=201, response_model=Version, openapi_extra=body_schema(Deployment))
async def deploy(
    desk: AFunctionDesk, caller: CallerDep, asked: Annotated[Deployment, Depends(parse_body(Deployment))]
) -> Response:
    """Keep a new version of a function, durably; the first one gets all of the traffic."""
    return JsonResponse(await run_in_threadpool(desk.deploy, caller, asked), 201)


@routes.get("/functions", response_model=list[Function])
def functions(desk: AFunctionDesk, caller: CallerDep) -> Response:
    """List the caller's functions, an administrator's are everybody's, by name."""
    return JsonResponse(desk.functions(caller))


@routes.get("/functions/{name}", response_model=Function)
def function(desk: AFunctionDesk, caller: CallerDep, name: str) -> Response:
    """Return one function with its versions and its traffic."""
    return JsonResponse(desk.function(caller, name))


@routes.delete("/functions/{name}", response_model=list[str])
def undeploy(desk: AFunctionDesk, caller: CallerDep, name: str) -> Response:
    """Forget a function; return the ids of the jobs that served it, which end now."""
    return JsonResponse(desk.undeploy(caller, name))


@routes.post("/functions/{name}/rollout", response_model=Function, openapi_extra=body_schema(Rollout))
async def roll_out(
    desk: AFunctionDesk, caller: CallerDep, name: str, words: Annotated[Rollout, Depends(parse_body(Rollout))]
) -> Response:
    """Give a version all of the traffic, or a part; the rest goes to the version that had most of it."""
    return JsonResponse(await run_in_threadpool(desk.roll_out, caller, name, words))


@routes.post("/functions/{name}/rollback", response_model=Function)
def roll_back(desk: AFunctionDesk, caller: CallerDep, name: str) -> Response:
    """Let the traffic be what it was before the last rollout."""
    return JsonResponse(desk.roll_back(caller, name))


@routes.get("/functions/{name}/tokens", response_model=list[FunctionToken])
def tokens(desk: AFunctionDesk, caller: CallerDep, name: str) -> Response:
    """List the tokens that may call a function, without their secret parts."""
    return JsonResponse(desk.tokens(caller, name))


@routes.post("/functions/{name}/tokens", status_code=201, response_model=NewFunctionToken)
def create_token(desk: AFunctionDesk, caller: CallerDep, name: str, label: str = "") -> Response:
    """Make a token that may call this function; it is shown this once."""
    return JsonResponse(desk.create_token(caller, name, label), 201)


@routes.delete("/functions/{name}/tokens/{token}", status_code=204)
def revoke_token(desk: AFunctionDesk, caller: CallerDep, name: str, token: str) -> Response:
    """Make a token worth nothing from now on."""
    desk.revoke_token(caller, name, token)
    return Response(status_code=204)


@routes.get("/functions/{name}/replicas", response_model=list[Replica])
def replicas(desk: AFunctionDesk, caller: CallerDep, name: str) -> Response:
    """Tell what serves a function now."""
    return JsonResponse(desk.replicas(caller, name))


@routes.get("/functions/{name}/cold-starts", response_model=list[ColdStart])
def cold_starts(
    desk: AFunctionDesk, caller: CallerDep, name: str, limit: Annotated[int, Query(ge=1, le=_MOST_STARTS)] = 100
) -> Response:
    """List a function's last cold starts with their phases, the newest first."""
    return JsonResponse(desk.cold_starts(caller, name, limit))


@routes.post("/functions/{name}/cold-starts", status_code=204, openapi_extra=body_schema(ColdStart))
async def note_cold_start(
    desk: AFunctionDesk, caller: CallerDep, name: str, start: Annotated[ColdStart, Depends(parse_body(ColdStart))]
) -> Response:
    """Keep how long a start took; for the gateway."""
    await run_in_threadpool(desk.note_cold_start, caller, name, start)
    return Response(status_code=204)


@routes.post("/functions/{name}/judgement", status_code=204, openapi_extra=body_schema(Judgement))
async def judge(
    desk: AFunctionDesk, caller: CallerDep, name: str, judgement: Annotated[Judgement, Depends(parse_body(Judgement))]
) -> Response:
    """Note whether a version can be served; for the gateway."""
    await run_in_threadpool(desk.judge, caller, name, judgement)
    return Response(status_code=204)


@routes.post("/bearers", response_model=Bearer, openapi_extra=body_schema(Shown))
async def bearer(
    desk: AFunctionDesk, caller: CallerDep, shown: Annotated[Shown, Depends(parse_body(Shown))]
) -> Response:
    """Tell what a token is good for; for the gateway."""
    return JsonResponse(await run_in_threadpool(desk.bearer, caller, shown))


@routes.get("/replicas", response_model=list[Replica])
def all_replicas(desk: AFunctionDesk, caller: CallerDep) -> Response:
    """Tell everything that serves now; for the gateway."""
    return JsonResponse(desk.all_replicas(caller))


@routes.post("/replicas", status_code=201, response_model=Replica, openapi_extra=body_schema(ReplicaAsk))
async def start_replica(
    desk: AFunctionDesk, caller: CallerDep, ask: Annotated[ReplicaAsk, Depends(parse_body(ReplicaAsk))]
) -> Response:
    """Ask for a job that serves a version, as the function's owner; for the gateway."""
    return JsonResponse(await run_in_threadpool(desk.start_replica, caller, ask), 201)


@routes.post("/builds", status_code=201, response_model=Job, openapi_extra=body_schema(ReplicaAsk))
async def build(
    desk: AFunctionDesk, caller: CallerDep, ask: Annotated[ReplicaAsk, Depends(parse_body(ReplicaAsk))]
) -> Response:
    """Ask for the job that installs a version's packages, as the function's owner; for the gateway."""
    return JsonResponse(await run_in_threadpool(desk.build, caller, ask), 201)


@routes.put("/replicas/{job}", status_code=204)
def note_replica(desk: AFunctionDesk, caller: CallerDep, job: str, state: ReplicaState) -> Response:
    """Note where a replica is in its life; for the gateway."""
    desk.note_replica(caller, job, state)
    return Response(status_code=204)


@routes.delete("/replicas/{job}", status_code=204)
def forget_replica(desk: AFunctionDesk, caller: CallerDep, job: str) -> Response:
    """Forget a replica whose job has ended; for the gateway."""
    desk.forget_replica(caller, job)
    return Response(status_code=204)
