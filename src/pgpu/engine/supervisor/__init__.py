"""One job from its grant to the release of its lease: a thread of the queue's agent starts it, watches it and writes its end.

All that it needs is in the ledger and in the files of the job, so another agent can go on with it.
"""

from pgpu.engine.supervisor.claiming import attend
from pgpu.engine.supervisor.life import supervise

__all__ = ["attend", "supervise"]
