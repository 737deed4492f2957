"""Command-line options that several verbs share, and the options of a job, made from the table in `job_options`."""

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgpu.cli.invocation import invocation_of
from pgpu.errors import RequestError
from pgpu.units import quoted

if TYPE_CHECKING:
    from pgpu.cli.job_options import JobOption


def note_json(context: typer.Context, *, value: bool) -> bool:
    """Record --json in the invocation: `main` writes errors in the same format."""
    invocation_of(context).as_json = value
    return value


MOST_PORT = 65_535
_MOST_DIGITS = 18

# Eager options are parsed first: an error in any other option is then JSON as well.
Json = Annotated[
    bool,
    typer.Option("--json", callback=note_json, is_eager=True, help="Print one JSON object; errors are JSON on stderr."),
]
Jobs = Annotated[
    list[str], typer.Argument(metavar="JOB...", help="Ids, beginnings of ids, or names of jobs and arrays.")
]
OneJob = Annotated[str, typer.Argument(metavar="JOB", help="Id, beginning of an id, or name of a job.")]
Grace = Annotated[
    str | None,
    typer.Option(
        "--time", "-t", metavar="TIME", help="Time between SIGTERM and SIGKILL (PGPU_STOP_GRACE, 10s by default)."
    ),
]
Command = Annotated[
    list[str] | None,
    typer.Argument(metavar="[--] COMMAND", help="The command; with --image the image's own by default."),
]
Image = Annotated[str | None, typer.Option("--image", metavar="IMAGE", help="Run in a container of this image.")]


def is_number(text: str) -> bool:
    """Whether a text is decimal digits that `int` can read, which raises an error above 4,300 digits."""
    return text.isdecimal() and len(text) <= _MOST_DIGITS


def read_address(option: str, words: str, hint: str, form: str = "ADDRESS:PORT") -> tuple[str, int]:
    """Read an address and a port, such as 127.0.0.1:80 or [::1]:80; `form` is their name in the help of the option.

    Raises:
        RequestError: It is neither.
    """
    address, _, port = words.rpartition(":")
    if not (address and port.isascii() and is_number(port) and int(port) <= MOST_PORT):
        raise RequestError(f"{option} {quoted(words)} is not {form}", hint=hint)
    return address.strip("[]"), int(port)


def takes_job_options(verb: str, **defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace a verb's parameter `job`, a `JobOptions`, by the table's options for that verb.

    Typer reads a verb's options from its signature, so the returned function has a signature with one parameter for
    each row, at the place of `job`.

    Args:
        verb: Name in the table's column `used_by`.
        defaults: Values by row name that differ from the table's.
    """
    from pgpu.cli.job_options import LISTS, TABLE, JobOptions

    rows = [row for row in TABLE if verb in row.used_by]

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(**values: Any) -> None:
            # Each row's value replaces one parameter of Typer's; a list that was not given is None.
            given = {row.name: values.pop(row.name) for row in rows}
            lists = {row.name: tuple(given[row.name] or ()) for row in rows if row.kind in LISTS}
            function(job=JobOptions(**{**given, **lists}), **values)

        def parameters() -> Iterator[inspect.Parameter]:
            for own in inspect.signature(function).parameters.values():
                if own.name == "job":
                    for row in rows:
                        yield _parameter(row, defaults.get(row.name, row.default))
                else:
                    yield own

        # `inspect.signature` prefers this attribute to the wrapped function, which functools.wraps has noted.
        command.__signature__ = inspect.Signature(list(parameters()))  # type: ignore[attr-defined]
        return command

    return decorate


def _parameter(row: "JobOption", default: Any) -> inspect.Parameter:
    from pgpu.cli.job_options import LISTS, OptionKind

    text = row.help if row.variable is None else f"{row.help[:-1]} ({row.variable})."
    option = typer.Option(*row.flags, metavar=row.metavar, help=text)
    # Quantities stay text: Typer's own conversions know no units, and their errors do not name the remedy.
    kind: Any = {OptionKind.NUMBER: int, OptionKind.FLAG: bool}.get(row.kind, str)
    if row.kind in LISTS:
        kind, default = list[str] | None, None
    elif default is None:
        kind = kind | None
    return inspect.Parameter(
        row.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )
