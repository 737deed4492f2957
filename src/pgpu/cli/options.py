"""Options of the verbs that Typer alone reads, and Typer's form of a row of `option_table`."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from pgpu.cli.invocation import invocation_of
from pgpu.cli.option_table import ARGUMENTS, AS_JSON, JSON, OUTPUT, VERSION, Option, wants_json
from pgpu.errors import RequestError
from pgpu.units import is_number, parse_duration_seconds, quoted


def typer_option(row: Option) -> Any:
    """Return Typer's description of an option or argument."""
    if row.kind in ARGUMENTS:
        return typer.Argument(metavar=row.metavar, help=row.help)
    text = row.help if row.variable is None else f"{row.help[:-1]} ({row.variable})."
    # Eager options are parsed first: an error in any other option is then JSON as well.
    callbacks: Mapping[str, Callable[..., Any]] = {
        AS_JSON: _note_json,
        OUTPUT.name: _note_output,
        VERSION.name: _print_version,
    }
    callback = callbacks.get(row.name)
    return typer.Option(*row.flags, metavar=row.metavar, help=text, callback=callback, is_eager=callback is not None)


def _note_json(context: typer.Context, *, value: bool) -> bool:
    """Record --json in the invocation: `main` writes errors in the same format."""
    invocation_of(context).as_json |= value
    return value


def _note_output(context: typer.Context, value: str | None) -> str | None:
    """Likewise of `-o json`."""
    invocation_of(context).as_json |= wants_json({OUTPUT.name: value})
    return value


def _print_version(is_given: bool) -> None:
    if is_given:
        from pgpu.distribution import installed_version

        print(f"pgpu {installed_version()}")
        raise typer.Exit


MOST_PORT = 65_535

Json = Annotated[bool, typer_option(JSON)]
Expires = Annotated[
    str | None,
    typer.Option("--expires", metavar="DURATION", help="How long the token is valid, such as 90d [without an end]."),
]
Image = Annotated[str | None, typer.Option("--image", metavar="IMAGE", help="Run in a container of this image.")]


def read_expires(words: str | None) -> float | None:
    """Read `--expires`; seconds, None for no end.

    Raises:
        RequestError: It is no duration.
    """
    return None if words is None else parse_duration_seconds(words)


def check_end(expires: str | None, expires_at_seconds: float | None, revoke: Callable[[], None]) -> None:
    """Revoke a new token that was to expire and does not.

    Raises:
        RequestError: A server of an earlier release made it, which ignores the end.
    """
    if expires is not None and expires_at_seconds is None:
        revoke()
        raise RequestError(
            "this server makes no tokens that expire, and the new one was revoked", hint="upgrade the server"
        )


def read_address(option: str, words: str, hint: str, form: str = "ADDRESS:PORT") -> tuple[str, int]:
    """Read an address and a port, such as 127.0.0.1:80 or [::1]:80; `form` is their name in the help of the option.

    Raises:
        RequestError: It is neither.
    """
    address, _, port = words.rpartition(":")
    if not (address and port.isascii() and is_number(port) and int(port) <= MOST_PORT):
        raise RequestError(f"{option} {quoted(words)} is not {form}", hint=hint)
    return address.strip("[]"), int(port)
