"""The worker process, which owns CUDA and the handler, and the zygote that forks it.

All work on a caller's data happens here: decode, validate, call, encode. A handler that blocks its interpreter therefore does
not block the replica's HTTP process. The worker listens nowhere: calls arrive over a socket pair that it inherits, and it
exits when that is closed.
"""
