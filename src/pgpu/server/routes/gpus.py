"""Routes of the machine: its GPUs, the queue for them, what jobs used of them, and how they should share them."""

from typing import Annotated, cast

from fastapi import APIRouter, Depends, Request
from fastapi.concurrency import run_in_threadpool
from starlette.responses import Response

from pgpu.advising.advice import Advice
from pgpu.client.asking import Together
from pgpu.client.protocol import GpuReport, QueueReport
from pgpu.engine.history.usage_records import CallHistory, Waste
from pgpu.model import Outsider
from pgpu.server.answers import Answer, body_of, takes
from pgpu.server.departures import Departures
from pgpu.server.routes.asking import ACaller, ADesk

routes = APIRouter(prefix="/v1", tags=["gpus"])

BODIES = (Together,)


@routes.get("/gpus", response_model=list[GpuReport])
def gpus(desk: ADesk, caller: ACaller, simulate: str | None = None) -> Response:
    """Report every GPU, in NVML index order; of the jobs on it only those that the caller sees."""
    return Answer(desk.gpus(caller, simulate))


@routes.get("/outsiders", response_model=list[Outsider])
def outsiders(desk: ADesk, caller: ACaller, simulate: str | None = None) -> Response:
    """List the caller's processes that compute outside of every lease and that were told of; an administrator sees all."""
    return Answer(desk.outsiders(caller, simulate))


@routes.get("/queue", response_model=list[QueueReport])
async def queue(request: Request, desk: ADesk, caller: ACaller, simulate: str | None = None) -> Response:
    """List the caller's waiting jobs in the order in which jobs are looked at, the held ones last."""
    departures = cast("Departures", request.app.state.departures)
    answer = departures.answer(("queue", caller.sees_uid, simulate), lambda: Answer(desk.queue(caller, simulate)))
    return cast("Response", await answer)


@routes.post("/advice", response_model=Advice, openapi_extra=takes(Together))
async def advise(
    desk: ADesk, caller: ACaller, words: Annotated[Together, Depends(body_of(Together))], simulate: str | None = None
) -> Response:
    """Say how jobs should share a GPU, from profiles of each of them alone: the caller's, or such as are sent along."""
    return Answer(await run_in_threadpool(desk.advise, caller, words, simulate))


@routes.get("/history", response_model=list[CallHistory])
def history(desk: ADesk, caller: ACaller, word: str | None = None) -> Response:
    """Tell what the caller's programs held and what `--memory auto` would reserve for them, the newest run first."""
    return Answer(desk.history(caller, word))


@routes.get("/waste", response_model=list[Waste])
def waste(desk: ADesk, caller: ACaller) -> Response:
    """Tell what the caller's jobs reserved and what they used of it."""
    return Answer(desk.waste(caller))
