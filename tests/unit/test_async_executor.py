"""Calls of an asynchronous handler that their callers leave."""

import asyncio
import socket

from pgpu.functions.api import Declaration
from pgpu.functions.handler import handler_of, signature_of
from pgpu.functions.ipc.blocking_channel import BlockingChannel
from pgpu.functions.ipc.call_messages import Call, Decoder, FrameKind, decode_message, encode_frame
from pgpu.functions.protocols import Interpreter
from pgpu.functions.worker.async_executor import AsyncExecutor
from pgpu.functions.worker.call_codec import CallCodec
from pgpu.functions.worker.call_inbox import ShutdownSignal


class Mark:
    def begin(self, _number: int) -> bool:
        return True


async def handler(x: int) -> int:
    return x


def test_a_call_that_is_cancelled_before_its_task_begins_is_answered() -> None:
    async def cancelling() -> list[tuple[int, int]]:
        ours, theirs = socket.socketpair()
        signature = signature_of(handler)
        codec = CallCodec(handler_of(handler, signature), Interpreter(signature, "it"))
        executor = AsyncExecutor(BlockingChannel(theirs), Mark(), codec, ShutdownSignal(), Declaration())  # type: ignore[arg-type]
        call = Call("id", "POST", "/", "", {"content-type": "application/json"}, 60.0, b"1")
        for frame in (encode_frame(FrameKind.CALL, 1, call), encode_frame(FrameKind.CANCEL, 1)):
            ours.sendall(frame)
            executor._read()
        await asyncio.gather(*executor._running, return_exceptions=True)
        executor._flush()
        with ours, theirs:
            ours.setblocking(False)
            return [(each.number, decode_message(each).status) for each in Decoder().feed(ours.recv(1 << 16))]

    assert asyncio.run(cancelling()) == [(1, 499)]
