"""Messages between a function's gateway, replica and worker processes, and the channels that carry them.

One codec serves both hops: gateway to replica over a Unix socket, replica to worker over a socket pair. Bodies above
1 MiB travel as sealed memory files next to their frame and are never copied by an event loop. A malformed frame ends its connection.
"""
