"""A gateway that says to a front what no gateway says loses its connection, and nothing of it stays behind."""

import asyncio
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pgpu.functions.api import Declaration
from pgpu.functions.ipc.call_messages import Call, FrameKind, encode_frame
from pgpu.functions.ipc.memory_files import write_body
from pgpu.functions.replica.call_server import CallServer
from pgpu.functions.replica.worker_queue import WorkerQueue
from pgpu.functions.replica.worker_supervisor import ServingState
from pgpu.functions.requests.request_queue import ReplicaMetrics

KEEPER: Any = SimpleNamespace(pages={}, state=ServingState.STARTING, reason=None, restarts=0, import_seconds=0.0)
CALL = Call("id", "POST", "/", "", {}, 60.0)
WITH_FILE = encode_frame(FrameKind.CALL, 1, CALL, has_file=True)


def descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


async def until(question: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not question():  # noqa: ASYNC110 - it is asked of sockets, which set no event
            await asyncio.sleep(0)


def left_behind(*said: bytes) -> tuple[int, int]:
    """Send frames with a file each to a front without a worker; return the descriptors and the requests that are left."""

    async def talk() -> tuple[int, int]:
        desk = WorkerQueue(Declaration(), ReplicaMetrics())
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "calls.sock"
            visits = CallServer(desk, KEEPER, path)
            before = descriptors()
            with socket.socket(socket.AF_UNIX) as end:
                end.connect(os.fspath(path))
                for each in said:
                    file = write_body(b"body")
                    socket.send_fds(end, [each], [file])
                    os.close(file)
                end.setblocking(False)
                while await asyncio.get_running_loop().sock_recv(end, 1 << 16):
                    pass
            await until(lambda: not desk.size)
            left = descriptors() - before
            visits.close()
            return left, desk.size

    return asyncio.run(talk())


@pytest.mark.parametrize(
    "lie",
    [
        WITH_FILE,
        encode_frame(FrameKind.CALL, 2, (1, 2), has_file=True),
        encode_frame(FrameKind.COMMAND, 2, (7,), has_file=True),
        b"\xff" * 64,
    ],
    ids=["a number in use", "no call", "no question", "no frame"],
)
def test_a_lie_ends_the_connection_and_leaves_no_descriptor(lie: bytes) -> None:
    assert left_behind(WITH_FILE, lie) == (0, 0)
