"""uvicorn's server without a tick: it sleeps while no request comes.

uvicorn wakes ten times a second, to notice `should_exit` and to renew the date of answers. Here `leave` wakes the server, and the
date is computed when an answer needs it. Used by the server, and by gateways and replicas of functions.
"""

import asyncio
import time
from email.utils import formatdate

import uvicorn
from uvicorn.server import ServerState


class QuietServer(uvicorn.Server):
    """A server that is ended by `leave`."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.server_state = _DatedState()
        self._leaving = asyncio.Event()

    def leave(self) -> None:
        """Take no more connections, and end after the requests in flight."""
        self.should_exit = True
        self._leaving.set()

    async def main_loop(self) -> None:
        await self._leaving.wait()


class _DatedState(ServerState):
    """What a server's connections share; they read `default_headers` for each answer."""

    _second = -1
    _headers: list[tuple[bytes, bytes]]

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        second = int(time.time())
        if second != self._second:
            self._second, self._headers = second, [(b"date", formatdate(second, usegmt=True).encode())]
        return self._headers

    @default_headers.setter
    def default_headers(self, _value: list[tuple[bytes, bytes]]) -> None:
        """Ignore what uvicorn sets at its start: no header but the date is the same in all answers."""
