"""Routes of jobs: submit, list, look, wait, stop, signal, resize."""

from typing import Annotated, cast
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from pgpu.client.protocol import JobReport
from pgpu.engine.history.usage_records import Findings, ProfiledJob
from pgpu.model import Job, Profile, Resize
from pgpu.server.responses import JsonResponse, body_schema, parse_body
from pgpu.server.routes.request_context import CallerDep, HangUpDep, JobServiceDep, RelayDep
from pgpu.server.single_flight import SingleFlight
from pgpu.services.messages import Ask, Cancel, LeaseOffer, Signal, Stop, Window

routes = APIRouter(prefix="/v1/jobs", tags=["jobs"])

BODIES = (Ask, Cancel, Stop, Signal, LeaseOffer, Window, Resize, Findings)

_MOST_WAIT_SECONDS = 60.0
_MOST_ON_A_PAGE = 5000


@routes.post("", status_code=201, response_model=list[Job], openapi_extra=body_schema(Ask))
async def submit(desk: JobServiceDep, caller: CallerDep, ask: Annotated[Ask, Depends(parse_body(Ask))]) -> Response:
    """Accept jobs durably, all or none, and leave them to themselves."""
    return JsonResponse(await run_in_threadpool(desk.submit, caller, ask), 201)


@routes.get("", response_model=list[JobReport])
async def list_jobs(
    request: Request,
    desk: JobServiceDep,
    caller: CallerDep,
    *,
    include_final: bool = False,
    limit: Annotated[int | None, Query(ge=1, le=_MOST_ON_A_PAGE, description="At most so many; else all.")] = None,
    after: Annotated[int, Query(ge=0, le=(1 << 63) - 1, description="As the link to the next page has it.")] = 0,
) -> Response:
    """List the caller's jobs, an administrator's are everybody's, oldest first.

    Where there are more than `limit`, the header `Link` names the next page (`rel="next"`, RFC 8288).
    """
    departures = cast("SingleFlight", request.app.state.departures)

    def listed() -> Response:
        reports, behind = desk.jobs(caller, include_final=include_final, after=after, most=limit)
        answer = JsonResponse(reports)
        if behind is not None:
            query = urlencode({"include_final": str(include_final).lower(), "limit": limit, "after": behind})
            answer.headers["Link"] = f'<{routes.prefix}?{query}>; rel="next"'
        return answer

    return cast("Response", await departures.answer(("jobs", caller.sees_uid, include_final, limit, after), listed))


@routes.post("/cancel", response_model=list[Job], openapi_extra=body_schema(Cancel))
async def cancel(
    desk: JobServiceDep, caller: CallerDep, words: Annotated[Cancel, Depends(parse_body(Cancel))]
) -> Response:
    """Cancel waiting jobs and end running ones, all told at once. Does not wait for their ends."""
    return JsonResponse(await run_in_threadpool(desk.cancel, caller, words.jobs, words.grace_seconds))


@routes.get("/{job}", response_model=JobReport)
def look(desk: JobServiceDep, caller: CallerDep, job: str) -> Response:
    """Find one job by id, by a beginning of its id that only one has, or by name."""
    return JsonResponse(desk.report(desk.find(caller, job)))


@routes.get("/{job}/members", response_model=list[JobReport])
def members(desk: JobServiceDep, caller: CallerDep, job: str) -> Response:
    """Find the jobs of an array by its id, a beginning of it or its name; else one job."""
    return JsonResponse([desk.report(entry) for entry in desk.members(caller, job)])


@routes.get("/{job}/wait", response_model=Job)
async def wait(
    desk: JobServiceDep,
    caller: CallerDep,
    following: RelayDep,
    job: str,
    timeout_seconds: Annotated[float, Query(ge=0, le=_MOST_WAIT_SECONDS)] = _MOST_WAIT_SECONDS,
    *,
    has_hung_up: HangUpDep,
) -> Response:
    """Wait until a job is final, or for so long; return it as it is then."""
    found = await run_in_threadpool(desk.find, caller, job)
    ended = await following.stay(following.until_final(found.job.id), timeout_seconds, has_hung_up)
    return JsonResponse(ended or await run_in_threadpool(desk.engine.ledger.job, found.job.id))


@routes.get("/{job}/granted", response_model=Job)
async def granted(
    desk: JobServiceDep,
    caller: CallerDep,
    following: RelayDep,
    job: str,
    timeout_seconds: Annotated[float, Query(ge=0, le=_MOST_WAIT_SECONDS)] = _MOST_WAIT_SECONDS,
    *,
    has_hung_up: HangUpDep,
    wants_reason: bool = True,
) -> Response:
    """Wait until a job waits no longer, or for so long; return it as it is then, with the reason where it still waits."""
    found = await run_in_threadpool(desk.find, caller, job)
    waiting = following.until_granted(found.job.id)
    if waits_no_longer := await following.stay(waiting, timeout_seconds, has_hung_up):
        return JsonResponse(waits_no_longer)
    entry = await run_in_threadpool(desk.engine.ledger.entry, found.job.id)
    return JsonResponse(
        (await run_in_threadpool(desk.report, entry)).job if wants_reason and not has_hung_up() else entry.job
    )


@routes.post("/{job}/stop", response_model=Job, openapi_extra=body_schema(Stop))
async def stop(
    desk: JobServiceDep, caller: CallerDep, job: str, words: Annotated[Stop, Depends(parse_body(Stop))]
) -> Response:
    """Cancel a waiting job; end a running one with SIGTERM and, after the grace, SIGKILL. Does not wait for its end."""
    return JsonResponse(await run_in_threadpool(desk.stop, caller, job, words.grace_seconds))


@routes.post("/{job}/signal", status_code=204, openapi_extra=body_schema(Signal))
async def signal(
    desk: JobServiceDep, caller: CallerDep, job: str, words: Annotated[Signal, Depends(parse_body(Signal))]
) -> Response:
    """Send a signal to a running job's main process."""
    await run_in_threadpool(desk.signal, caller, job, words.number)
    return Response(status_code=204)


@routes.post("/{job}/window", status_code=204, openapi_extra=body_schema(Window))
async def window(
    desk: JobServiceDep, caller: CallerDep, job: str, words: Annotated[Window, Depends(parse_body(Window))]
) -> Response:
    """Tell a job with a terminal the size of the caller's."""
    await run_in_threadpool(desk.window, caller, job, words.columns, words.rows)
    return Response(status_code=204)


@routes.post("/{job}/resize", response_model=Job, openapi_extra=body_schema(Resize))
async def resize(
    desk: JobServiceDep, caller: CallerDep, job: str, words: Annotated[Resize, Depends(parse_body(Resize))]
) -> Response:
    """Change the slices of a waiting or running job, its share of compute or both, of all its GPUs or none."""
    return JsonResponse(await run_in_threadpool(desk.resize, caller, job, words))


@routes.post("/{job}/offer", response_model=Job, openapi_extra=body_schema(LeaseOffer))
async def offer(
    desk: JobServiceDep, caller: CallerDep, job: str, words: Annotated[LeaseOffer, Depends(parse_body(LeaseOffer))]
) -> Response:
    """Let the lease of an idle job that serves a function be taken for a waiting job of the same or a higher priority."""
    return JsonResponse(await run_in_threadpool(desk.offer, caller, job, words.value))


@routes.post("/{job}/park", response_model=Job)
async def park(desk: JobServiceDep, caller: CallerDep, job: str) -> Response:
    """Have a job that parks do without its lease until it is claimed."""
    return JsonResponse(await run_in_threadpool(desk.park, caller, job))


@routes.post("/{job}/claim", response_model=Job)
async def claim(desk: JobServiceDep, caller: CallerDep, job: str) -> Response:
    """Keep an offered lease, 409 where it was taken before; of a parked job: wait for it again."""
    return JsonResponse(await run_in_threadpool(desk.claim, caller, job))


@routes.get("/{job}/profile", response_model=ProfiledJob)
async def profiled(desk: JobServiceDep, caller: CallerDep, job: str) -> Response:
    """Return what a traced job that ended did on the GPU: its profile, and its packed log."""
    return JsonResponse(await run_in_threadpool(desk.profiled, caller, job))


@routes.post("/{job}/profile", response_model=Profile, openapi_extra=body_schema(Findings))
async def add_findings(
    desk: JobServiceDep, caller: CallerDep, job: str, words: Annotated[Findings, Depends(parse_body(Findings))]
) -> Response:
    """Add what several runs of a program told to the profile of one of them."""
    return JsonResponse(await run_in_threadpool(desk.add_findings, caller, job, words))
