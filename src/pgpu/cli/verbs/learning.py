"""What pgpu learned from earlier runs (`history`, `waste`), and how jobs should share a GPU (`advise`, `calibrate`)."""

from pathlib import Path
from typing import Annotated

import typer

from pgpu.cli import options
from pgpu.cli.invocation import invocation_of
from pgpu.cli.output import console, documents
from pgpu.errors import RequestError
from pgpu.model import Profile

_LARGEST_FILE_BYTES = 16 << 20
_LONGEST_SECONDS = 3600


def history(
    context: typer.Context,
    program: Annotated[
        str | None,
        typer.Argument(
            metavar="[PROGRAM]", help="A signature, its beginning, or a job: every run of it. Default: all programs."
        ),
    ] = None,
    *,
    as_json: options.Json = False,
) -> None:
    """Show peaks of earlier runs and sizes for --memory auto."""
    calls = invocation_of(context).client().history(program)
    if as_json:
        console.print_json(documents.of_history(calls))
        return
    from pgpu.cli.output import usage_tables

    console.print_table(usage_tables.of_calls(calls))
    for call in calls if program is not None else ():
        console.print_table(usage_tables.of_runs(call))


def waste(context: typer.Context, *, as_json: options.Json = False) -> None:
    """Compare reserved with used memory, by job and by user.

    For each job it shows the size that would have been enough.
    """
    found = invocation_of(context).client().waste()
    if as_json:
        console.print_json(documents.of_waste(found))
        return
    from pgpu.cli.output import usage_tables

    console.print_table(usage_tables.of_waste(found))
    console.print_table(usage_tables.of_users(found))


def advise(
    context: typer.Context,
    jobs: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB JOB...", help="Ids or names of jobs, signatures, or files of `pgpu profile --json`."
        ),
    ],
    *,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", metavar="MODEL", help="GPU model [that of the profiles, or of this machine]."),
    ] = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Slow no job down by more than 1.3 times.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Predict how jobs should share a GPU: by turns, MPS, or not.

    The prediction uses a profile of each job alone; `pgpu profile` makes one.
    """
    from pgpu.advising.advice import INTERACTIVE_TOLERANCE
    from pgpu.cli.output import advice_report

    given = [_read_job(word) for word in jobs]
    tolerance = INTERACTIVE_TOLERANCE if interactive else None
    found = invocation_of(context).client().advise(given, gpu_model=gpu, tolerance=tolerance)
    if as_json:
        console.print_json(advice_report.document_of(found))
        return
    console.print_table(advice_report.of_advice(found))
    for line in advice_report.verdict_of(found):
        print(line)


def _read_job(word: str) -> str | Profile:
    """Return the profile in a file that `pgpu profile --json` wrote; a word that names no file stays.

    Raises:
        RequestError: The file cannot be read, or is no profile.
    """
    from pgpu.services import wire

    path = Path(word)
    if not ("/" in word or path.suffix == ".json" or path.is_file()):
        return word
    hint = "write one with: pgpu profile --json -- COMMAND > FILE"
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_FILE_BYTES)
    except OSError as exc:
        raise RequestError(f"{path} cannot be read: {exc.strerror}", hint=hint) from exc
    try:
        content = wire.parse(data)
        return wire.decode(
            Profile, content["profile"] if isinstance(content, dict) and "profile" in content else content
        )
    except RequestError as exc:
        raise RequestError(f"{path} is no profile: {exc}", hint=hint) from exc


def calibrate(
    context: typer.Context,
    *,
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", help="Length of each run.")] = 3.0,
    as_json: options.Json = False,
) -> None:
    """Fit the constants of advice to this kind of GPU (minutes).

    Workloads of pgpu run alone, in turns and under MPS; the bandwidths of link and memory are measured, too. The GPUs
    must be idle: the use of other programs would be fitted as well.
    """
    from pgpu.cli.measurement import calibration_runs
    from pgpu.cli.output import advice_report

    if not 0 < seconds <= _LONGEST_SECONDS:
        raise RequestError(f"--seconds {seconds:g}: a run takes more than 0 s and at most an hour")
    client = invocation_of(context).client()
    client.check_calibration()  # refuses callers that may not store constants, before anything runs
    if any(report.jobs or report.outsiders for report in client.gpus()):
        raise RequestError("the GPUs are in use", hint="calibrate while nothing else runs: pgpu ps")
    found = calibration_runs.run_calibration(client, seconds, is_quiet=as_json)
    client.keep_constants(found.gpu_uuid, found.constants, found.bandwidths)
    gpu = next(report.gpu for report in client.gpus() if report.gpu.uuid == found.gpu_uuid)
    if as_json:
        console.print_json(
            advice_report.document_of_calibration(
                found.constants, found.before, found.after, found.pairs, found.bandwidths, gpu
            )
        )
        return
    for line in advice_report.lines_of_calibration(found.constants, found.before, found.after, found.pairs):
        print(line)
    for line in advice_report.lines_of_bandwidths(found.bandwidths, gpu):
        print(line)
