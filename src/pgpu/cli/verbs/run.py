"""`pgpu run` and `pgpu submit`: jobs in slices of GPU memory.

`run` stays with its job to the end; `submit` returns at once, for one job, an array, or a file of many jobs.
"""

import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgpu.cli import exits
from pgpu.cli.attachment import (
    attach,
    deferred_signals,
    pass_on,
    print_advisory,
    print_estimate,
    print_simulated,
)
from pgpu.cli.invocation import Invocation
from pgpu.cli.job_arguments import read_submission
from pgpu.cli.job_options import AUTO, RUN, SUBMIT, JobOptions, rows_of
from pgpu.cli.option_table import COMMAND, JSON, Option, OptionKind, takes
from pgpu.cli.output import console, documents
from pgpu.client import Client, JobReport
from pgpu.errors import CancelledError, PgpuError, RequestError, WaitTimeoutError
from pgpu.model import Job, Objective, Submission
from pgpu.structs import replace

if TYPE_CHECKING:
    from pgpu.app.settings import Settings

_JOB_FILE_SUFFIX = ".toml"


@takes(COMMAND, *rows_of(RUN), JSON)
def run(invocation: Invocation, *, as_json: bool, **given: Any) -> int | None:
    """Run a command in a slice of GPU memory, once it fits.

    Exits with the command's own code; 124 if it was not granted in time, or stopped at its time limit, 125 for errors
    of pgpu itself, 126 and 127 as Docker does, 130 if Ctrl-C ended the wait. stdout and stderr are the command's;
    messages of pgpu go to stderr, with --json as one JSON object for each line.
    """
    # Its caller sees its output and its exit code: they are those of one attempt, unless the user asks for more.
    job = JobOptions(**given, objective=Objective.SOONEST, no_retry=not given["retry_oom"])
    settings = invocation.settings(**job.settings())
    submission = read_submission(job, settings)
    client = invocation.make_client(settings)
    # Until the end of the wait, a signal is only recorded: raised inside a request, it would leave a job without its caller.
    with deferred_signals() as signals:
        submitted = client.submit_all([submission])[0] if job.detach else client.submit_attached(submission)
        if not as_json:
            print_simulated([submitted], settings.state_dir)
            print_estimate(submitted)
        if job.detach:
            if signals:  # one that arrived while the job was being submitted
                pass_on(client, submitted.id, signals[0])
            if as_json:
                console.print_json(documents.of_job(client.job(submitted.id)))
            else:
                print_advisory(submitted)
                print(submitted.id)
            return None
        try:
            ended = attach(client, submitted, signals, as_json=as_json)
        except WaitTimeoutError as exc:
            raise (_with_missing(exc, client, submission) if job.no_wait else exc) from None
    sys.stdout.flush()
    if not as_json:
        if ended.warning:
            console.print_note(ended.warning)
        if ended.error:
            console.print_message(ended.error)
    return exits.of_job(ended)


@takes(
    replace(
        COMMAND,
        metavar="[--] COMMAND | FILE.toml",
        help="The command, with --image the image's own by default; or a file of many jobs.",
    ),
    *rows_of(SUBMIT, memory=AUTO),
    Option(
        "is_dry_run",
        OptionKind.FLAG,
        ("--dry-run",),
        "Submit nothing; print where and about when each job would start, and why it would wait.",
    ),
    JSON,
)
def submit(invocation: Invocation, *, is_dry_run: bool, as_json: bool, **given: Any) -> None:
    """Put jobs into the queue and print their ids.

    An array has one id for all its jobs. `pgpu logs`, `wait`, `stop` and `cancel` take these ids. A file of jobs is
    accepted whole or not at all.
    """
    job = JobOptions(**given)
    words = job.command
    if job.image is None and len(words) == 1 and words[0].endswith(_JOB_FILE_SUFFIX):
        _refuse_options_beside_file(invocation.typed)
        submissions = _read_file(invocation, Path(words[0]))
        settings = invocation.settings()
    else:
        settings = invocation.settings(**job.settings())
        submissions = [read_submission(job, settings)]
    client = invocation.make_client(settings)
    if is_dry_run:
        reports = client.dry_run(submissions)
        if as_json:
            console.print_json(documents.of_queue(reports))
            return
        from pgpu.cli.output import waits

        places = {each.gpu.uuid: each.gpu.place for each in client.gpus()}
        console.print_table(waits.of_dry_run(reports, places))
        return
    with deferred_signals() as signals:
        jobs = client.submit_all(submissions)
        if signals:
            # They are in the ledger already, and would run although the caller has seen no ids.
            client.cancel([each.id for each in jobs], grace_seconds=0)
            raise CancelledError("interrupted by a signal; everything that was submitted is cancelled")
    _print_submitted(jobs, settings.state_dir, as_json=as_json)


def _with_missing(error: WaitTimeoutError, client: Client, submission: Submission) -> WaitTimeoutError:
    """Return the error of a job that could not start at once, with what is missing and how long that may take."""
    try:
        [report] = client.dry_run([replace(submission, wait_timeout_seconds=None)])
    except PgpuError:  # the forecast explains the error, and must not replace it
        return error
    from pgpu.cli.output.waits import start_basis, start_text

    start = start_text(report, time.time())
    if start == "soon":
        return WaitTimeoutError(str(error), hint="it would fit by now: try again")
    start = "when it would start is unknown" if start == "unknown" else f"it would start {start}"
    return WaitTimeoutError(
        f"{error}: it {report.job.reason}", hint=f"without --no-wait {start}: {start_basis(report)}"
    )


def _refuse_options_beside_file(typed: Collection[str]) -> None:
    for row in rows_of(SUBMIT):
        if row.name in typed:
            raise RequestError(
                f"{row.flags[0].partition('/')[0]} is for one job, and a file of jobs was named",
                hint="write it into the file, below [defaults] or [jobs.NAME]",
            )


def _read_file(invocation: Invocation, path: Path) -> list[Submission]:
    from pgpu.cli.job_arguments import read_job_file

    # Settings are read from files and the environment: once for each combination, not for each of many jobs.
    read: dict[tuple[str | None, ...], Settings] = {}

    def read_settings(flags: Mapping[str, str | None]) -> "Settings":
        key = tuple(flags.values())
        if key not in read:
            read[key] = invocation.settings(**flags)
        return read[key]

    return read_job_file(path, read_settings)


def _print_submitted(jobs: Sequence[Job], state_dir: Path, *, as_json: bool) -> None:
    if as_json:
        console.print_json(documents.of_jobs(JobReport(job, ()) for job in jobs))
        return
    print_simulated(jobs, state_dir)
    if len(jobs) == 1:
        print_estimate(jobs[0])
        print_advisory(jobs[0])
    # Jobs of an array have one id in common, which is printed once.
    for line in dict.fromkeys(job.place.array_id or job.id for job in jobs):
        print(line)
