"""Routes of the machine: its GPUs, the queue for them, what jobs used of them, and how they should share them."""

from typing import Annotated, cast

from fastapi import APIRouter, Depends, Request
from fastapi.concurrency import run_in_threadpool
from starlette.responses import Response

from pgpu.advising.advice import Advice
from pgpu.client.protocol import GpuReport, QueueReport
from pgpu.engine.history.usage_records import CallHistory, Waste
from pgpu.model import Outsider
from pgpu.server.responses import JsonResponse, body_schema, parse_body
from pgpu.server.routes.request_context import CallerDep, JobServiceDep
from pgpu.server.single_flight import SingleFlight
from pgpu.services.messages import Together

routes = APIRouter(prefix="/v1", tags=["gpus"])

BODIES = (Together,)


@routes.get("/gpus", response_model=list[GpuReport])
def gpus(desk: JobServiceDep, caller: CallerDep, simulate: str | None = None) -> Response:
    """Report every GPU, in NVML index order; of the jobs on it only those that the caller sees."""
    return JsonResponse(desk.gpus(caller, simulate))


@routes.get("/outsiders", response_model=list[Outsider])
def outsiders(desk: JobServiceDep, caller: CallerDep, simulate: str | None = None) -> Response:
    """List the caller's processes that compute outside of every lease and that were told of; an administrator sees all."""
    return JsonResponse(desk.outsiders(caller, simulate))


@routes.get("/queue", response_model=list[QueueReport])
async def queue(request: Request, desk: JobServiceDep, caller: CallerDep, simulate: str | None = None) -> Response:
    """List the caller's waiting jobs in the order in which jobs are looked at, the held ones last."""
    departures = cast("SingleFlight", request.app.state.departures)
    answer = departures.answer(("queue", caller.sees_uid, simulate), lambda: JsonResponse(desk.queue(caller, simulate)))
    return cast("Response", await answer)


@routes.post("/advice", response_model=Advice, openapi_extra=body_schema(Together))
async def advise(
    desk: JobServiceDep,
    caller: CallerDep,
    words: Annotated[Together, Depends(parse_body(Together))],
    simulate: str | None = None,
) -> Response:
    """Say how jobs should share a GPU, from profiles of each of them alone: the caller's, or such as are sent along."""
    return JsonResponse(await run_in_threadpool(desk.advise, caller, words, simulate))


@routes.get("/history", response_model=list[CallHistory])
def history(desk: JobServiceDep, caller: CallerDep, word: str | None = None) -> Response:
    """Tell what the caller's programs held and what `--memory auto` would reserve for them, the newest run first."""
    return JsonResponse(desk.history(caller, word))


@routes.get("/waste", response_model=list[Waste])
def waste(desk: JobServiceDep, caller: CallerDep) -> Response:
    """Tell what the caller's jobs reserved and what they used of it."""
    return JsonResponse(desk.waste(caller))
