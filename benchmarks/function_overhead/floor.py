"""What one, two or three processes cost that pass a request on and do nothing with it.

`python -m benchmarks.function_overhead.floor PORT BEHIND`: a process on asyncio's own loop takes requests over TCP and gives
them to a row of BEHIND others, each on a socket pair as pgpu's are; the last one sends back what it gets. The CPU time of front, worker
and gateway above this figure is pgpu's own; this figure is the machine's cost of waking processes. Nothing is parsed: each
`POST` counts as one request.
"""

import asyncio
import os
import select
import socket
import sys
from collections import deque

_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1\r\n\r\n1"
_READ_BYTES = 1 << 16


def behind(processes: int) -> socket.socket:
    """Fork a row of processes, and return the end of the first one's socket."""
    ours, theirs = socket.socketpair()
    if os.fork():
        theirs.close()
        return ours
    ours.close()
    if processes > 1:
        relay(theirs, behind(processes - 1))
    else:
        echo(theirs)
    os._exit(0)


def echo(end: socket.socket) -> None:
    """Wait, read and send back, as a worker's lane does."""
    waiting = select.poll()
    waiting.register(end, select.POLLIN)
    while waiting.poll() and (data := end.recv(_READ_BYTES)):
        end.send(data)


def relay(near: socket.socket, far: socket.socket) -> None:
    """Pass on what comes from either side, as a front does for a gateway."""
    loop = asyncio.new_event_loop()

    def down() -> None:
        data = near.recv(_READ_BYTES)
        far.send(data) if data else loop.stop()

    loop.add_reader(near, down)
    loop.add_reader(far, lambda: near.send(far.recv(_READ_BYTES)))
    loop.run_forever()


class Front(asyncio.Protocol):
    """A connection; without a backend it answers itself."""

    def __init__(self, far: socket.socket | None, asked: "deque[Front]") -> None:
        self._far, self._asked = far, asked

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # of a server's kind
        """Keep it."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Pass it on."""
        if self._far is None:
            self.answer()
        else:
            self._asked.append(self)
            self._far.send(data)

    def answer(self) -> None:
        """Return True."""
        self._transport.write(_ANSWER)


async def serve(port: int, far: socket.socket | None) -> None:
    """Serve until it is killed."""
    loop, asked = asyncio.get_running_loop(), deque[Front]()

    def up(end: socket.socket) -> None:
        for _ in range(end.recv(_READ_BYTES).count(b"POST")):
            asked.popleft().answer()

    if far is not None:
        loop.add_reader(far, up, far)
    server = await loop.create_server(lambda: Front(far, asked), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    said_port, said_behind = map(int, sys.argv[1:])
    asyncio.run(serve(said_port, behind(said_behind) if said_behind else None))
