"""`pgpu submit`: jobs for the queue, that nobody stays with: one, an array, or a file of many."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from pgpu.cli import options
from pgpu.cli.invocation import Invocation, invocation_of
from pgpu.cli.output import console, documents
from pgpu.cli.submission import job_arguments
from pgpu.cli.submission.attachment import deferred_signals, say_estimated, say_simulated
from pgpu.client import Client, JobReport
from pgpu.errors import CancelledError, RequestError
from pgpu.model import Job, SharingWish, Submission

_FILE_ENDING = ".toml"


def submit(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[--] COMMAND | FILE.toml",
            help="What to run, with --image the image's own command by default; or a file of many jobs.",
        ),
    ] = None,
    *,
    memory: options.Memory = job_arguments.AUTO,
    compute: options.Compute = None,
    strict: options.Strict = False,
    sharing: options.Sharing = None,
    oversubscribe: options.Oversubscribe = False,
    preempt: options.Preempt = False,
    retry_oom: options.RetryOom = False,
    gpus: options.Gpus = 1,
    image: options.Image = None,
    priority: options.Priority = "normal",
    after: options.After = None,
    array: Annotated[
        str | None,
        typer.Option(
            "--array",
            metavar="INDICES[%N]",
            help="One job for each index (0-9, 0-9:2, 1,3,7), which it finds in PGPU_ARRAY_INDEX; at most N at a time.",
        ),
    ] = None,
    wait_timeout: options.WaitTimeout = None,
    environment: options.Environment = None,
    environment_files: options.EnvironmentFiles = None,
    volumes: options.Volumes = None,
    working_directory: options.WorkingDirectory = None,
    user: options.User = None,
    name: options.Name = None,
    remove: options.Remove = True,
    wait_for_memory: options.WaitForMemory = "0s",
    as_json: options.Json = False,
) -> None:
    """Put jobs into the queue and print their ids, of an array one for all.

    `pgpu logs`, `wait`, `stop` and `cancel` take them from there. A file of jobs is accepted whole or not at all.
    """
    invocation = invocation_of(context)
    words = tuple(command or ())
    if image is None and _names_file(words):
        _refuse_options_beside_file(context)
        submissions = _read_file(invocation, Path(words[0]))
        client = invocation.client()
    else:
        settings = invocation.settings(wait_timeout=wait_timeout, sharing=sharing)
        spec, request = job_arguments.read_job(
            command=words,
            memory=memory,
            gpu_count=gpus,
            compute=job_arguments.ComputeArguments(
                compute, settings.sharing, is_strict=strict, oversubscribes=oversubscribe, preempts=preempt
            ),
            priority=priority,
            retries_out_of_memory=retry_oom,
            image=image,
            environment_words=environment or (),
            environment_files=environment_files or (),
            volume_words=volumes or (),
            working_directory=working_directory,
            user=user,
            name=name,
            wants_tty=False,
            wants_stdin=False,
            is_detached=True,
            remove=remove,
            wait_for_memory=wait_for_memory,
        )
        indices = None if array is None else job_arguments.read_array(array)
        submissions = [Submission(spec, request, tuple(after or ()), indices, settings.wait_timeout)]
        client = invocation.make_client(settings)
    _print(_accepted(client, submissions), as_json=as_json)


def _names_file(words: Sequence[str]) -> bool:
    return len(words) == 1 and words[0].endswith(_FILE_ENDING)


def _refuse_options_beside_file(context: typer.Context) -> None:
    """Options of one job say nothing of many."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        is_given = source is not None and source.name == "COMMANDLINE"
        if is_given and parameter.param_type_name == "option" and parameter.name != "as_json":
            raise RequestError(
                f"{parameter.opts[0]} is for one job, and a file of jobs was named",
                hint="write it into the file, below [defaults] or [jobs.NAME]",
            )


def _read_file(invocation: Invocation, path: Path) -> list[Submission]:
    from pgpu.cli.submission.job_file import read_job_file

    read: dict[tuple[str | None, str | None], tuple[float | None, SharingWish]] = {}

    def read_settings(wait_timeout: str | None, sharing: str | None) -> tuple[float | None, SharingWish]:
        if (wait_timeout, sharing) not in read:
            settings = invocation.settings(wait_timeout=wait_timeout, sharing=sharing)
            read[wait_timeout, sharing] = settings.wait_timeout, settings.sharing
        return read[wait_timeout, sharing]

    return read_job_file(path, read_settings)


def _accepted(client: Client, submissions: Sequence[Submission]) -> Sequence[Job]:
    """Hand them in; a signal that comes meanwhile takes them back."""
    with deferred_signals() as came:
        jobs = client.submit_all(submissions)
        if came:
            client.cancel([job.id for job in jobs], grace_seconds=0)
            raise CancelledError("a signal came; everything that was submitted is cancelled")
    return jobs


def _print(jobs: Sequence[Job], *, as_json: bool) -> None:
    if as_json:
        console.print_json(documents.of_jobs(JobReport(job, ()) for job in jobs))
        return
    if len(jobs) == 1:
        say_simulated(jobs[0])
        say_estimated(jobs[0])
    elif jobs[0].is_simulated:
        console.print_note(f"{len(jobs)} jobs run on a simulated {jobs[0].gpu_model}: their kernels compute nothing")
    for line in dict.fromkeys(job.place.array_id or job.id for job in jobs):
        print(line)
