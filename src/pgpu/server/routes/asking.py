"""What every route asks for first: the desk, and who calls."""

from collections.abc import Callable
from typing import Annotated, cast

from fastapi import Depends
from starlette.requests import HTTPConnection

from pgpu.server.access import Caller
from pgpu.server.desk import Desk
from pgpu.server.following import Following
from pgpu.server.peers import HANG_UP_KEY, STATE_KEY, Peer

_BEARER = "bearer "


def _desk(connection: HTTPConnection) -> Desk:
    return cast("Desk", connection.app.state.desk)


def _following(connection: HTTPConnection) -> Following:
    return cast("Following", connection.app.state.following)


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


ADesk = Annotated[Desk, Depends(_desk)]
AFollowing = Annotated[Following, Depends(_following)]
AHangUp = Annotated[Callable[[], bool], Depends(_hang_up)]
"""Whether the caller's connection is gone."""

ACaller = Annotated[Caller, Depends(caller_of)]
