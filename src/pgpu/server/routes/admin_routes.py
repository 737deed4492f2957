"""Routes of the administrator alone: quotas, GPUs that take no jobs, tokens."""

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from pgpu.server.responses import JsonResponse, body_schema, parse_body
from pgpu.server.routes.request_context import CallerDep, JobServiceDep
from pgpu.services.administration import AdministrationService, NewToken, TokenReport, UserQuota

routes = APIRouter(prefix="/v1/admin", tags=["admin"])

BODIES = (UserQuota,)


def administration(desk: JobServiceDep, caller: CallerDep) -> AdministrationService:
    """Return what an administrator may do.

    Raises:
        AccessError: The caller is none.
    """
    desk.access.check_administers(caller)
    return AdministrationService(desk.engine)


Administering = Annotated[AdministrationService, Depends(administration)]


@routes.get("/quotas", response_model=list[UserQuota])
def quotas(admin: Administering) -> Response:
    """List what users may hold at a time; who is missing may hold as much as there is."""
    return JsonResponse(admin.quotas())


@routes.post("/quotas", status_code=204, openapi_extra=body_schema(UserQuota))
async def set_quota(admin: Administering, quota: Annotated[UserQuota, Depends(parse_body(UserQuota))]) -> Response:
    """Set what a user may hold from now on; what runs goes on."""
    await run_in_threadpool(admin.set_quota, quota)
    return Response(status_code=204)


@routes.delete("/quotas/{uid}", status_code=204)
def remove_quota(admin: Administering, uid: int) -> Response:
    """Let a user hold as much as there is."""
    admin.remove_quota(uid)
    return Response(status_code=204)


@routes.get("/closed-gpus", response_model=list[str])
def closed_gpus(admin: Administering) -> Response:
    """List the UUIDs of GPUs on which nothing new starts; `*` stands for all."""
    return JsonResponse(admin.closed_gpus())


@routes.put("/closed-gpus/{uuid}", status_code=204)
def close_gpu(admin: Administering, uuid: str) -> Response:
    """Let nothing new start on a GPU, or on all with `*`; what runs goes on."""
    admin.close_gpu(uuid)
    return Response(status_code=204)


@routes.delete("/closed-gpus/{uuid}", status_code=204)
def open_gpu(admin: Administering, uuid: str) -> Response:
    """Let jobs start there again."""
    admin.open_gpu(uuid)
    return Response(status_code=204)


@routes.get("/tokens", response_model=list[TokenReport])
def tokens(admin: Administering) -> Response:
    """List the tokens that are valid, without their secret parts."""
    return JsonResponse(admin.tokens())


@routes.post("/tokens", status_code=201, response_model=NewToken)
def create_token(admin: Administering, uid: int) -> Response:
    """Make a token for a user of this machine; it is shown this once."""
    return JsonResponse(admin.create_token(uid), 201)


@routes.delete("/tokens/{token}", status_code=204)
def revoke_token(admin: Administering, token: str) -> Response:
    """Make a token worth nothing from now on."""
    admin.revoke_token(token)
    return Response(status_code=204)
