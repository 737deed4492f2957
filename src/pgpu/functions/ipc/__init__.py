"""What gateway, front and worker of a function say to each other, and the sockets on which they say it.

One codec serves both hops: gateway to front over a Unix socket, front to worker over a socket pair. Bodies above
1 MiB travel as memory files beside their frame, so nobody's event loop copies them. It refuses to know HTTP's meaning,
the handler, or who is on the other side: a malformed frame ends its connection and nothing else.
"""

from pgpu.functions.ipc.messages import Call, Chunk, Command, FrameKind, Notification, Reply

__all__ = ["Call", "Chunk", "Command", "FrameKind", "Notification", "Reply"]
