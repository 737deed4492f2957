"""Why jobs wait, told at the moment when somebody asks: of ten thousand waiting jobs nobody keeps that up to date."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from pgpu.engine.admission.round_outcome import RoundOutcome
from pgpu.ledger import Entry
from pgpu.model import Job, JobState


def add_wait_reasons(entries: Sequence[Entry], outlook_of: Callable[[Job], RoundOutcome]) -> list[Entry]:
    """Return the same entries, of which those that wait say why, as a round would find it now.

    Args:
        entries: Any, as the ledger has them.
        outlook_of: Returns what a round of the queue that a job is in would find now.

    Raises:
        PgpuError: An engine cannot be made, or its ledger not be read.
    """
    models = {entry.job.gpu_model: entry.job for entry in entries if entry.job.state is JobState.WAITING}
    outlooks = {model: outlook_of(job) for model, job in models.items()}

    def told(entry: Entry) -> Entry:
        if entry.job.state is not JobState.WAITING:
            return entry
        reason = outlooks[entry.job.gpu_model].reason(entry.job.id) or entry.job.reason
        return replace(entry, job=replace(entry.job, reason=reason))

    return [told(entry) for entry in entries]
