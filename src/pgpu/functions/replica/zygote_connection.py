"""The front's link to its zygote: asks it for workers, hears what it says.

It refuses to wait for it: everything comes back as a call on the event loop.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence

from pgpu.functions.ipc.async_channel import AsyncChannel
from pgpu.functions.ipc.call_frames import Frame, decode_message, encode_frame
from pgpu.functions.ipc.messages import Command, FrameKind, Notification
from pgpu.functions.replica.zygote_process import ZygoteProcess
from pgpu.functions.worker.child_processes import end_children


class ZygoteConnection:
    """One zygote process."""

    def __init__(
        self,
        spawned: ZygoteProcess,
        on_told: Callable[[int, Notification, int | None], None],
        on_end: Callable[[], None],
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
        self._channel = AsyncChannel(spawned.end, self._on_frames, self._ended)
        self._loop = asyncio.get_running_loop()
        self._pidfd = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._pidfd, self._died)

    def ask_for_worker(self, number: int, end: socket.socket) -> None:
        """Have it fork one, which serves the other end of this socket's pair; this end is closed here."""
        self._channel.send(encode_frame(FrameKind.COMMAND, number, Command("spawn"), has_file=True), end.detach())

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
            self._on_told(each.number, decode_message(each), self._channel.next_file() if each.has_file else None)

    def _ended(self) -> None:
        self.kill()
        self._on_end()
