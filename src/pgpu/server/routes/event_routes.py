"""The route of events: what happens, as it happens, as server-sent events.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from collections.abc import AsyncIterator
from typing import Annotated, cast

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response, StreamingResponse

from pgpu.errors import RequestError
from pgpu.model import Event
from pgpu.server.access import Caller
from pgpu.server.event_broadcast import EventBroadcast
from pgpu.server.routes.request_context import CallerDep
from pgpu.services import wire

routes = APIRouter(prefix="/v1", tags=["events"])

EVENT_STREAM = "text/event-stream"


@routes.get("/events", response_class=Response, responses={200: {"model": Event, "content": {EVENT_STREAM: {}}}})
async def events(
    request: Request,
    caller: CallerDep,
    after: Annotated[int | None, Query(ge=0, le=(1 << 63) - 1, description="Begin behind this event.")] = None,
    last_event_id: Annotated[str | None, Header(description="As browsers send it when they come again.")] = None,
) -> Response:
    """Tell what happens to the caller's jobs, an administrator everything; each event's data is JSON."""
    bulletin = cast("EventBroadcast", request.app.state.bulletin)
    return StreamingResponse(
        _told(bulletin, caller, _begin(after, last_event_id)),
        media_type=EVENT_STREAM,
        headers={"Cache-Control": "no-store"},
    )


def _begin(after: int | None, last_event_id: str | None) -> int | None:
    if after is not None or last_event_id is None:
        return after
    if not (last_event_id.isascii() and last_event_id.isdecimal() and len(last_event_id) < 19):  # noqa: PLR2004
        raise RequestError("Last-Event-ID is no number of an event")
    return int(last_event_id)


async def _told(bulletin: EventBroadcast, caller: Caller, after: int | None) -> AsyncIterator[bytes]:
    after = await bulletin.newest() if after is None else after
    yield b": what happens from here on\n\n"
    async for found in bulletin.events(after):
        if not found:
            yield b": nothing new\n\n"
        for event in found:
            if caller.sees_uid is None or event.owner_uid == caller.sees_uid:
                yield b"id: %d\nevent: %s\ndata: %s\n\n" % (event.sequence, event.kind.encode(), wire.encode(event))
