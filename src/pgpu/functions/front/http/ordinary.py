"""The ordinary way of a call: a task that reads its body, hands it in, and waits while the client is slow.

It refuses to judge a request: who calls it has looked at everything but the body.
"""

import asyncio

from pgpu.functions.calls.messages import Chunk, Reply
from pgpu.functions.front.http.answering import Answering, Send
from pgpu.functions.front.http.bodies import TOO_LARGE, ClientGoneError, Receive, read_body
from pgpu.functions.front.http.counter import Counter
from pgpu.functions.front.tickets import Ticket
from pgpu.functions.protocols import Refusal

_BODY_TIMEOUT = Refusal(408, "body_timeout", "the body did not come in time", {"connection": "close"})


class OrdinaryCall:
    """One request whose task waits for the answer."""

    def __init__(self, counter: Counter, ticket: Ticket, send: Send) -> None:
        self._counter, self._ticket, self._send = counter, ticket, send
        self._answering: Answering | None = None
        self._replied: asyncio.Future[tuple[Reply, int | None] | None] = asyncio.get_running_loop().create_future()

    def reply(self, reply: Reply, file: int | None) -> None:
        """Wake the task."""
        self._answering = Answering(self._counter.warm(self._ticket), self._ticket, self._send)
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


async def answer_call(counter: Counter, ticket: Ticket, most_bytes: int, receive: Receive, send: Send) -> None:
    """Read a call's body, hand it in, and send the answer.

    Args:
        counter: Where it is handed in.
        ticket: The request; its deadline ends the reading, too.
        most_bytes: The largest body.
        receive: ASGI's.
        send: Likewise.
    """
    if (refused := too_large(ticket, most_bytes)) is None:
        try:
            async with asyncio.timeout_at(ticket.deadline_seconds):
                read = await read_body(receive, most_bytes)
        except ClientGoneError:
            return
        except TimeoutError:
            read = _BODY_TIMEOUT
        if not isinstance(read, Refusal):
            await serve_read(counter, ticket, read, receive, send)
            return
        refused = read
    await send_reply(counter, ticket, refused.reply(ticket.request_id), send)


async def send_reply(counter: Counter, ticket: Ticket, reply: Reply, send: Send) -> None:
    """Send an answer that is whole."""
    await Answering(counter.warm(ticket), ticket, send).run(reply, None)


def too_large(ticket: Ticket, most_bytes: int) -> Refusal | None:
    """Refuse a body whose announced length is too large; None: nothing says so."""
    length = ticket.headers.get("content-length", "0")
    return TOO_LARGE if length.isdecimal() and int(length) > most_bytes else None


async def serve_read(
    counter: Counter, ticket: Ticket, body: tuple[bytes, int | None], receive: Receive, send: Send
) -> None:
    """Hand in a call whose body was read, and send the answer."""
    call = OrdinaryCall(counter, ticket, send)
    watch = asyncio.get_running_loop().create_task(_watch(counter, ticket, receive, call))
    try:
        counter.submit(ticket, *body, call)
        await call.answer()
    finally:
        watch.cancel()


async def _watch(counter: Counter, ticket: Ticket, receive: Receive, call: OrdinaryCall) -> None:
    """Notice that the client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass
    counter.abandon(ticket)
    call.gone()
