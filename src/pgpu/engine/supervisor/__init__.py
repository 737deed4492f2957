"""One process beside each job: it waits in the queue, starts the job, carries its streams and writes how it ended.

It outlives the command line. If it dies, another one finds everything it needs in the ledger and goes on.
"""

from pgpu.engine.supervisor.claiming import attend
from pgpu.engine.supervisor.life import supervise

__all__ = ["attend", "supervise"]
