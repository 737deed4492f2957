"""What users have used of the GPUs: `usage`."""

import time
from typing import Any

from pgpu.cli.invocation import Invocation
from pgpu.cli.listings import OPTIONS_OF_FIRST, Kind, ListOptions, print_listing
from pgpu.cli.option_table import JSON, Option, OptionKind, takes
from pgpu.cli.output import console, documents
from pgpu.client import Client
from pgpu.errors import UsageError
from pgpu.units import parse_past_time

_WEEK = "7d"


@takes(
    Option("user", OptionKind.TEXT, ("--user",), "Only this user, by name or number.", "USER"),
    Option(
        "since", OptionKind.TEXT, ("--since",), "So far back, or since a time, such as 30d or 2026-11-01 [7d].", "TIME"
    ),
    Option("shares", OptionKind.FLAG, ("--shares",), "What each user of the queue holds now, and whose turn it is."),
    *OPTIONS_OF_FIRST,
    JSON,
)
def usage(invocation: Invocation, *, user: str | None, since: str | None, shares: bool, **given: Any) -> None:
    """Show GPU hours, memory hours and waste, by user.

    A GPU hour is an hour of a whole GPU; a slice counts as the larger of its parts of the memory and of the time, from its grant
    until its memory is free again. Waste is memory above the peaks of runs that ended. Time in which a job was suspended or
    parked does not count.
    """
    options = ListOptions(**given)
    if shares:
        if user is not None or since is not None:
            raise UsageError("--shares is about all users and about now", hint="leave out --user and --since")
        options.refuse_rows("--shares prints a line for each user")
        _print_shares(invocation.client(), as_json=options.wants_json)
        return
    since_seconds = parse_past_time(since or _WEEK, time.time())
    uid = None if user is None else console.user_number(user)
    client = invocation.client()
    kind = Kind(
        _table,
        documents.of_usage,
        lambda report: (str(report.usage.uid), console.user_name(report.usage.uid)),
        keeps_first=True,
    )
    print_listing(options, kind, lambda: client.usage(since_seconds, uid))


def _print_shares(client: Client, *, as_json: bool) -> None:
    found = client.shares()
    if as_json:
        console.print_json(documents.of_shares(found))
        return
    from pgpu.cli.output import usage_tables

    console.print_table(usage_tables.of_shares(found))


def _table(reports: Any, is_uncut: bool) -> Any:
    from pgpu.cli.output import usage_tables

    return usage_tables.of_usage(reports, is_uncut=is_uncut)
