"""The job that runs a job's `--notify` command once it has ended.

It is stored in the transaction that makes the job final, so there is exactly one, whatever is killed when. It is a job
without a GPU of the same owner, with the environment, the limits and the account that the ended job inherited: it is started
like any other process job of that user, and its failure is its own. `timeout` ends it if it hangs. Its shell enters the ended
job's working directory itself: a job may have removed it, and the command is then run in `/`.
"""

import os

from pgpu.ledger.rows import Entry
from pgpu.model import Job, JobSpec, JobState, Request
from pgpu.model.job import END_SHELL
from pgpu.units import escape_undecodable

_MOST_CHARACTERS = 1000


def notifies(entry: Entry) -> bool:
    """Whether the end of a job starts a command, if this entry is the first final one."""
    return entry.job.state.is_final and entry.job.spec.notify is not None


def end_command(ended: Job) -> Entry:
    """Return the job that runs the command of a final job.

    Args:
        ended: With `spec.notify`.
    """
    why = escape_undecodable(ended.error or ended.reason or "").replace("\0", "")
    variables = {
        "PGPU_JOB": ended.id,
        "PGPU_JOB_NAME": ended.spec.name or "",
        "PGPU_STATE": ended.state.value,
        "PGPU_EXIT_CODE": "" if ended.exit_code is None else str(ended.exit_code),
        "PGPU_REASON": why[:_MOST_CHARACTERS],
    }
    # The working directory of a container is one of its image.
    directory = ended.spec.working_directory if ended.spec.runtime == "process" else None
    # The shell gets the command as it was submitted; what this run adds is in variables, never in the text of a command.
    command = (*END_SHELL, f"notify of {ended.id}", directory or "/", ended.spec.notify or "")
    job = Job(
        id=os.urandom(6).hex(),
        spec=JobSpec(command, "process", environment=tuple(variables.items()), working_directory="/"),
        request=Request(0, 0),
        state=JobState.WAITING,
        created_at_seconds=ended.finished_at_seconds or ended.created_at_seconds,
        owner_uid=ended.owner_uid,
        gpu_model=ended.gpu_model,
    )
    return Entry(job)
