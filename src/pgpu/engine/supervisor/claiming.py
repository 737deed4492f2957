"""Which process supervises a job: written into the ledger by that process; replaced only after its death."""

from pgpu.engine.engine import Engine
from pgpu.engine.leases.recovery import is_supervised
from pgpu.host.process_identity import myself
from pgpu.ledger import Entry
from pgpu.structs import replace


def claim(engine: Engine, job_id: str) -> Entry | None:
    """Register this process as a job's supervisor; None if another process is, or if the job's lease was released.

    Raises:
        LedgerError: The ledger cannot be used.
    """
    me = myself()
    engine.ledger.refuse_to_make()
    entry = engine.ledger.entry(job_id)
    if entry.supervisor == me:  # written down with the grant
        return entry if entry.is_live else None
    with engine.ledger.decision() as decision:
        entry = decision.entry(job_id)
        others = entry.supervisor if entry.supervisor != me else None
        if not entry.is_live or (others is not None and is_supervised(entry)):
            return None
        entry = replace(entry, supervisor=me)
        decision.put(entry)
    return entry
