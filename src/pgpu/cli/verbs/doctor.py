"""`pgpu doctor`: what works here, and how to mend what does not."""

import dataclasses
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from pgpu.cli import exits, options
from pgpu.cli.invocation import invocation_of
from pgpu.cli.output import documents, speech

if TYPE_CHECKING:
    from pgpu.app.doctor import Finding

_MARKS = {"ok": ("ok", "32"), "warning": ("warn", "33"), "failure": ("FAIL", "31")}


def doctor(
    context: typer.Context,
    *,
    image: Annotated[
        str | None, typer.Option("--image", metavar="IMAGE", help="Try a slice in a container of this image, too.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Check what pgpu needs of this machine and say how to mend what is missing; exits with 1 if jobs cannot run."""
    from pgpu.app.doctor import Result, examine

    findings = []
    for finding in examine(invocation_of(context).settings(), image):
        findings.append(finding)
        if not as_json:
            _print(finding)
    is_healthy = all(finding.result is not Result.FAILURE for finding in findings)
    if as_json:
        checks = [dataclasses.asdict(finding) for finding in findings]
        speech.print_json(documents.document(is_healthy=is_healthy, checks=checks))
    raise typer.Exit(exits.OK if is_healthy else exits.CHECK_FAILED)


def _print(finding: "Finding") -> None:
    word, colour = _MARKS[finding.result.value]
    mark = f"\033[{colour}m{word:4}\033[0m" if sys.stdout.isatty() else f"{word:4}"
    print(f"{mark}  {finding.name}: {finding.finding}", flush=True)
    if finding.remedy:
        print(f"      mend it: {finding.remedy}", flush=True)
