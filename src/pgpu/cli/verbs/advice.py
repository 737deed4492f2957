"""Verbs about jobs together: `advise` says how they should share a GPU."""

from pathlib import Path
from typing import Annotated

import typer

from pgpu.cli import options
from pgpu.cli.invocation import invocation_of
from pgpu.cli.output import console
from pgpu.errors import RequestError
from pgpu.model import Profile

_LARGEST_FILE_BYTES = 16 << 20


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
        typer.Option("--gpu", metavar="MODEL", help="Of which kind of GPU; that of the profiles, or this machine's."),
    ] = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Nobody may take more than 1.3 times as long as alone.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Say how jobs should share a GPU (taking turns, under MPS, or not), from profiles of each of them alone."""
    from pgpu.advising.advice import INTERACTIVE_TOLERANCE
    from pgpu.cli.output import advice_report

    asked = [_job(word) for word in jobs]
    found = (
        invocation_of(context)
        .client()
        .advise(asked, gpu_model=gpu, tolerance=INTERACTIVE_TOLERANCE if interactive else None)
    )
    if as_json:
        console.print_json(advice_report.document_of(found))
        return
    console.print_table(advice_report.of_advice(found))
    for line in advice_report.verdict_of(found):
        print(line)


def _job(word: str) -> str | Profile:
    path = Path(word)
    is_file = "/" in word or path.suffix == ".json" or path.is_file()
    return _profile_in(path) if is_file else word


def _profile_in(path: Path) -> Profile:
    """Read what `pgpu profile --json` printed.

    Raises:
        RequestError: There is no such file, or it is none.
    """
    from pgpu.services import wire

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
