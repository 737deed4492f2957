"""Output of the command line, and repairs of its three standard streams.

Results go to stdout, everything else to stderr, one line at a time.

stdout belongs to the job, so notes and errors of pgpu never go there. Text chosen by users (commands, names) is escaped
before it reaches a terminal: an escape sequence in it could move the cursor or hide words. What a job itself prints
passes through `pgpu logs` and `run` unchanged.
"""

import errno
import io
import os
import re
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, TypeGuard

from pgpu.errors import PgpuError, RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgpu.cli.output import documents
    from pgpu.cli.output.plain_table import PlainTable

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_UNSAFE_IN_JSON = re.compile("[\ud800-\udfff\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
"""Characters that steer a terminal and that `json.dumps` does not escape, lone surrogates included."""


def visible(text: str) -> str:
    """Escape all characters that steer a terminal, tabs and line ends included."""
    if text.isprintable():
        return text
    import unicodedata

    # str.isprintable() is false for control and format characters (bidirectional marks) and for all spaces but U+0020.
    from pgpu.units import escape_undecodable, is_text

    parts = []
    for each in text:
        if each.isprintable() or unicodedata.category(each) == "Zs":
            parts.append(each)
        else:
            parts.append(each.encode("unicode_escape").decode("ascii") if is_text(each) else escape_undecodable(each))
    return "".join(parts)


def visible_json(text: str) -> str:
    """Escape all characters of a JSON text that steer a terminal; it keeps its meaning."""
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def print_json(content: "documents.Document") -> None:
    """Print one object as a result."""
    import json

    print(visible_json(json.dumps(content, ensure_ascii=False, indent=2)))


def print_json_line(content: "documents.Document", *, to_stderr: bool = False) -> None:
    """Print one object on one line, for streams of objects."""
    import json

    # Flushed, so that a program that reads the stream gets each object at once.
    line = visible_json(json.dumps(content, ensure_ascii=False))
    print(line, file=sys.stderr if to_stderr else sys.stdout, flush=True)


def print_note(line: str) -> None:
    """Print a line to stderr: progress, warnings, everything that is no result."""
    print(f"pgpu: {visible(line)}", file=sys.stderr, flush=True)


def print_log(name: str) -> None:
    """Print the log of one part of pgpu as notes, from INFO on."""
    import logging

    class NoteHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            print_note(record.getMessage())

    logger = logging.getLogger(name)
    logger.setLevel(logging.INFO)
    logger.addHandler(NoteHandler())
    # Else the handler of the logger `pgpu` would write each line a second time.
    logger.propagate = False


def print_message(text: str) -> None:
    """Print the message of an error, or of a job that failed, with its code."""
    from pgpu.cli.output.error_codes import code_of

    # Messages of libraries may have several lines; a caller that reads lines gets one for each error.
    line = " ".join(text.split())
    code = code_of(line)
    print_note(line if code is None else f"{line} [{code}]")


def print_error(error: PgpuError, *, as_json: bool) -> None:
    """Print an error to stderr: one line and a hint, or one JSON object."""
    if as_json:
        from pgpu.cli.output import documents

        print_json_line(documents.of_error(error), to_stderr=True)
        return
    print_message(str(error) or type(error).__name__)
    if error.hint:
        print_note(f"hint: {error.hint}")


@cache
def user_name(uid: int) -> str:
    """Return a user's name, or the number of a user without one; looked up once, since it may be a question of a network."""
    import pwd

    from pgpu.model import OWNER_NAMES

    if uid in OWNER_NAMES:
        return OWNER_NAMES[uid]
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def user_number(user: str) -> int:
    """Return a user's number; numbers and pgpu's own owners (Docker, Kubernetes) need no entry in the passwd file.

    Raises:
        RequestError: There is no such user.
    """
    import pwd

    from pgpu.model import OWNER_UIDS
    from pgpu.units import is_number, quoted

    if is_number(user):
        return int(user)
    if user in OWNER_UIDS:
        return OWNER_UIDS[user]
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise RequestError(f"this machine has no user {quoted(user)}") from None


def print_table(table: Any) -> None:
    """Print a `PlainTable`, or anything that rich draws: as wide as the terminal, or uncut into a pipe."""
    from pgpu.cli.output.plain_table import PlainTable

    is_terminal = sys.stdout.isatty()
    if isinstance(table, PlainTable):
        # One write: of a terminal's line-buffered stream each line would be one.
        print("\n".join(table_lines(table)))
        return
    from rich.console import Console

    console = Console(file=sys.stdout, width=None if is_terminal else 240, highlight=False)
    console.print(table, soft_wrap=not is_terminal)


def table_lines(table: "PlainTable") -> "Iterator[str]":
    """Lay a table out for stdout: as wide as the terminal or as an exported COLUMNS, else uncut; in colours on terminals."""
    is_terminal = sys.stdout.isatty()
    # A pipe gets whole lines: a program that reads them could not join wrapped ones.
    width = None
    if is_terminal or os.environ.get("COLUMNS", "").isdecimal():
        import shutil

        width = shutil.get_terminal_size().columns
    has_colours = is_terminal and os.environ.get("TERM") not in {"dumb", "unknown"} and not os.environ.get("NO_COLOR")
    return table.lines(width, has_colours=has_colours)


def prepare_streams() -> None:
    """Open closed streams on /dev/null, and let stdout replace characters that it cannot encode."""
    # The kernel gives the lowest free number: the ledger or a socket would become descriptor 1, and output go into it.
    if sys.stdin is None:
        sys.stdin = open(_null(0), encoding="utf-8")  # noqa: SIM115 - to the end of the process
    if sys.stdout is None:
        sys.stdout = open(_null(1), "w", encoding="utf-8")  # noqa: SIM115 - to the end of the process
    if sys.stderr is None:
        sys.stderr = open(_null(2), "w", encoding="utf-8")  # noqa: SIM115 - to the end of the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A command may hold bytes that are not UTF-8; unreplaced, they would make invalid JSON.
        sys.stdout.reconfigure(errors="replace")


def _null(number: int) -> int:
    # The kernel gives the lowest free number, which is usually that of the closed stream.
    descriptor = os.open(os.devnull, os.O_RDWR)
    if descriptor != number:
        os.dup2(descriptor, number, inheritable=False)
        os.close(descriptor)
    return number


def is_full(error: Exception) -> TypeGuard[OSError]:
    """Whether a write to a stream failed for lack of space; errors of files name their files."""
    return isinstance(error, OSError) and error.errno in _FULL and error.filename is None


def silence_output() -> None:
    """Send Python's flush at exit to /dev/null."""
    # dup2 replaces the descriptor under the stream: what the buffer still holds goes to /dev/null.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
