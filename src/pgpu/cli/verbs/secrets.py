"""`pgpu secret set|ls|rm`: values that functions get as files, kept by the server for its users."""

import sys
import time
from getpass import getpass

from pgpu.cli.invocation import Invocation
from pgpu.cli.option_table import JSON, Option, OptionKind, takes
from pgpu.cli.output import console, documents
from pgpu.structs import to_builtins
from pgpu.units import format_duration

_MOST_BYTES = 1 << 20
"""Several times what a server takes, so that a longer value is refused and never cut."""

_NAME = Option("name", OptionKind.WORD, (), "Name of the secret: the file's below /run/secrets.", "NAME")


@takes(_NAME)
def set_secret(invocation: Invocation, *, name: str) -> None:
    """Store a secret: standard input is its value.

    Replicas that run keep the value before; those that start later get the new one. At a terminal the value is asked
    for and not shown.
    """
    is_terminal = sys.stdin.isatty()
    value = (
        getpass(f"value of {name}: ").encode("utf-8", "surrogateescape")
        if is_terminal
        else sys.stdin.buffer.read(_MOST_BYTES)
    )
    invocation.functions().set_secret(name, value)


@takes(JSON)
def secrets(invocation: Invocation, *, as_json: bool) -> None:
    """List your secrets, without their values, and the versions that get them."""
    from pgpu.cli.output.plain_table import PlainTable

    found = invocation.functions().secrets()
    if as_json:
        console.print_json(documents.document(secrets=[to_builtins(each) for each in found]))
        return
    table, now_seconds = PlainTable("NAME", "SET", "USED BY"), time.time()
    for each in found:
        age = format_duration(max(now_seconds - each.set_at_seconds, 0))
        table.add_row(each.name, f"{age} ago", ", ".join(each.used_by))
    if found:
        console.print_table(table)


@takes(_NAME)
def remove_secret(invocation: Invocation, *, name: str) -> None:
    """Remove a secret that no version gets."""
    invocation.functions().remove_secret(name)
