"""`pgpu dev`: one replica of a function, served in place, that starts anew when its code changes.

The replica is the same front and worker as anywhere; what stands here watches files, starts a new replica beside the old
one and moves callers over once it is ready. It refuses to deploy, to scale and to authenticate.
"""

from pgpu.functions.dev.description import FunctionDescription, describe_function
from pgpu.functions.dev.dev_replica import DevReplica, front_command, socket_directory
from pgpu.functions.dev.dev_session import DevSession
from pgpu.functions.dev.function_source import FunctionSource, find_function
from pgpu.functions.dev.relay import ConnectionRelay

__all__ = [
    "ConnectionRelay",
    "DevReplica",
    "DevSession",
    "FunctionDescription",
    "FunctionSource",
    "describe_function",
    "find_function",
    "front_command",
    "socket_directory",
]
