"""The ordinary way of a call: a task that reads its body, hands it in, and waits while the client is slow.

It refuses to judge a request: who calls it has looked at everything but the body.
"""

import asyncio

from pgpu.functions.http.request_bodies import TOO_LARGE, ClientGoneError, Receive, read_body
from pgpu.functions.http.request_handler import RequestHandler
from pgpu.functions.http.response_writer import ResponseWriter, Send
from pgpu.functions.ipc.messages import Chunk, Reply
from pgpu.functions.protocols import Refusal
from pgpu.functions.requests.pending_request import PendingRequest

_BODY_TIMEOUT = Refusal(408, "body_timeout", "the body did not come in time", {"connection": "close"})


class AsgiCall:
    """One request whose task waits for the answer."""

    def __init__(self, counter: RequestHandler, ticket: PendingRequest, send: Send) -> None:
        self._counter, self._ticket, self._send = counter, ticket, send
        self._answering: ResponseWriter | None = None
        self._replied: asyncio.Future[tuple[Reply, int | None] | None] = asyncio.get_running_loop().create_future()

    def reply(self, reply: Reply, file: int | None) -> None:
        """Wake the task."""
        self._answering = ResponseWriter(self._counter.warm(self._ticket), self._ticket, self._send)
        self._replied.set_result((reply, file))

    def chunk(self, chunk: Chunk, file: int | None) -> None:
        """Pass a piece on."""
        if self._answering is not None:
            self._answering.chunk(chunk, file)

    def gone(self) -> None:
        """The client has left: the task has nobody to answer."""
        if self._answering is not None:
            self._answering.gone()
        if not self._replied.done():
            self._replied.set_result(None)

    async def answer(self) -> None:
        """Wait and send."""
        replied = await self._replied
        if replied is not None and self._answering is not None:
            await self._answering.run(*replied)


async def answer_call(
    counter: RequestHandler, ticket: PendingRequest, most_bytes: int, receive: Receive, send: Send
) -> None:
    """Read a call's body, hand it in, and send the answer.

    Args:
        counter: Where it is handed in.
        ticket: The request; its deadline ends the reading, too.
        most_bytes: The largest body.
        receive: ASGI's.
        send: Likewise.
    """
    if (refused := refuse_too_large(ticket, most_bytes)) is None:
        try:
            async with asyncio.timeout_at(ticket.deadline_seconds):
                read = await read_body(receive, most_bytes)
        except ClientGoneError:
            return
        except TimeoutError:
            read = _BODY_TIMEOUT
        if not isinstance(read, Refusal):
            await serve_body(counter, ticket, read, receive, send)
            return
        refused = read
    await send_reply(counter, ticket, refused.reply(ticket.request_id), send)


async def send_reply(counter: RequestHandler, ticket: PendingRequest, reply: Reply, send: Send) -> None:
    """Send an answer that is whole."""
    await ResponseWriter(counter.warm(ticket), ticket, send).run(reply, None)


def refuse_too_large(ticket: PendingRequest, most_bytes: int) -> Refusal | None:
    """Refuse a body whose announced length is too large; None: nothing says so."""
    length = ticket.headers.get("content-length", "0")
    return TOO_LARGE if length.isdecimal() and int(length) > most_bytes else None


async def serve_body(
    counter: RequestHandler, ticket: PendingRequest, body: tuple[bytes, int | None], receive: Receive, send: Send
) -> None:
    """Hand in a call whose body was read, and send the answer."""
    call = AsgiCall(counter, ticket, send)
    watch = asyncio.get_running_loop().create_task(_watch(counter, ticket, receive, call))
    try:
        counter.submit(ticket, *body, call)
        await call.answer()
    finally:
        watch.cancel()


async def _watch(counter: RequestHandler, ticket: PendingRequest, receive: Receive, call: AsgiCall) -> None:
    """Notice that the client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass
    counter.abandon(ticket)
    call.gone()
