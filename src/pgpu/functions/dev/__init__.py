"""`pgpu function dev`: one replica of a function on this machine, which restarts when its code changes.

The replica is the same program as on a server. This room watches files, starts a new replica beside the old one and moves
callers to it once it is ready. It has no scaling and no authentication.
"""

from pgpu.functions.dev.connection_relay import ConnectionRelay
from pgpu.functions.dev.dev_session import DevReplica, DevSession, front_command, socket_directory
from pgpu.functions.dev.function_source import FunctionDescription, FunctionSource, describe_function, find_function

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
