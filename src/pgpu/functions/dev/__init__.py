"""`pgpu dev`: one replica of a function, served in place, that starts anew when its code changes.

The replica is the same front and worker as anywhere; what stands here watches files, starts a new replica beside the old
one and moves callers over once it is ready. It refuses to deploy, to scale and to authenticate.
"""

from pgpu.functions.dev.described import Described, describe
from pgpu.functions.dev.place import Place, place_of
from pgpu.functions.dev.relay import Relay
from pgpu.functions.dev.replica import Replica, front_command, socket_directory
from pgpu.functions.dev.session import Session

__all__ = [
    "Described",
    "Place",
    "Relay",
    "Replica",
    "Session",
    "describe",
    "front_command",
    "place_of",
    "socket_directory",
]
