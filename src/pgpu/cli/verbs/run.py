"""`pgpu run`: a command inside a slice."""

import sys
from typing import Annotated

import typer

from pgpu.cli import exits, options
from pgpu.cli.invocation import invocation_of
from pgpu.cli.output import console, documents
from pgpu.cli.submission import job_arguments
from pgpu.cli.submission.attachment import attach, deferred_signals, pass_on, say_advisory, say_estimated, say_simulated
from pgpu.client import Client
from pgpu.model import Submission


def run(
    context: typer.Context,
    command: options.Command = None,
    *,
    memory: options.Memory = None,
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
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Give up (exit code 124) unless it can start now.")
    ] = False,
    wait_timeout: options.WaitTimeout = None,
    environment: options.Environment = None,
    environment_files: options.EnvironmentFiles = None,
    volumes: options.Volumes = None,
    working_directory: options.WorkingDirectory = None,
    user: options.User = None,
    name: options.Name = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Print the job's id and leave it to itself.")] = False,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="Hand standard input to the command.")
    ] = False,
    tty: Annotated[bool, typer.Option("--tty", "-t", help="Give the command a terminal.")] = False,
    remove: options.Remove = True,
    wait_for_memory: options.WaitForMemory = "0s",
    as_json: options.Json = False,
) -> None:
    """Run a command inside a hard slice of GPU memory; wait until the slice fits.

    Exits with the command's own code; 124 if it was not granted in time, 125 for errors of pgpu itself, 126 and 127
    as Docker's, 130 if Ctrl-C ended the wait. stdout and stderr are the command's; pgpu itself speaks on stderr, with
    --json in one JSON object for each line.
    """
    invocation = invocation_of(context)
    settings = invocation.settings(wait_timeout="0" if no_wait else wait_timeout, sharing=sharing)
    spec, request = job_arguments.read_job(
        command=tuple(command or ()),
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
        wants_tty=tty,
        wants_stdin=interactive,
        is_detached=detach,
        remove=remove,
        wait_for_memory=wait_for_memory,
    )
    client = invocation.make_client(settings)
    with deferred_signals() as came:
        submission = Submission(spec, request, tuple(after or ()), wait_timeout_seconds=settings.wait_timeout)
        [job] = client.submit_all([submission])
        if not as_json:
            say_simulated(job)
            say_estimated(job)
        if detach:
            if came:
                pass_on(client, job.id, came[0])
            _print_started(client, job.id, as_json=as_json)
            return
        ended = attach(client, job, came, as_json=as_json)
    sys.stdout.flush()
    if not as_json:
        say_advisory(ended)
        for line in filter(None, (ended.warning, ended.error)):
            console.print_note(line)
    raise typer.Exit(exits.of_job(ended))


def _print_started(client: Client, job_id: str, *, as_json: bool) -> None:
    if as_json:
        console.print_json(documents.of_job(client.job(job_id)))
    else:
        print(job_id)
