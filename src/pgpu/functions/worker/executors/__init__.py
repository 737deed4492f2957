"""How calls are served: one at a time, in batches, in threads, as coroutines; and how their answers are sent.

A function's declaration chooses the lane, once. It refuses to construct the handler or to outlive its socket.
"""
