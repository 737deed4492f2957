"""A replica that says what no front says loses its connection; who asked it something gets an answer all the same."""

import asyncio
import os
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pgpu.functions.ipc.call_messages import Chunk, FrameKind, Notification, Reply, encode_frame
from pgpu.functions.requests.prometheus_metrics import GatewayMetrics
from pgpu.functions.router.function_router import FunctionRouter, RouterEvents
from pgpu.functions.router.replica_connection import ReacquireResult, ReplicaConnection, RoutedRequest
from pgpu.functions.scaling.replica_policy import Phase
from pgpu.functions.scaling.traffic_split import Window
from pgpu.model import Function, Share, Version, VersionState

NEWS = {"state": "hot", "reason": None, "load_seconds": 0.1, "import_seconds": 0.1, "born_seconds": 1.0}
HOT = encode_frame(FrameKind.NOTIFICATION, 0, Notification("state", NEWS))
PARKED = encode_frame(FrameKind.NOTIFICATION, 0, Notification("state", {**NEWS, "state": "parked"}))


class Notes:
    """Hears of a link, and waits for an answer."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.pieces: list[Chunk] = []
        self.lost: list[RoutedRequest] = []
        self.streamed = 0

    def on_phase(self, link: ReplicaConnection) -> None: ...

    def on_reply(self, _link: ReplicaConnection, _errand: RoutedRequest, reply: Reply, _file: int | None) -> None:
        self.replies.append(reply)

    def on_stream_end(self, _errand: RoutedRequest) -> None:
        self.streamed += 1

    def on_lost(self, _link: ReplicaConnection, errands: Sequence[RoutedRequest]) -> None:
        self.lost += errands

    def reply(self, reply: Reply, file: int | None) -> None: ...

    def chunk(self, chunk: Chunk, _file: int | None) -> None:
        self.pieces.append(chunk)


def heard(*said: bytes, question: str = "", has_file: bool = False) -> tuple[Notes, ReplicaConnection]:
    """Send one errand to a replica that says this, with a file beside it or without."""

    async def talk() -> tuple[Notes, ReplicaConnection]:
        notes = Notes()
        with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as listening:
            listening.bind(os.fspath(Path(directory) / "calls.sock"))
            listening.listen()
            listening.setblocking(False)
            link = ReplicaConnection("job", 1, notes)
            link.connect(Path(directory))
            loop = asyncio.get_running_loop()
            end, _ = await loop.sock_accept(listening)
            await loop.sock_sendall(end, HOT)
            await until(lambda: link.phase is Phase.HOT)
            link.send(RoutedRequest("id", "POST", "/", "", {}, b"", None, 0.0, 1e12, 60.0, notes, command=question))
            await loop.sock_recv(end, 1 << 16)
            files = [os.memfd_create("body")] if has_file else []
            socket.send_fds(end, [b"".join(said)], files)
            for each in files:
                os.close(each)
            end.shutdown(socket.SHUT_WR)
            await until(lambda: link.phase is Phase.DRAINING)
            end.close()
            return notes, link

    return asyncio.run(talk())


async def until(question: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not question():  # noqa: ASYNC110 - it is asked of sockets, which set no event
            await asyncio.sleep(0)


def reply(*words: Any, has_file: bool = False, **more: Any) -> bytes:
    return encode_frame(FrameKind.REPLY, 1, Reply(*words, **more), has_file=has_file)


HEAD = reply(200, {"content-type": "text/event-stream"}, is_last=False)

LIES = [
    reply(99, {}),
    reply(101, {"upgrade": "h2c"}),
    reply(204, {}, b"HTTP/1.1 200 OK"),
    reply(304, {}, is_last=False),
    reply(200, {"content-length": "0"}, b"GET / HTTP/1.1"),
    reply(200, {"Transfer-Encoding": "chunked"}),
    reply(200, {"x y": "z"}),
    reply(200, {"": "z"}),
    encode_frame(FrameKind.CHUNK, 1, Chunk(b"of no stream", is_last=True)),
    HEAD + reply(200, {}),
    HEAD + 65 * encode_frame(FrameKind.CHUNK, 1, Chunk(b"unasked")),
    encode_frame(FrameKind.NOTIFICATION, 0, Notification("state", {})),
    encode_frame(FrameKind.NOTIFICATION, 0, Notification("state", {**NEWS, "load_seconds": float("nan")})),
    encode_frame(FrameKind.NOTIFICATION, 0, Notification("state", {**NEWS, "state": 7})),
    b"\xff" * 64,
]


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_ends_the_connection_and_leaves_nobody_without_an_answer(lie: bytes) -> None:
    late = reply(200, {"content-type": "text/plain"}, b"late")
    notes, link = heard(lie, late)
    assert not any(bytes(each.body) == b"late" for each in notes.replies)
    assert len(notes.lost) == 1
    assert not link.sent


@pytest.mark.parametrize("pages", [7, "text", {"/openapi.json": 7.5}, {"/": b"\xff"}, [1]])
def test_a_description_that_is_none_ends_the_connection(pages: object) -> None:
    notes, _ = heard(
        encode_frame(FrameKind.NOTIFICATION, 1, Notification("description", {"pages": pages})), question="describe"
    )
    assert len(notes.lost) == 1
    assert not notes.replies


def test_a_front_is_heard() -> None:
    stream = [
        encode_frame(FrameKind.CHUNK, 1, Chunk(b"a")),
        encode_frame(FrameKind.CHUNK, 1, Chunk(b"b", is_last=True)),
    ]
    notes, _ = heard(HEAD, *stream)
    assert ([bytes(each.body) for each in notes.pieces], notes.streamed, notes.lost) == ([b"a", b"b"], 1, [])
    notes, _ = heard(reply(200, {"content-type": "text/plain"}, b"whole"))
    assert [bytes(each.body) for each in notes.replies] == [b"whole"]
    notes, _ = heard(
        encode_frame(FrameKind.NOTIFICATION, 1, Notification("description", {"pages": {"/v2": b"{}"}})),
        question="describe",
    )
    assert [each.headers for each in notes.replies] == [{"/v2": "{}"}]


@pytest.mark.parametrize(
    "said",
    [
        (reply(99, {}, has_file=True),),
        (encode_frame(FrameKind.CHUNK, 1, Chunk(b""), has_file=True),),
        (HEAD, reply(200, {}, has_file=True)),
    ],
)
def test_a_lie_leaves_no_descriptor(said: tuple[bytes, ...]) -> None:
    before = len([*Path("/proc/self/fd").iterdir()])
    notes, _ = heard(*said, has_file=True)
    assert len(notes.lost) == 1
    assert len([*Path("/proc/self/fd").iterdir()]) == before


def test_who_could_not_be_woken_is_not_woken_again_at_once() -> None:
    async def waking() -> None:
        link = ReplicaConnection("job", 1, Notes())
        link.become(Phase.PARKED)
        link.wake()
        link.end_wake(is_sure=False)
        assert link.phase is Phase.PARKED
        assert link.view().retry_at_seconds > link.since_seconds

    asyncio.run(waking())


@pytest.mark.parametrize("is_parked", [True, False])
def test_who_is_back_before_the_engine_has_answered_serves(is_parked: bool) -> None:
    async def waking() -> None:
        version = Version("it", 1, 7, "a:F", "0", "{}", "process", None, None, VersionState.READY, None, 1.0)
        hall = FunctionRouter(Function("it", 7, 1.0, (version,), (Share(1, 100),)), GatewayMetrics(), RouterEvents())
        with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as listening:
            listening.bind(os.fspath(Path(directory) / "calls.sock"))
            listening.listen()
            listening.setblocking(False)
            link = ReplicaConnection("job", 1, hall)
            hall.add(link)
            link.connect(Path(directory))
            loop = asyncio.get_running_loop()
            end, _ = await loop.sock_accept(listening)
            await loop.sock_sendall(end, PARKED if is_parked else HOT)
            await until(lambda: link.phase is (Phase.PARKED if is_parked else Phase.HOT))
            link.wake() if is_parked else link.begin_reacquire()
            await loop.sock_sendall(end, PARKED + HOT)
            await until(lambda: link.is_back)
            hall.on_reacquired(link, ReacquireResult.COMING)
            assert link.phase is Phase.HOT
            hall.close()
            end.close()

    asyncio.run(waking())


def two_versions(*percents: int) -> FunctionRouter:
    versions = [
        Version("it", number, 7, "a:F", "0", "{}", "process", None, None, VersionState.READY, None, 1.0)
        for number in (1, 2)
    ]
    shares = tuple(Share(number, percent) for number, percent in zip((1, 2), percents, strict=True))
    return FunctionRouter(Function("it", 7, 1.0, tuple(versions), shares), GatewayMetrics(), RouterEvents())


def test_versions_that_do_not_fit_side_by_side_serve_by_turns_until_they_fit() -> None:
    async def turns() -> None:
        hall = two_versions(90, 10)

        def chosen() -> set[int]:
            hall.choose_window()
            asked = [RoutedRequest("id", "POST", "/", "", {}, b"", None, 0.0, 1e12, 60.0, None) for _ in range(50)]
            return {load.number for each in asked if (load := hall.load_of(each)) is not None}

        old, new = (ReplicaConnection(f"job{number}", number, hall) for number in (1, 2))
        hall.add(old)
        hall.add(new)
        old.become(Phase.HOT)
        assert chosen() == {1, 2}
        new.since_seconds -= 2
        assert chosen() == {2}, "the newcomer's window is first"
        assert hall.serves(1)
        hall.remove(old)
        new.become(Phase.HOT)
        assert chosen() == {2}, "one of them alone shows nothing"
        hall._window = Window(2, time.monotonic() - 1000)
        assert chosen() == {2}, "without calls nothing is replaced, and the function scales to zero"
        hall.loads[1].note_call(time.monotonic())
        new.phase = Phase.STARTING
        assert chosen() == {2}, "a start takes as long as it takes"
        new.phase = Phase.HOT
        assert chosen() == {1}
        hall.add(old)
        hall.loads[1].hot.append(old)
        assert chosen() == {1, 2}
        hall.close()

    asyncio.run(turns())


def test_what_waits_behind_a_call_that_runs_long_is_taken_back_and_costs_no_attempt() -> None:
    async def taking() -> None:
        hall = FunctionRouter(two_versions(100, 0).function, GatewayMetrics(), RouterEvents())
        notes = Notes()
        with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as listening:
            listening.bind(os.fspath(Path(directory) / "calls.sock"))
            listening.listen()
            listening.setblocking(False)
            link = ReplicaConnection("job", 1, hall)
            hall.add(link)
            link.connect(Path(directory))
            loop = asyncio.get_running_loop()
            end, _ = await loop.sock_accept(listening)
            await loop.sock_sendall(end, HOT)
            await until(lambda: link.phase is Phase.HOT)
            hall.loads[1].note_duration(0.001)
            first, second = (
                RoutedRequest(name, "POST", "/", "", {}, b"", None, 0.0, 1e12, 60.0, notes, version=1)
                for name in ("a", "b")
            )
            hall.submit(first)
            hall.submit(second)
            assert [*link.sent.values()] == [first, second], "short calls are sent ahead"
            first.begun_seconds -= 1
            hall.on_waits()
            await loop.sock_sendall(end, encode_frame(FrameKind.REPLY, second.number, Reply(503, {})))
            await until(lambda: not second.number)
            assert [*link.sent.values()] == [first]
            assert [*hall.loads[1].queue] == [second]
            assert (second.attempts, notes.replies) == (0, [])
            hall.close()
            end.close()

    asyncio.run(taking())
