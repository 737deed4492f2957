"""One call from its admission at the gateway to its answer: a replica's ticket, and where it goes.

It refuses to choose: the hall does.
"""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgpu.functions.front.tickets import Ticket

if TYPE_CHECKING:
    from pgpu.functions.gateway.calling.hall import Hall
    from pgpu.functions.gateway.calling.link import Link


@dataclass(slots=True, eq=False)
class Errand(Ticket):
    """A call that goes to one of several replicas."""

    hall: "Hall | None" = None
    version: int = 0
    """Whose replica serves it; 0 until that was decided."""

    is_exact: bool = False
    """Its caller named the version: no other one stands in."""

    link: "Link | None" = None
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
