"""A replica's HTTP process: request queue, deadlines, health, metrics, and the supervision of its worker.

No user code runs here and no body is decoded, so health checks and refusals are answered at once whatever the handler does.
"""
