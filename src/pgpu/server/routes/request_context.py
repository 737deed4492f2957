"""What every route asks for first: the desk, and who calls."""

from collections.abc import Callable
from typing import Annotated, cast

from fastapi import Depends
from starlette.requests import HTTPConnection

from pgpu.server.access import Caller
from pgpu.server.job_service import JobService
from pgpu.server.peer_credentials import HANG_UP_KEY, STATE_KEY, Peer
from pgpu.server.stream_relay import StreamRelay

_BEARER = "bearer "


def _desk(connection: HTTPConnection) -> JobService:
    return cast("JobService", connection.app.state.desk)


def _following(connection: HTTPConnection) -> StreamRelay:
    return cast("StreamRelay", connection.app.state.following)


def _hang_up(connection: HTTPConnection) -> Callable[[], bool]:
    state = connection.scope.get("state", {})
    return cast("Callable[[], bool]", state.get(HANG_UP_KEY, lambda: False))


def caller_of(connection: HTTPConnection) -> Caller:
    """Return who sent a request.

    Raises:
        UnauthenticatedError: Nobody can tell.
    """
    peer: Peer | None = connection.scope.get("state", {}).get(STATE_KEY)
    shown = connection.headers.get("authorization", "")
    token = shown[len(_BEARER) :].strip() if shown.lower().startswith(_BEARER) else None
    return _desk(connection).access.caller(peer, token)


JobServiceDep = Annotated[JobService, Depends(_desk)]
RelayDep = Annotated[StreamRelay, Depends(_following)]
HangUpDep = Annotated[Callable[[], bool], Depends(_hang_up)]
"""Whether the caller's connection is gone."""

CallerDep = Annotated[Caller, Depends(caller_of)]
