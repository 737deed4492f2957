"""The front's link to its zygote: asks it for workers, hears what it says.

It refuses to wait for it: everything comes back as a call on the event loop.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence

from pgpu.functions.calls.channel import Channel
from pgpu.functions.calls.frames import Frame, frame, message_of
from pgpu.functions.calls.messages import Ask, Kind, Tell
from pgpu.functions.front.spawning import Spawned
from pgpu.functions.worker.family import end_children


class ZygoteLink:
    """One zygote process."""

    def __init__(
        self, spawned: Spawned, on_told: Callable[[int, Tell, int | None], None], on_end: Callable[[], None]
    ) -> None:
        """Begin to talk to it.

        Args:
            spawned: Its process.
            on_told: Called with the number of the question, 0 for news, with what it says, and with the descriptor
                that came with it.
            on_end: Called once when it has ended, unless it was killed from here.
        """
        self._on_told, self._on_end = on_told, on_end
        self._process = spawned.process
        self._channel = Channel(spawned.end, self._on_frames, self._ended)
        self._loop = asyncio.get_running_loop()
        self._pidfd = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._pidfd, self._died)

    def ask_for_worker(self, number: int, end: socket.socket) -> None:
        """Have it fork one, which serves the other end of this socket's pair; this end is closed here."""
        self._channel.send(frame(Kind.ASK, number, Ask("spawn"), has_file=True), end.detach())

    def kill(self) -> None:
        """Kill it, and with it its workers."""
        self._channel.close()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._process.kill()
        self._process.wait()
        end_children()

    def _died(self) -> None:
        """Its socket may be held by what the function's module started when it was imported."""
        self._channel.drain_input()
        if self._channel.is_open:
            self._ended()

    def _on_frames(self, frames: Sequence[Frame]) -> None:
        for each in frames:
            self._on_told(each.number, message_of(each), self._channel.next_file() if each.has_file else None)

    def _ended(self) -> None:
        self.kill()
        self._on_end()
