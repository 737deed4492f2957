"""Turns on GPUs whose jobs hold more than they have: who sees what the jobs do, holds them, and lets them go on.

No process is there for it alone. Of the supervisors of the jobs on one GPU that oversubscribe, one does it, whoever holds a
lock that dies with it. `scheduling.turns` says whose turn it is; this room refuses to have an opinion of its own.
"""
