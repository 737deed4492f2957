"""Routes of the machine: its GPUs and the queue for them."""

from fastapi import APIRouter
from starlette.responses import Response

from pgpu.client.protocol import GpuReport, QueueReport
from pgpu.server.answers import Answer
from pgpu.server.routes.asking import ACaller, ADesk

routes = APIRouter(prefix="/v1", tags=["gpus"])


@routes.get("/gpus", response_model=list[GpuReport])
def gpus(desk: ADesk, caller: ACaller, simulate: str | None = None) -> Response:
    """Report every GPU, in NVML index order; of the jobs on it only those that the caller sees."""
    return Answer(desk.gpus(caller, simulate))


@routes.get("/queue", response_model=list[QueueReport])
def queue(desk: ADesk, caller: ACaller, simulate: str | None = None) -> Response:
    """List the caller's waiting jobs in the order in which jobs are looked at, the held ones last."""
    return Answer(desk.queue(caller, simulate))
