"""A job's standard streams: pipes or a terminal, the log that stores the output, and the socket for clients.

The native monitor carries the bytes; this package starts it, reads its log and encodes its frames. It is independent of
queues, leases and GPUs.
"""
