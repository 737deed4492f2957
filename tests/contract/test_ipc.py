"""The language between gateway, front and worker: what is written is what is read, over every kind of end."""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgpu.functions.ipc.async_channel import AsyncChannel, CoalescingLoop
from pgpu.functions.ipc.blocking_channel import BlockingChannel, GoneError
from pgpu.functions.ipc.call_messages import (
    Call,
    CallFrame,
    Chunk,
    Decoder,
    FrameKind,
    MalformedFrameError,
    Notification,
    Reply,
    decode_message,
    encode_frame,
)
from pgpu.functions.ipc.memory_files import GrowingFile, StartedMark, map_body, write_body

texts = st.text(max_size=20)
calls = st.builds(
    Call, texts, texts, texts, texts, st.dictionaries(texts, texts), st.floats(0, 1e6), st.binary(max_size=300)
)
replies = st.builds(Reply, st.integers(100, 599), st.dictionaries(texts, texts), st.binary(max_size=300), st.booleans())
chunks = st.builds(Chunk, st.binary(max_size=300), st.booleans(), st.booleans())
messages = st.one_of(
    st.tuples(st.just(FrameKind.CALL), calls),
    st.tuples(st.just(FrameKind.REPLY), replies),
    st.tuples(st.just(FrameKind.CHUNK), chunks),
    st.tuples(
        st.just(FrameKind.NOTIFICATION),
        st.builds(Notification, texts, st.dictionaries(texts, st.integers(-(2**63), 2**63))),
    ),
    st.tuples(st.sampled_from([FrameKind.CANCEL, FrameKind.CREDIT]), st.none()),
)


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), messages), max_size=6), st.lists(st.integers(1, 200), max_size=50))
def test_frames_are_read_as_they_were_written_however_they_were_cut(
    written: Sequence[tuple[int, tuple[FrameKind, Any]]], cuts: Sequence[int]
) -> None:
    data = b"".join(encode_frame(kind, number, message) for number, (kind, message) in written)
    decoder, read, offset = Decoder(), list[tuple[int, int, Any]](), 0
    for cut in [*cuts, len(data)]:
        read += [(each.number, each.kind, decode_message(each)) for each in decoder.feed(data[offset : offset + cut])]
        offset += cut
    assert read == [(number, kind, message) for number, (kind, message) in written]


@given(st.binary(max_size=400))
def test_any_bytes_are_frames_or_malformed(data: bytes) -> None:
    try:
        for each in Decoder().feed(data):
            decode_message(each)
    except MalformedFrameError:
        pass


def test_a_message_that_nobody_would_write_is_not_waited_for() -> None:
    with pytest.raises(MalformedFrameError):
        (Decoder().feed(b"\xff\xff\xff\xff\x01\x00" + b"\x00" * 8))


def test_a_message_of_a_later_version_has_more_at_its_end() -> None:
    later = encode_frame(FrameKind.CHUNK, 1, (b"body", True, False, "what came later"))
    assert decode_message(Decoder().feed(later)[0]) == Chunk(b"body", is_last=True)


class End(Protocol):
    """One end of a connection, driven from a test."""

    def send(self, written: bytes, file: int | None = None) -> None: ...
    def take(self, count: int) -> list[tuple[CallFrame, bytes | None]]: ...
    def is_ended(self) -> bool: ...
    def close(self) -> None: ...


class BlockingEnd:
    def __init__(self, end: socket.socket) -> None:
        self._port = BlockingChannel(end)
        self.send = self._port.send
        self.close = self._port.close

    def take(self, count: int) -> list[tuple[CallFrame, bytes | None]]:
        taken: list[tuple[CallFrame, bytes | None]] = []
        while len(taken) < count:
            taken += [(each, self._file_of(each)) for each in self._port.receive(is_waiting=True)]
        return taken

    def _file_of(self, each: CallFrame) -> bytes | None:
        return bytes(map_body(self._port.next_file())) if each.has_file else None

    def is_ended(self) -> bool:
        while not self._port.is_ended:
            self._port.receive(is_waiting=True)
        return True


class LoopEnd:
    """A channel on a loop in a thread of its own."""

    def __init__(self, end: socket.socket) -> None:
        self._loop = CoalescingLoop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._news = threading.Condition()
        self._taken: list[tuple[CallFrame, bytes | None]] = []
        self._ended = False
        self._channel = self._on_loop(lambda: AsyncChannel(end, self._on_frames, self._on_end))

    def _on_loop(self, act: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return act()

        running: Coroutine[Any, Any, Any] = run()
        return asyncio.run_coroutine_threadsafe(running, self._loop).result()

    def _on_frames(self, frames: Sequence[CallFrame]) -> None:
        with self._news:
            for each in frames:
                self._taken.append((each, bytes(map_body(self._channel.next_file())) if each.has_file else None))
            self._news.notify_all()

    def _on_end(self) -> None:
        with self._news:
            self._ended = True
            self._news.notify_all()

    def send(self, written: bytes, file: int | None = None) -> None:
        self._on_loop(lambda: self._channel.send(written, file))

    def take(self, count: int) -> list[tuple[CallFrame, bytes | None]]:
        with self._news:
            self._news.wait_for(lambda: len(self._taken) >= count)
            taken, self._taken = self._taken[:count], self._taken[count:]
        return taken

    def is_ended(self) -> bool:
        with self._news:
            return self._news.wait_for(lambda: self._ended)

    def close(self) -> None:
        if self._thread.is_alive():
            self._on_loop(self._channel.close)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


@pytest.fixture(
    params=[(BlockingEnd, LoopEnd), (LoopEnd, BlockingEnd), (LoopEnd, LoopEnd)],
    ids=lambda ends: ends[0].__name__ + ends[1].__name__,
)
def ends(request: pytest.FixtureRequest) -> Any:
    made = [kind(end) for kind, end in zip(request.param, socket.socketpair(), strict=True)]
    yield made
    for each in made:
        each.close()


def test_frames_and_files_arrive_together_and_in_order(ends: tuple[End, End]) -> None:
    near, far = ends
    for number in range(40):
        body = os.urandom(number * 1000)
        if number % 3:
            near.send(encode_frame(FrameKind.CHUNK, number, (body,)))
        else:
            near.send(encode_frame(FrameKind.CHUNK, number, (b"",), has_file=True), write_body(body + b"!"))
    taken = far.take(40)
    assert [each.number for each, _ in taken] == list(range(40))
    for each, file in taken:
        size = each.number * 1000
        assert len(decode_message(each).body if each.number % 3 else file[:-1]) == size  # type: ignore[index]


def test_more_than_a_socket_holds_is_kept_until_it_is_read(ends: tuple[End, End]) -> None:
    near, far = ends
    written = encode_frame(FrameKind.CHUNK, 7, (bytes(1_000_000),))

    def send() -> None:
        for _ in range(8):
            near.send(written)

    sender = threading.Thread(target=send)
    sender.start()
    taken = far.take(8)
    sender.join()
    assert {len(decode_message(each).body) for each, _ in taken} == {1_000_000}


def test_the_end_of_one_side_is_seen_by_the_other_after_what_it_said(ends: tuple[End, End]) -> None:
    near, far = ends
    near.send(encode_frame(FrameKind.CANCEL, 1))
    near.close()
    assert far.take(1)[0][0].number == 1
    assert far.is_ended()


def test_nonsense_ends_a_channel_and_a_file_that_nobody_sent_too() -> None:
    for nonsense in (b"\xff" * 64, encode_frame(FrameKind.CHUNK, 1, (b"",), has_file=True)):
        ours, theirs = socket.socketpair()
        end = LoopEnd(ours)
        theirs.sendall(nonsense)
        assert end.is_ended()
        assert theirs.recv(1) == b""
        end.close()
        theirs.close()


def test_who_sends_to_somebody_who_left_is_told() -> None:
    ours, theirs = socket.socketpair()
    port = BlockingChannel(ours)
    theirs.close()
    with pytest.raises(GoneError):
        port.send(encode_frame(FrameKind.CANCEL, 1))
    port.close()


def test_a_body_in_a_file_is_what_was_put_there_and_nobody_changes_it_later() -> None:
    growing = GrowingFile()
    for piece in (b"one ", memoryview(b"two "), bytearray(b"three")):
        growing.add(piece)
    fd = growing.seal()
    with pytest.raises(PermissionError):
        os.write(fd, b"more")
    assert bytes(map_body(fd)) == b"one two three"
    assert bytes(map_body(write_body(b""))) == b""


def test_a_reader_may_write_into_its_view_and_nobody_else_sees_it() -> None:
    fd = write_body(b"body")
    view = map_body(os.dup(fd))
    view[0] = ord("B")
    assert (bytes(view), bytes(map_body(fd))) == (b"Body", b"body")


def test_a_file_that_could_be_cut_short_under_its_reader_is_refused() -> None:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.write(fd, b"body")
    with pytest.raises(OSError, match="not sealed"):
        map_body(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.close(fd)


def test_a_mark_is_seen_by_who_maps_the_same_file() -> None:
    fd = StartedMark.create()
    mine, theirs = StartedMark(fd), StartedMark(fd)
    os.close(fd)
    assert theirs.last_begun == 0
    mine.begin(2**40)
    assert theirs.last_begun == 2**40


def test_a_call_is_begun_by_its_worker_or_taken_back_and_never_both() -> None:
    fd = StartedMark.create()
    mine = StartedMark(fd)
    assert mine.take(2)
    ours, theirs = os.pipe(), os.pipe()
    if (pid := os.fork()) == 0:
        worker = StartedMark(fd)
        begun = [number for number in (1, 2, 3) if worker.begin(number)]
        os.write(ours[1], bytes(begun))
        os.read(theirs[0], 1)
        os._exit(0)
    try:
        assert os.read(ours[0], 16) == bytes([1, 3])
        assert mine.last_begun == 3
        assert [number for number in (1, 3, 4) if mine.take(number)] == [4]
    finally:
        os.write(theirs[1], b"x")
        os.waitpid(pid, 0)
        for each in (*ours, *theirs, fd):
            os.close(each)
        mine.close()


def test_a_call_that_a_dead_worker_began_is_not_taken_back() -> None:
    fd = StartedMark.create()
    replica = StartedMark(fd)
    run_and_die(lambda: StartedMark(fd).begin(1))
    os.close(fd)
    assert [number for number in (1, 2) if replica.take(number)] == [2]
    replica.close()


def test_a_call_that_a_dead_replica_took_back_is_not_begun() -> None:
    fd = StartedMark.create()
    worker = StartedMark(fd)
    run_and_die(lambda: StartedMark(fd).take(2))
    os.close(fd)
    assert [number for number in (1, 2, 3) if worker.begin(number)] == [1, 3]
    worker.close()


def run_and_die(act: Callable[[], object]) -> None:
    """Run in another process, which is killed then."""
    if (pid := os.fork()) == 0:
        act()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
