"""What a function says of itself: asked of a replica once for each version, which is started for it where there is none.

It refuses to know more of a function than its replica tells.
"""

import asyncio
import time

from pgpu.functions.gateway.gateway_handler import GatewayRequestHandler
from pgpu.functions.gateway.gateway_routes import Route, RouteKind
from pgpu.functions.ipc.messages import Chunk, Reply
from pgpu.functions.protocols import Refusal
from pgpu.functions.router.routed_request import RoutedRequest

_NO_PAGE = Refusal(404, "not_found", "the function says nothing of the kind about itself")
_OK = 200
_PATIENCE_SECONDS = 5.0
"""With a replica: it has what it says of itself at hand."""


class _Question:
    """Waits for what a replica tells."""

    def __init__(self) -> None:
        self.told: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def reply(self, reply: Reply, file: int | None) -> None:
        """Wake who waits; no file ever comes."""
        _ = file
        if not self.told.done():
            self.told.set_result(reply)

    def chunk(self, chunk: Chunk, file: int | None) -> None:
        """Never comes."""


async def describe_function(
    counter: GatewayRequestHandler, errand: RoutedRequest, target: Route, patience_seconds: float = _PATIENCE_SECONDS
) -> Reply | Refusal:
    """Return a page of a function's; it takes no longer than a replica takes to start, whatever its calls may take."""
    hall = errand.hall
    assert hall is not None  # noqa: S101 - its caller found it
    load = hall.load_of(errand)
    if load is None:
        return _NO_PAGE
    if not load.pages:
        errand.question = "describe"
        start_seconds = 0.0 if load.hot else load.declaration.startup_timeout_seconds
        errand.deadline_seconds = min(errand.deadline_seconds, time.monotonic() + start_seconds + patience_seconds)
        question = _Question()
        counter.submit(errand, b"", None, question)
        try:
            reply = await question.told
        finally:
            hall.abandon(errand)
        if reply.status != _OK:
            return reply
        load.pages = {page: body.encode() for page, body in reply.headers.items()}
    path = "/openapi.json" if target.kind is RouteKind.OPENAPI else f"/v2/models/{hall.name}"
    body = load.pages.get(path)
    return _NO_PAGE if body is None else Reply(_OK, {"content-type": "application/json"}, body)
