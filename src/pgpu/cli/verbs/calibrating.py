"""`pgpu calibrate`: fits the constants of advice on this GPU, with pgpu's own workloads, and measures its bandwidths.

Each is profiled as `pgpu profile --sensitivity` does, and then runs beside each other one, in turns and under MPS. It
refuses to calibrate a GPU that others use meanwhile: what they take would be fitted too. Who may not is told before anything
runs.
"""

from typing import Annotated

import typer

from pgpu.cli import options
from pgpu.cli.invocation import invocation_of
from pgpu.cli.output import console
from pgpu.errors import RequestError

_LONGEST_SECONDS = 3600


def calibrate(
    context: typer.Context,
    *,
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", help="Of each run.")] = 3.0,
    as_json: options.Json = False,
) -> None:
    """Fit the constants of advice on this kind of GPU, and measure its link and its memory (minutes).

    pgpu's own workloads run alone, in turns and under MPS.
    """
    from pgpu.cli.measurement import calibration_runs
    from pgpu.cli.output import advice_report

    if not 0 < seconds <= _LONGEST_SECONDS:
        raise RequestError(f"--seconds {seconds:g}: a run takes more than 0 s and at most an hour")
    client = invocation_of(context).client()
    client.check_calibration()
    if any(report.jobs or report.outsiders for report in client.gpus()):
        raise RequestError("others use the GPUs", hint="calibrate while nothing else runs: pgpu ps")
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
