"""Supervision of one job from its grant to the release of its lease: starts the job, watches it and records its end.

It runs in threads of the queue's agent, and in none while the job runs and nothing happens (`agent.attendants`). All of its state
that must last is in the ledger and in the job's files, so after a crash another agent continues from there.
"""

from pgpu.engine.supervisor.life import supervise, supervision
from pgpu.engine.supervisor.starting import TakeMonitor

__all__ = ["TakeMonitor", "supervise", "supervision"]
