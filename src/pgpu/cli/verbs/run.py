"""`pgpu run`: a command inside a slice."""

import sys
from typing import Annotated

import typer

from pgpu.cli import exits, options
from pgpu.cli.invocation import invocation_of
from pgpu.cli.output import documents, speech
from pgpu.cli.verbs import asking
from pgpu.cli.verbs.attaching import attach, deferred_signals, pass_on, say_advisory, say_simulated
from pgpu.client import Client


def run(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[--] COMMAND", help="What to run; with --image the image's own command by default."),
    ] = None,
    *,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            "-m",
            metavar="AMOUNT",
            help="GPU memory of the slice, CUDA context included, such as 2GiB. Required.",
        ),
    ] = None,
    gpus: Annotated[int, typer.Option("--gpus", metavar="N", help="Number of GPUs, each with a slice.")] = 1,
    image: Annotated[
        str | None, typer.Option("--image", metavar="IMAGE", help="Run in a container of this image.")
    ] = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Give up (exit code 124) unless it can start now.")
    ] = False,
    wait_timeout: Annotated[
        str | None,
        typer.Option(
            "--wait-timeout", metavar="TIME", help="Give up (exit code 124) after waiting this long: 30s, 5m."
        ),
    ] = None,
    environment: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", metavar="KEY[=VALUE]", help="Set a variable, or pass on yours."),
    ] = None,
    environment_files: Annotated[
        list[str] | None, typer.Option("--env-file", metavar="FILE", help="Read variables from a file.")
    ] = None,
    volumes: Annotated[
        list[str] | None,
        typer.Option("--volume", "-v", metavar="HOST:CONTAINER[:OPTIONS]", help="Mount a path or a named volume."),
    ] = None,
    working_directory: Annotated[
        str | None, typer.Option("--workdir", "-w", metavar="PATH", help="Directory that the command starts in.")
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", "-u", metavar="USER[:GROUP]", help="Run as this user of the image.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="A name for the job, and for its container.")] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Print the job's id and leave it to itself.")] = False,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="Hand standard input to the command.")
    ] = False,
    tty: Annotated[bool, typer.Option("--tty", "-t", help="Give the command a terminal.")] = False,
    remove: Annotated[bool, typer.Option("--rm/--keep", help="Remove the container once it ended, or keep it.")] = True,
    wait_for_memory: Annotated[
        str,
        typer.Option(
            "--wait-for-memory",
            metavar="TIME",
            help="How long an allocation inside the slice waits for memory that the device lacks right now.",
        ),
    ] = "0s",
    as_json: options.Json = False,
) -> None:
    """Run a command inside a hard slice of GPU memory; wait until the slice fits.

    Exits with the command's own code; 124 if it was not granted in time, 125 for errors of pgpu itself, 126 and 127
    as Docker's, 130 if Ctrl-C ended the wait. stdout and stderr are the command's; pgpu itself speaks on stderr, with
    --json in one JSON object for each line.
    """
    spec, request = asking.read(
        command=tuple(command or ()),
        memory=memory,
        gpu_count=gpus,
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
    invocation = invocation_of(context)
    settings = invocation.settings(wait_timeout="0" if no_wait else wait_timeout)
    client = invocation.make_client(settings)
    with deferred_signals() as came:
        job = client.submit(spec, request, wait_timeout_seconds=settings.wait_timeout)
        if not as_json:
            say_simulated(job)
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
            speech.remark(line)
    raise typer.Exit(exits.of_job(ended))


def _print_started(client: Client, job_id: str, *, as_json: bool) -> None:
    if as_json:
        speech.print_json(documents.of_job(client.job(job_id)))
    else:
        print(job_id)
