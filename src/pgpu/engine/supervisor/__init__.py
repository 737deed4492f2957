"""Supervision of one job from its grant to the release of its lease: starts the job, watches it and records its end.

It runs in a thread of the queue's agent; for a container of the OCI runtime, in the container's attendant process. All of its
state is in the ledger and in the job's files, so after a crash another agent continues from there.
"""

from pgpu.engine.supervisor.life import supervise
from pgpu.engine.supervisor.starting import TakeMonitor

__all__ = ["TakeMonitor", "supervise"]
