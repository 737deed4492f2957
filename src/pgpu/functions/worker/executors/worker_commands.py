"""Questions of the front beside the calls, answered between two of them on the lane's own thread.

It refuses to answer while a handler runs: that a lane is busy is no reason to call it ill, and the front knows.
"""

from pgpu.functions.handler import Handler
from pgpu.functions.ipc.blocking_channel import BlockingChannel
from pgpu.functions.ipc.call_frames import encode_frame
from pgpu.functions.ipc.messages import FrameKind, Notification
from pgpu.functions.worker.call_codec import log_failure
from pgpu.functions.worker.executors.call_inbox import CallInbox
from pgpu.functions.worker.shutdown import ShutdownSignal


def run_commands(port: BlockingChannel, inbox: CallInbox, handler: Handler, leave: ShutdownSignal) -> None:
    """Answer what was asked."""
    while inbox.questions:
        number, ask = inbox.questions.popleft()
        if ask.what == "leave":
            leave.is_asked = True
        elif ask.what == "health":
            port.send(encode_frame(FrameKind.TELL, number, Notification("health", {"is_well": is_healthy(handler)})))


def is_healthy(handler: Handler) -> bool:
    """Ask the handler; one without an opinion is well while it can answer at all."""
    if handler.health is None:
        return True
    try:
        return bool(handler.health())
    except BaseException as error:  # noqa: BLE001 - whatever the user's code raises, it is not well
        log_failure("health() failed", error)
        return False
