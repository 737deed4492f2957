"""Questions of the front beside the calls, answered between two of them on the lane's own thread.

It refuses to answer while a handler runs: that a lane is busy is no reason to call it ill, and the front knows.
"""

from pgpu.functions.calls.blocking import Port
from pgpu.functions.calls.frames import frame
from pgpu.functions.calls.messages import Kind, Tell
from pgpu.functions.handler import Handler
from pgpu.functions.worker.answering import log_failure
from pgpu.functions.worker.lanes.inbox import Inbox
from pgpu.functions.worker.leaving import Leave


def answer_questions(port: Port, inbox: Inbox, handler: Handler, leave: Leave) -> None:
    """Answer what was asked."""
    while inbox.questions:
        number, ask = inbox.questions.popleft()
        if ask.what == "leave":
            leave.is_asked = True
        elif ask.what == "health":
            port.send(frame(Kind.TELL, number, Tell("health", {"is_well": is_well(handler)})))


def is_well(handler: Handler) -> bool:
    """Ask the handler; one without an opinion is well while it can answer at all."""
    if handler.health is None:
        return True
    try:
        return bool(handler.health())
    except BaseException as error:  # noqa: BLE001 - whatever the user's code raises, it is not well
        log_failure("health() failed", error)
        return False
