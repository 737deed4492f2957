"""Options that several verbs share, spelled once."""

from typing import Annotated

import typer

from pgpu.cli.invocation import invocation_of


def note_json(context: typer.Context, *, value: bool) -> bool:
    """Let `main` know how errors are to be written."""
    invocation_of(context).as_json = value
    return value


Json = Annotated[
    bool,
    typer.Option(
        "--json", callback=note_json, is_eager=True, help="Print one JSON object instead; errors are JSON on stderr."
    ),
]
Jobs = Annotated[
    list[str], typer.Argument(metavar="JOB...", help="Ids, beginnings of ids, or names of jobs and arrays.")
]
OneJob = Annotated[str, typer.Argument(metavar="JOB", help="Id, beginning of an id, or name.")]

# Of verbs that submit jobs.
Command = Annotated[
    list[str] | None,
    typer.Argument(metavar="[--] COMMAND", help="What to run; with --image the image's own command by default."),
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        "-m",
        metavar="AMOUNT",
        help="GPU memory of the slice, CUDA context included, such as 2GiB; auto lets pgpu choose by earlier runs.",
    ),
]
Compute = Annotated[
    str | None,
    typer.Option(
        "--compute",
        metavar="SHARE",
        help="Share of each GPU's time that it gets whenever it wants it, such as 30%; idle time comes on top.",
    ),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Never more than the share of --compute, even of a GPU that is idle.")
]
Sharing = Annotated[
    str | None,
    typer.Option(
        "--sharing",
        metavar="MODE",
        help="How it shares its GPUs: time-slice, mps, exclusive (alone), or auto; the setting sharing, time-slice.",
    ),
]
Oversubscribe = Annotated[
    bool,
    typer.Option(
        "--oversubscribe",
        help="Let its memory move to the host while others use the GPU, so that all together may hold more than it has.",
    ),
]
Preempt = Annotated[
    bool,
    typer.Option("--preempt", help="Suspend running jobs of a lower priority where there is no room for it otherwise."),
]
RetryOom = Annotated[
    bool,
    typer.Option("--retry-oom", help="If it fails at its own limit, queue it again with a larger slice, twice."),
]
Gpus = Annotated[
    int, typer.Option("--gpus", metavar="N", help="Number of GPUs, each with a slice; 0 for a job without one.")
]
Image = Annotated[str | None, typer.Option("--image", metavar="IMAGE", help="Run in a container of this image.")]
Priority = Annotated[
    str,
    typer.Option(
        "--priority",
        metavar="P",
        help="Before those of a lower one, and more of idle GPU time: low, normal, high, or a number from -100 to 100.",
    ),
]
After = Annotated[
    list[str] | None,
    typer.Option(
        "--after", metavar="JOB", help="Start once this job or array ended with exit code 0; cancelled if it does not."
    ),
]
WaitTimeout = Annotated[
    str | None,
    typer.Option("--wait-timeout", metavar="TIME", help="Give up (exit code 124) after waiting this long: 30s, 5m."),
]
Environment = Annotated[
    list[str] | None,
    typer.Option("--env", "-e", metavar="KEY[=VALUE]", help="Set a variable, or pass on yours."),
]
EnvironmentFiles = Annotated[
    list[str] | None, typer.Option("--env-file", metavar="FILE", help="Read variables from a file.")
]
Volumes = Annotated[
    list[str] | None,
    typer.Option("--volume", "-v", metavar="HOST:CONTAINER[:OPTIONS]", help="Mount a path or a named volume."),
]
WorkingDirectory = Annotated[
    str | None, typer.Option("--workdir", "-w", metavar="PATH", help="Directory that the command starts in.")
]
User = Annotated[
    str | None, typer.Option("--user", "-u", metavar="USER[:GROUP]", help="Run as this user of the image.")
]
Name = Annotated[str | None, typer.Option("--name", help="A name for the job, and for its container.")]
Remove = Annotated[bool, typer.Option("--rm/--keep", help="Remove the container once it ended, or keep it.")]
WaitForMemory = Annotated[
    str,
    typer.Option(
        "--wait-for-memory",
        metavar="TIME",
        help="How long an allocation inside the slice waits for memory that the device lacks right now.",
    ),
]
