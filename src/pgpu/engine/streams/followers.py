"""The clients that follow one job over its socket: each at its own place in the log, none able to stop the job.

A client that asked to lose nothing holds the job's output back while it lags far behind, but only as long as it reads
on now and then.
"""

import socket
import time
from typing import Protocol

from pgpu.engine.event_loop import READABLE, WRITABLE, EventLoop
from pgpu.engine.streams.frames import (
    Frame,
    FrameDecoder,
    Hello,
    Kind,
    decode_hello,
    encode_frame,
    encode_gap,
)
from pgpu.engine.streams.log import OutputLog
from pgpu.structs import Struct

MOST_LAG_BYTES = 4 << 20
"""How far a client may lag before it holds the job back; less than the log keeps in memory on a full disk."""

PATIENCE_SECONDS = 30.0
"""A client that read nothing for so long hangs: the job goes on without it."""

_CHUNK_BYTES = 1 << 16
_BUFFER_BYTES = 1 << 18


class JobSide(Protocol):
    """What a client may do to the job; each is called from the loop."""

    @property
    def takes_stdin(self) -> bool:
        """Whether more input can be taken now."""
        ...

    def give_stdin(self, data: bytes) -> None:
        """Pass input on."""
        ...

    def end_stdin(self) -> None:
        """End the input."""
        ...

    def followers_moved(self) -> None:
        """Hear that a client read on or went away."""
        ...


class _Follower(Struct):
    connection: socket.socket
    decoder: FrameDecoder
    outgoing: bytearray
    progressed_at_seconds: float
    hello: Hello | None = None
    cursor: int = 0
    was_told_end: bool = False


class Followers:
    """Everybody who follows one job."""

    def __init__(
        self,
        loop: EventLoop,
        listener: socket.socket,
        log: OutputLog,
        job: JobSide,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """Take callers from now on.

        Args:
            loop: Calls on whoever is ready.
            listener: Where clients call.
            log: What they read.
            job: What they may do to the job.
            patience_seconds: How long a client that reads nothing holds the job back.
        """
        self._loop = loop
        self._listener = listener
        self._log = log
        self._job = job
        self._followers: dict[int, _Follower] = {}
        self._has_ended = False
        self._patience_seconds = patience_seconds
        loop.watch(listener.fileno(), READABLE, lambda _: self._accept())

    @property
    def hold_back(self) -> bool:
        """Whether the job should write no more until a client has read on."""
        return any(self._holds(follower) for follower in self._followers.values())

    @property
    def is_drained(self) -> bool:
        """Whether every client that still reads was told the end."""
        return not any(follower.hello and self._is_patient(follower) for follower in self._followers.values())

    def output_grew(self) -> None:
        """Send what is new."""
        for descriptor in list(self._followers):
            self._pump(descriptor)

    def end(self) -> None:
        """Tell everybody, after the last byte, that the job is final."""
        self._has_ended = True
        self.output_grew()

    def stdin_has_room(self) -> None:
        """Read on from clients whose input could not be taken."""
        for descriptor in list(self._followers):
            self._rewatch(descriptor)

    def close(self) -> None:
        """Hang up on everybody."""
        for descriptor in list(self._followers):
            self._drop(descriptor)
        self._loop.forget(self._listener.fileno())
        self._listener.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # It hung up before it was answered.
        connection.settimeout(0)
        follower = _Follower(connection, FrameDecoder(), bytearray(), time.monotonic())
        self._followers[connection.fileno()] = follower
        self._rewatch(connection.fileno())

    def _holds(self, follower: _Follower) -> bool:
        if follower.hello is None or not follower.hello.holds_back:
            return False
        return self._log.end - follower.cursor > MOST_LAG_BYTES and self._is_patient(follower)

    def _is_patient(self, follower: _Follower) -> bool:
        return time.monotonic() - follower.progressed_at_seconds < self._patience_seconds

    def _ready(self, descriptor: int, events: int) -> None:
        if events & READABLE:
            self._receive(descriptor)
        if events & WRITABLE and descriptor in self._followers:
            self._pump(descriptor)
            self._job.followers_moved()

    def _receive(self, descriptor: int) -> None:
        follower = self._followers[descriptor]
        try:
            data = follower.connection.recv(_CHUNK_BYTES)
            for frame in follower.decoder.feed(data):
                self._obey(follower, frame)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            data = b""
        if not data:
            self._drop(descriptor)
        elif descriptor in self._followers:
            self._pump(descriptor)

    def _obey(self, follower: _Follower, frame: Frame) -> None:
        if frame.kind is Kind.HELLO:
            follower.hello = decode_hello(frame.payload)
            follower.cursor = follower.hello.offset
        elif frame.kind is Kind.STDIN:
            self._job.give_stdin(frame.payload)
        elif frame.kind is Kind.STDIN_END:
            self._job.end_stdin()
        else:
            raise ValueError("clients do not say this")

    def _pump(self, descriptor: int) -> None:
        """Fill the client's buffer from the log, and send as much as it takes."""
        follower = self._followers[descriptor]
        if follower.hello is None:
            return
        self._fill(follower)
        try:
            while follower.outgoing:
                sent = follower.connection.send(follower.outgoing[:_BUFFER_BYTES])
                del follower.outgoing[:sent]
                follower.progressed_at_seconds = time.monotonic()
                self._fill(follower)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(descriptor)
            return
        if follower.was_told_end and not follower.outgoing:
            self._drop(descriptor)
        else:
            self._rewatch(descriptor)

    def _fill(self, follower: _Follower) -> None:
        while len(follower.outgoing) < _BUFFER_BYTES and follower.cursor < self._log.end:
            oldest = self._log.oldest_from(follower.cursor)
            if oldest > follower.cursor:
                follower.outgoing += encode_gap(oldest)
                follower.cursor = oldest
            data = self._log.read(follower.cursor, _CHUNK_BYTES)
            follower.outgoing += encode_frame(Kind.OUTPUT, data)
            follower.cursor += len(data)
        if follower.cursor >= self._log.end and not follower.outgoing:
            follower.progressed_at_seconds = time.monotonic()
        if self._has_ended and follower.cursor >= self._log.end and not follower.was_told_end:
            follower.outgoing += encode_frame(Kind.END)
            follower.was_told_end = True

    def _rewatch(self, descriptor: int) -> None:
        follower = self._followers[descriptor]
        events = (READABLE if self._job.takes_stdin else 0) | (WRITABLE if follower.outgoing else 0)
        self._loop.watch(descriptor, events, lambda ready: self._ready(descriptor, ready))

    def _drop(self, descriptor: int) -> None:
        follower = self._followers.pop(descriptor)
        self._loop.forget(descriptor)
        follower.connection.close()
        if follower.hello is not None and follower.hello.owns_stdin:
            self._job.end_stdin()
        self._job.followers_moved()
