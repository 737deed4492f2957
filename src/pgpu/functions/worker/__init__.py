"""The process that owns CUDA and the handler, and the zygote that forks it.

All work on the caller's data is done here: decoding, validating, calling, encoding; so the front answers whatever the
handler does to its interpreter. It refuses to listen anywhere: calls come over the socket that it was born with, and
when that ends, so does the worker.
"""
