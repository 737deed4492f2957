"""One call from its admission at the gateway to its answer: a replica's ticket, and where it goes.

It refuses to choose: the hall does.
"""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgpu.functions.requests.pending_request import PendingRequest

if TYPE_CHECKING:
    from pgpu.functions.router.function_router import FunctionRouter
    from pgpu.functions.router.replica_connection import ReplicaConnection


@dataclass(slots=True, eq=False)
class RoutedRequest(PendingRequest):
    """A call that goes to one of several replicas."""

    hall: "FunctionRouter | None" = None
    version: int = 0
    """Whose replica serves it; 0 until that was decided."""

    is_exact: bool = False
    """Its caller named the version: no other one stands in."""

    link: "ReplicaConnection | None" = None
    """The replica that has it; None while it waits."""

    question: str = ""
    """What is asked instead of a call, such as `describe`; empty for a call."""

    pieces_ahead: int = 0
    """Of its streamed answer: came, and not yet taken by its caller."""

    def forget_body(self) -> None:
        """Let go of what was asked: nobody needs it again."""
        if self.file is not None:
            os.close(self.file)
        self.file = None
        self.body = b""
