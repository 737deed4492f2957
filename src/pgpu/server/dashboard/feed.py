"""Sends pictures to all viewers: one reading and one encoding a second, however many watch.

The public part of a change is encoded and compressed once for all viewers, the rest once for each user: administrators, who see everything, share
one encoding. A new viewer gets everything once, and then changes. A viewer whose queue is full is disconnected: its `EventSource`
connects again and gets everything, so no page keeps an old row. Without viewers nothing is read.

A reading that fails is a problem in the picture's head, until one succeeds; an error in sending ends all streams. A viewer to which
nothing was sent for some seconds gets the age of the last reading: a page does not call old rows live, and takes a stream on which
nothing comes for dead.
"""

import asyncio
import logging
import time
import zlib
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from typing import Any

from starlette.concurrency import run_in_threadpool

from pgpu.errors import PgpuError
from pgpu.server.dashboard.picture import RESTS, Picture, Row
from pgpu.structs import encode_json, replace

PERIOD_SECONDS = 1.0

MOST_QUEUED = 16
"""Messages that wait for one viewer: as many seconds."""

MOST_STREAM_SECONDS = 600.0
"""A stream ends after this time and is opened again, so that a revoked token is noticed."""

MOST_PAUSE_SECONDS = 10.0
"""Longest pause between two readings, however long one takes."""

ALIVE_SECONDS = 5.0
"""Longest time in which nothing is sent; `page/stream.js` has the same."""

_LEVEL = 4
_GZIP_HEAD = bytes((31, 139, 8, 0, 0, 0, 0, 0, 0, 255))
"""Of a stream without name and time. Source: RFC 1952, 2.3."""
_EMPTY = Picture({}, {}, {})
_LOG = logging.getLogger(__name__)

_Tables = Mapping[str, tuple[Mapping[Any, Row], Mapping[Any, Row]]]
"""Rows by key before and now, by the table's name."""


class Feed:
    """The viewers of one application; used from one event loop."""

    def __init__(
        self,
        read: Callable[[], Picture],
        period_seconds: float = PERIOD_SECONDS,
        *,
        alive_seconds: float = ALIVE_SECONDS,
        most_pause_seconds: float = MOST_PAUSE_SECONDS,
        thread_seconds: Callable[[], float] = time.thread_time,
        encode: Callable[[object], bytes] = encode_json,
    ) -> None:
        """Begin without viewers.

        Args:
            read: Called in a thread, never twice at a time.
            period_seconds: Shortest time between two readings.
            alive_seconds: Longest time in which nothing is sent.
            most_pause_seconds: Longest time between two readings.
            thread_seconds: Processor time of the calling thread.
            encode: Makes JSON.
        """
        self._read = read
        self._period_seconds, self._most_pause_seconds = period_seconds, most_pause_seconds
        self._alive_seconds, self._thread_seconds, self._encode = alive_seconds, thread_seconds, encode
        self._viewers: set[_Viewer] = set()
        self._task: asyncio.Task[None] | None = None
        self._picture = _EMPTY
        self._read_at_seconds: float | None = None
        """Monotonic time of the last reading that succeeded; None before the first one."""

        self._everything: bytes | None = None
        """The public part of the picture, encoded for new viewers."""

        self._is_closed = False

    def close(self) -> None:
        """End all streams."""
        self._is_closed = True
        for viewer in self._viewers:
            viewer.end()

    async def stream(self, uid: int | None) -> AsyncGenerator[bytes]:
        """Yield the server-sent events for one viewer.

        Args:
            uid: The only user whose jobs are shown; None for all.
        """
        viewer = _Viewer(uid)
        self._viewers.add(viewer)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        until_seconds = time.monotonic() + MOST_STREAM_SECONDS
        try:
            yield _GZIP_HEAD + _pack(b"retry: 1000\n\n")
            if self._read_at_seconds is not None:
                self._welcome(viewer)
            elif self._picture.problem:
                viewer.put(self._public(_EMPTY, self._picture))
            while not self._is_closed and time.monotonic() < until_seconds:
                message = None
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._alive_seconds):
                        message = await viewer.queue.get() or b""
                if message == b"":
                    return
                yield self._age() if message is None else message
        finally:
            self._viewers.discard(viewer)

    async def _run(self) -> None:
        try:
            while self._viewers and not self._is_closed:
                busy_seconds = 0.0
                try:
                    picture, busy_seconds = await run_in_threadpool(self._read_timed)
                    self._read_at_seconds = time.monotonic()
                except Exception as exc:  # noqa: BLE001 - a full disk, a locked ledger, a bug: the page shows it, and the next reading may succeed
                    picture = replace(self._picture, problem=f"No news can be read: {_reason(exc)}")
                    if picture.problem != self._picture.problem:
                        _LOG.warning("pgpu: the dashboard cannot read", exc_info=exc)
                self._send(picture)
                await asyncio.sleep(max(self._period_seconds, min(self._most_pause_seconds, RESTS * busy_seconds)))
        except Exception:  # noqa: BLE001 - a bug: pages connect again, instead of showing old rows as live
            _LOG.exception("pgpu: the dashboard cannot send")
            for viewer in self._viewers:
                viewer.end()
        finally:
            # No await since the last check for viewers: a later one starts another task.
            self._task, self._picture, self._everything, self._read_at_seconds = None, _EMPTY, None, None

    def _read_timed(self) -> tuple[Picture, float]:
        """Return a picture, and the processor time that it took; elapsed time would depend on what else runs."""
        began_seconds = self._thread_seconds()
        picture = self._read()
        return picture, self._thread_seconds() - began_seconds

    def _age(self) -> bytes:
        age_seconds = None if self._read_at_seconds is None else int(time.monotonic() - self._read_at_seconds)
        return self._event("age", {"seconds": age_seconds})

    def _send(self, picture: Picture) -> None:
        before, self._picture = self._picture, picture
        public: bytes | None = None
        self._everything = None
        own: dict[int | None, bytes] = {}
        for viewer in list(self._viewers):
            if viewer.is_new and self._read_at_seconds is not None:
                self._welcome(viewer)
                continue
            if public is None:
                public = self._public(before, picture)
            if viewer.uid not in own:
                own[viewer.uid] = self._own(before, picture, viewer.uid)
            viewer.put(public + own[viewer.uid])

    def _welcome(self, viewer: "_Viewer") -> None:
        """Queue everything for a new viewer."""
        if self._everything is None:
            self._everything = self._public(None, self._picture)
        viewer.put(self._everything + self._own(_EMPTY, self._picture, viewer.uid))
        viewer.is_new = False

    def _public(self, before: Picture | None, now: Picture) -> bytes:
        """Encode what changed for all viewers; everything without a picture before. Empty if nothing did."""
        old = before or _EMPTY
        content = _changes({"gpus": (old.gpus, now.gpus), "jobs": (old.jobs, now.jobs)})
        if before is None or (before.simulated, before.problem) != (now.simulated, now.problem):
            content["head"] = {"simulated": now.simulated, "problem": now.problem}
        return self._event("all" if before is None else "", content)

    def _own(self, before: Picture, now: Picture, uid: int | None) -> bytes:
        """Encode what changed for one user alone; for all if the UID is None."""
        old, new = (
            {number: row for number, (owner, row) in picture.own.items() if uid in {None, owner}}
            for picture in (before, now)
        )
        return self._event("", _changes({"own": (old, new)}))

    def _event(self, name: str, content: Mapping[str, object]) -> bytes:
        """Encode one event of a name, the default one without; empty without both.

        JSON has no line break. Source: https://html.spec.whatwg.org/multipage/server-sent-events.html.
        """
        if not name and not content:
            return b""
        return _pack((f"event: {name}\n".encode() if name else b"") + b"data: " + self._encode(content) + b"\n\n")


class _Viewer:
    """One stream."""

    def __init__(self, uid: int | None) -> None:
        self.uid = uid
        self.is_new = True
        self.queue: asyncio.Queue[bytes | None] = asyncio.Queue(MOST_QUEUED)

    def put(self, message: bytes) -> None:
        """Queue a message; a viewer that does not read is ended."""
        if not message:
            return
        try:
            self.queue.put_nowait(message)
        except asyncio.QueueFull:
            self.end()

    def end(self) -> None:
        """End the stream at its next message."""
        while not self.queue.empty():
            self.queue.get_nowait()
        self.queue.put_nowait(None)


def _changes(tables: _Tables) -> dict[str, object]:
    """Return the rows that differ between two pictures, and the keys of those that are gone; empty without any."""
    content: dict[str, object] = {}
    for table, (before, now) in tables.items():
        if changed := [row for key, row in now.items() if before.get(key) != row]:
            content[table] = changed
        if gone := [key for key in before if key not in now]:
            content[f"gone_{table}"] = gone
    return content


def _pack(text: bytes) -> bytes:
    """Compress a part of a gzip stream so that it depends on no part before it: all viewers get the same bytes."""
    deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return deflate.compress(text) + deflate.flush(zlib.Z_FULL_FLUSH)


def _reason(error: Exception) -> str:
    # All viewers see it: the text of an error that is not pgpu's own may name files of the server.
    return str(error) if isinstance(error, PgpuError) else f"{type(error).__name__}; the server's log has more"
