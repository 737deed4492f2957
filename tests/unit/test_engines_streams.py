"""The clients of a container whose streams are its engine's: the log's one line, and the end."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pgpu.engine.event_loop import EventLoop
from pgpu.engine.settings import JobPaths
from pgpu.engine.streams.engines_streams import EnginesStreams
from pgpu.engine.streams.frames import Frame, FrameDecoder, Hello, Kind, encode_hello
from pgpu.engine.streams.log import stored
from pgpu.engine.streams.records import RecordDecoder
from pgpu.engine.unix_sockets import connect

NOTICE = b"pgpu: see docker logs\n"


@contextmanager
def _streams(directory: Path) -> Iterator[tuple[EnginesStreams, EventLoop, JobPaths]]:
    places, loop = JobPaths(directory / "jobs" / "0123456789ab", directory / "live"), EventLoop()
    places.make()
    streams = EnginesStreams(loop, places)
    try:
        yield streams, loop, places
    finally:
        streams.close()
        loop.close()


def _start(streams: EnginesStreams) -> None:
    os.write(streams.open().stderr, NOTICE)
    streams.started()


def _greet(places: JobPaths, offset: int = 0) -> socket.socket:
    client = connect(places.attach_socket)
    client.sendall(encode_hello(Hello(offset, holds_back=False, owns_stdin=False)))
    return client


def _turn(loop: EventLoop) -> None:
    for _ in range(3):  # accept, read, and what follows
        loop.turn()


def _frames(client: socket.socket) -> list[Frame]:
    return list(FrameDecoder().feed(client.recv(4096)))


def test_a_client_gets_where_the_output_is_and_the_end(tmp_path: Path) -> None:
    with _streams(tmp_path) as (streams, loop, places), _greet(places) as early:
        _start(streams)
        _turn(loop)
        (output,) = _frames(early)
        (record,) = RecordDecoder().feed(output.payload)
        assert (output.kind, record.stream, record.payload) == (Kind.OUTPUT, "stderr", NOTICE)
        early.sendall(b"\x02\0\0\0\1x")  # its input is nothing to this job
        streams.finish()
        _turn(loop)
        assert _frames(early) == [Frame(Kind.END)]
        with _greet(places, offset=len(output.payload)) as late:
            _turn(loop)
            assert _frames(late) == [Frame(Kind.END)]


def test_the_next_agent_keeps_the_log_and_serves_it(tmp_path: Path) -> None:
    with _streams(tmp_path) as (streams, _, places):
        _start(streams)
        before = list(stored(places.log))
    with _streams(tmp_path) as (streams, loop, places), _greet(places) as client:
        streams.reopen()
        streams.started()
        _turn(loop)
        assert [frame.payload for frame in _frames(client)] == [data for _, data in before]
        assert list(stored(places.log)) == before


def test_a_client_that_says_nonsense_or_goes_harms_nobody(tmp_path: Path) -> None:
    with _streams(tmp_path) as (streams, loop, places):
        _start(streams)
        for said in (b"\xff" * 64, b"\x01\0\0\0\2{}", b"", encode_hello(Hello(0, holds_back=True, owns_stdin=True))):
            client = connect(places.attach_socket)
            client.sendall(said)
            client.close()
            _turn(loop)
        with _greet(places) as client:
            _turn(loop)
            assert [frame.kind for frame in _frames(client)] == [Kind.OUTPUT]
