"""Who looks after a job, as the ledger has it: one process at a time, and the next only once that one is dead."""

from pgpu.engine.engine import Engine
from pgpu.host.process_identity import is_alive, myself
from pgpu.ledger import Entry
from pgpu.structs import replace


def attend(engine: Engine, job_id: str) -> None:
    """Be known as the one who looks after a job that waits, before `supervise` does it once it is granted.

    Raises:
        LedgerError: The ledger cannot be used.
    """
    claim(engine, job_id)


def claim(engine: Engine, job_id: str) -> Entry | None:
    """Become the one who looks after a job; None where another one does, or nothing is left to be done for it.

    Raises:
        LedgerError: The ledger cannot be used.
    """
    me = myself()
    engine.ledger.refuse_to_make()
    with engine.ledger.decision() as decision:
        entry = decision.entry(job_id)
        others = entry.supervisor if entry.supervisor != me else None
        if not entry.is_live or (others is not None and is_alive(others)):
            return None
        entry = replace(entry, supervisor=me)
        decision.put(entry)
    return entry
