"""A job's standard streams: their pipes or terminal, the log that keeps them, and the socket where clients follow.

Nothing here knows queues, leases or GPUs.
"""
